"""A shortest text of a term, in bytes.

A lightest derivation (Knuth 1977), found from the top down with a limit that grows: what a part is allowed to cost is
what the limit leaves after its neighbours' least, so recursion ends. A part for which a limit was too low is known to
cost at least that from then on. Intersections and machines have no parts, so there it is a search over states, the
nearest first, by what a state costs at least (A*).

Where a search takes too many steps it settles for the first text that it finds: one that is legal, and short.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence
from typing import NamedTuple

from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.characters import Node, arcs_of
from forktree.backend.grammar.members import due, is_detour
from forktree.backend.grammar.schema_objects import ObjectState, fewest_bytes
from forktree.backend.grammar.schema_plans import ObjectPlan
from forktree.backend.grammar.terms import Kind, Term
from forktree.lang.errors import ConstraintError

MAX_STATES = 20_000  # of one walk over states
MAX_STEPS = 4_000  # before the first text will do
_WALKS = ((1, 300), (16, MAX_STATES))  # how much the way that is left weighs, and the most states of such a search
_LIMITS = (256, 4_096, 65_536, 1 << 20)
_TOO_MANY = (1, 1, 4, 100)  # times MAX_STEPS: this limit leads nowhere; a larger one finds a first text soon
_INFINITE = 1 << 40


class Word(NamedTuple):
    """A text of a term, and for how many keys and items in it it matters what was written before."""

    data: bytes
    num_remembered: int = 0


_EMPTY = Word(b"")

# what a search asks for (a part, the length that it must stay below) and is answered
_Search = Generator[tuple[Term, int], Word | None, Word | None]


class _GaveUpError(Exception):
    """Too many steps under one limit."""


class Shortest:
    """Shortest texts over one automaton. Its owner holds the automaton's lock.

    Args:
        order: the bytes that may be used, the most welcome first.
    """

    def __init__(self, automaton: Automaton, order: Sequence[int]) -> None:
        self._automaton = automaton
        self._order = tuple(order)
        self._usable = sum(1 << byte for byte in self._order)
        self._words: dict[Term, Word] = {}
        self._floors: dict[Term, int] = {}
        self._num_steps = self._most_steps = 0

    def of(self, term: Term) -> Word:
        """A text of the term, which must be live.

        Raises:
            ConstraintError: none was found.
        """
        if term.nullable:
            return _EMPTY
        for limit, many in zip(_LIMITS, _TOO_MANY, strict=True):
            self._num_steps, self._most_steps = 0, many * MAX_STEPS
            try:
                found = self._run(term, limit)
            except _GaveUpError:
                continue
            if found is not None:
                return found
        raise ConstraintError(
            f"no legal output of at most {_LIMITS[-1]} bytes was found, so no budget can be kept: "
            'use on_budget="cut", or simplify the constraint'
        )

    # -- the search -----------------------------------------------------------------------------------

    def _run(self, term: Term, limit: int) -> Word | None:
        """Searches that wait for the search of a part, on a stack of its own: terms nest as deep as outputs do."""
        stack: list[tuple[Term, int, _Search]] = []
        asked: tuple[Term, int] | None = (term, limit)
        answer: Word | None = None
        while True:
            if asked is not None:
                part, most = asked
                known = self._words.get(part)
                if known is None and not part.nullable and self._floor(part) < most:
                    self._count_step()
                    stack.append((part, most, self._search(part, most)))
                    answer = None
                else:
                    known = _EMPTY if part.nullable else known
                    answer = known if known is not None and len(known.data) < most else None
                    if not stack:
                        return answer
            part, most, search = stack[-1]
            try:
                asked = search.send(answer)
                answer = None
            except StopIteration as stop:
                stack.pop()
                asked, answer = None, stop.value
                self._learn(part, most, answer)
                if not stack:
                    return answer

    def _count_step(self) -> None:
        self._num_steps += 1
        if self._num_steps > self._most_steps:
            raise _GaveUpError

    def _learn(self, part: Term, most: int, word: Word | None) -> None:
        if word is not None:
            self._words[part] = word
        else:
            self._floors[part] = max(most, self._floor(part))

    def _search(self, term: Term, limit: int) -> _Search:
        match term.kind:
            case Kind.ALT:
                return self._least_of(term, limit)
            case Kind.CAT:
                return self._joined(term, limit)
            case Kind.REPEAT:
                return self._repeated(term, limit)
            case Kind.REF:
                return self._same(self._automaton.terms.resolved(term), limit)
            case Kind.CAPTURE:
                return self._keyed(term, limit)
            case Kind.ITEM:
                return self._itemised(term, limit)
            case Kind.ATOM:
                return self._spelt(term, limit)
        return self._walked(term, limit)

    def _same(self, term: Term, limit: int) -> _Search:
        return (yield term, limit)

    def _least_of(self, term: Term, limit: int) -> _Search:
        best: Word | None = None
        arm = due(term.args)
        if arm is not None:
            return (yield arm, limit)
        for arm in sorted(term.args, key=lambda one: (is_detour(one), self._floor(one))):
            if best is not None and is_detour(arm):
                break
            found = yield arm, limit if best is None else len(best.data)
            best = found or best
            if best is not None and self._num_steps > MAX_STEPS:
                break
        return best

    def _joined(self, term: Term, limit: int) -> _Search:
        parts = _spine(term)
        rest = sum(map(self._floor, parts))
        data, num_remembered = bytearray(), 0
        for part in parts:
            rest -= self._floor(part)
            found = yield part, limit - len(data) - rest
            if found is None:
                return None
            data += found.data
            num_remembered += found.num_remembered
        return Word(bytes(data), num_remembered) if len(data) < limit else None

    def _repeated(self, term: Term, limit: int) -> _Search:
        body, low, _ = term.args
        found = yield body, (limit - 1) // low + 1
        return None if found is None else Word(found.data * low, found.num_remembered * low)

    def _keyed(self, term: Term, limit: int) -> _Search:
        best: Word | None = None
        for language, _ in term.args[0]:
            most = limit if best is None else len(best.data)
            key = yield language, most - 2
            if key is None:
                continue
            reached = self._automaton.run(term, key.data + b'"')
            if reached is None:
                continue
            found = yield reached, most - len(key.data) - 1
            if found is not None:
                best = Word(key.data + b'"' + found.data, 1 + found.num_remembered)
        return best

    def _itemised(self, term: Term, limit: int) -> _Search:
        item = yield term.args[0], limit - 2
        reached = None if item is None else self._automaton.run(term, item.data + b",")
        if item is None or reached is None:
            return None
        rest = yield reached, limit - len(item.data) - 1
        if rest is None:
            return None
        return Word(item.data + b"," + rest.data, 1 + item.num_remembered + rest.num_remembered)

    def _spelt(self, term: Term, limit: int) -> _Search:
        """One character: breadth first over its bytes."""
        yield from ()
        pending: list[tuple[Node, bytes]] = [(term.args[0], b"")]
        for node, data in pending:  # grows while it is walked
            for mask, following in arcs_of(node):
                byte = self._byte(mask)
                if byte is None:
                    continue
                longer = data + bytes([byte])
                if following is None:
                    return Word(longer) if len(longer) < limit else None
                pending.append((following, longer))
        return None

    def _walked(self, term: Term, limit: int) -> _Search:
        """States, until what is left has parts again: the nearest first, or the most promising where those are many."""
        for weight, most in _WALKS:
            path, state = self._way_out(term, limit, weight, most)
            if state is None:
                continue
            if state.nullable:
                return Word(path)
            found = yield state, limit - len(path)
            if found is not None:
                return Word(path + found.data, found.num_remembered)
        return None

    def _way_out(self, term: Term, limit: int, weight: int, most: int) -> tuple[bytes, Term | None]:
        """Bytes to a state that has parts or may end, and that state."""
        best: dict[Term, int] = {term: 0}
        came: dict[Term, tuple[Term, int]] = {}
        queue = [(0, term.serial, term)]
        num_states = 0
        while queue and num_states < most:
            _, _, state = heapq.heappop(queue)
            if state.nullable or state.kind not in (Kind.AND, Kind.NOT, Kind.MACHINE):
                return _path(came, state), state
            num_states += 1
            cost = best[state] + 1
            for mask, target in self._automaton.possible_arcs(state):
                byte, least = self._byte(mask), self._floor(target)
                if byte is not None and cost + least < limit and cost < best.get(target, _INFINITE):
                    best[target] = cost
                    came[target] = (state, byte)
                    heapq.heappush(queue, (cost + weight * least, target.serial, target))
        return b"", None

    def _byte(self, mask: int) -> int | None:
        if not mask & self._usable:
            return None
        for byte in self._order:
            if mask >> byte & 1:
                return byte
        return None

    # -- what a text costs at least -------------------------------------------------------------------

    def _floor(self, term: Term) -> int:
        if term.nullable:
            return 0
        known = self._floors.get(term)
        if known is not None:
            return known
        pending = [term]
        while pending:
            one = pending[-1]
            parts = [part for part in _parts(one) if not part.nullable and part not in self._floors]
            if parts:
                pending += parts
            else:
                self._floors[pending.pop()] = self._floor_of(one)
        return self._floors[term]

    def _floor_of(self, term: Term) -> int:
        match term.kind:
            case Kind.ATOM:
                node = term.args[0]
                return len(node[1]) if node[0] == "text" else 1
            case Kind.CAT:
                return sum(0 if part.nullable else self._floors[part] for part in term.args)
            case Kind.ALT:
                return min(self._floors[part] for part in term.args)
            case Kind.REPEAT:
                return int(self._floors[term.args[0]] * term.args[1])
            case Kind.AND:
                return max((self._floors[part] for part in _parts(term) if not part.nullable), default=1)
            case Kind.REF:
                match term.args[0]:
                    case ("object", ObjectPlan() as plan, ObjectState() as state):
                        return fewest_bytes(plan, state)
            case Kind.CAPTURE:
                match term.args[2].context:
                    case (ObjectPlan() as plan,):  # a quote, a colon, a value, and what the object still needs
                        return 3 + min(fewest_bytes(plan, after) for _, tag in term.args[0] for _, after in tag)
            case Kind.EMPTY:
                return _INFINITE
        return 1


def _parts(term: Term) -> Sequence[Term]:
    """The terms that a floor is made of."""
    match term.kind:
        case Kind.CAT | Kind.ALT:
            return term.args
        case Kind.REPEAT:
            return term.args[:1]
        case Kind.AND:
            return [one for one in term.args if one.kind is not Kind.NOT]
    return ()


def _spine(term: Term) -> list[Term]:
    parts = []
    while term.kind is Kind.CAT:
        parts.append(term.args[0])
        term = term.args[1]
    return [*parts, term]


def _path(came: dict[Term, tuple[Term, int]], state: Term) -> bytes:
    data = bytearray()
    while state in came:
        state, byte = came[state]
        data.append(byte)
    return bytes(reversed(data))
