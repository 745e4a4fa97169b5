"""The fewest tokens that still end an output legally, from every state, and what they are.

    bytes    a shortest text from the state on (`shortest`)
    cells    that text byte by byte, each byte with the fewest tokens that spell it from there to the end
    costs    for every legal token, the tokens still needed after it

Texts share their ends: a state is a stack of terms, so cells are memoised by what is left of it, and the cells of a
deeper state are its own first bytes before the cells of the rest.

The number is exact where few states can be reached, which are then all visited (options, numbers, short patterns).
Elsewhere it is that of one short text: an output may exist that needs fewer tokens, but never is one promised that
needs more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forktree.backend.grammar.alphabet import alphabet_of
from forktree.backend.grammar.counting import unbounded
from forktree.backend.grammar.shortest import Shortest
from forktree.backend.grammar.terms import Kind, Term
from forktree.backend.grammar.token_walk import TokenWalk
from forktree.backend.grammar.trie import Ints, Trie
from forktree.backend.vocabulary import MARK

if TYPE_CHECKING:
    from forktree.backend.grammar.masks import Masks

UNREACHABLE: Final = 1 << 30
MAX_EXACT_STATES = 256
MAX_EXACT_ARCS = 5_000
_MAX_CELLS = 500_000
_CELL_BYTES = 150
_MAX_NEEDS = 4_096
MAX_CHECKED = 1_000  # tokens whose true states are looked at
_SLACK = 2  # tokens that a key or item may cost more because it must differ from one that the walk forgot


class Cell:
    """A place in a text: what is left of it can be written in `cost` tokens, of which `token` is the first."""

    __slots__ = ("after", "byte", "cost", "following", "num_remembered", "token")

    def __init__(self, byte: int, following: Cell | None, num_remembered: int) -> None:
        self.byte = byte
        self.following = following  # the next byte's
        self.num_remembered = num_remembered  # keys and items for which it matters what was written before
        self.cost = UNREACHABLE
        self.token = -1
        self.after: Cell | None = None  # behind the token


class Costs(NamedTuple):
    """Legal tokens, and how many more an output needs after each."""

    tokens: Ints
    left: Ints


NO_COSTS: Final = Costs(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32))


class Completions:
    """Completions of one automaton over one vocabulary, shared by all matchers of both."""

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._automaton = masks.automaton
        self._trie = masks.trie
        self._walk = TokenWalk(masks.automaton, masks.trie)
        self._shortest = Shortest(masks.automaton, _welcome(masks.trie))
        self._end = Cell(0, None, 0)
        self._end.cost = 0
        self._clear()
        with self._automaton.lock:
            self._exact = self._distances()

    def _clear(self) -> None:
        self._cells: dict[Term, Cell] = {}
        self._repeats: dict[tuple[Term, Term | None], list[Cell]] = {}
        self._needs: OrderedDict[Term, int] = OrderedDict()
        self._num_cells = 0

    @property
    def num_bytes(self) -> int:
        """What it takes, estimated from the number of its cells."""
        return self._num_cells * _CELL_BYTES

    def cell(self, state: Term | None, prefix: bytes = b"") -> Cell:
        """The completion of a state, with some bytes to be written before it."""
        with self._automaton.lock:
            if self._num_cells > _MAX_CELLS:
                self._clear()
            cell = self._end if state is None else self._cell(state)
            for at in range(len(prefix) - 1, -1, -1):
                cell = self._one_before(prefix[at], cell, cell.num_remembered)
                if self._exact is not None and state is not None:
                    self._shorten(cell, prefix[at:], state)
            return cell

    def costs(self, state: Term, node: int = 0) -> Costs:
        """Of the tokens below a node of the trie whose bytes after it are legal from a state."""
        with self._automaton.lock:
            reached = self._walk.reached(state, node)
            left = np.zeros(len(reached.states), dtype=np.int32)
            is_unsure = np.zeros(len(reached.states), dtype=np.bool_)
            for number in np.flatnonzero(np.bincount(reached.numbers)).tolist():
                left[number], is_unsure[number] = self._left(reached.states[number])
            costs = Costs(reached.tokens, left[reached.numbers])
            if state.captures and is_unsure.any():
                self._check(costs, np.flatnonzero(is_unsure[reached.numbers]), state, self._trie.depth(node))
            return costs

    def _check(self, costs: Costs, places: NDArray[np.intp], state: Term, depth: int) -> None:
        """Takes the few tokens whose cost is not sure to their true states."""
        if len(places) > MAX_CHECKED:
            return
        token_bytes = self._trie.vocabulary.token_bytes
        for place in places.tolist():
            data = token_bytes[costs.tokens[place]] or b""
            reached = self._automaton.run(state, data[depth:])
            costs.left[place] = UNREACHABLE if reached is None else self._cell(reached).cost

    def need(self, state: Term) -> int:
        """A budget that every legal token keeps."""
        found = self._needs.get(state)
        if found is not None:
            return found
        with self._automaton.lock:
            key = unbounded(self._automaton.terms, state, self._trie.longest)
            found = self._needs.get(key)
            if found is None:
                left = self.costs(key).left
                found = 1 + int(left[left < UNREACHABLE].max(initial=0)) + _margin(key is not state)
            for one in (key, state):
                self._needs[one] = found
            while len(self._needs) > _MAX_NEEDS:
                self._needs.popitem(last=False)
        return found

    # -- cells ----------------------------------------------------------------------------------------

    def _left(self, state: Term) -> tuple[int, bool]:
        """The cost of a state that a walk has reached, and whether it is too low, perhaps, for the true one.

        A walk forgets keys and items. Its text is one of the true state all the same, unless another key or item has
        to be written, which must differ from those; only the key that the state stands in was never forgotten.
        """
        cell = self._cell(state)
        num_unsure = cell.num_remembered - (1 if _is_inside_key(state) else 0)
        return cell.cost + _SLACK * max(num_unsure, 0), num_unsure > 0

    def _cell(self, state: Term) -> Cell:
        if self._exact is not None:
            return self._distant(state)
        pending = [state]
        while state not in self._cells:
            one = pending[-1]
            missing = [part for part in _rests(one) if part not in self._cells]
            if missing:
                pending += missing
            else:
                self._cells[pending.pop()] = self._made(one)
        return self._cells[state]

    def _made(self, state: Term) -> Cell:
        if state.nullable:
            return self._end
        if state.kind is Kind.ALT:
            return min((self._cells[one] for one in state.args), key=_cost)
        if state.kind is Kind.CAT:
            return self._headed(*state.args, self._cells[state.args[1]])
        return self._headed(state, None, self._end)

    def _headed(self, head: Term, tail: Term | None, rest: Cell) -> Cell:
        """The cells of a head's text before those of the tail."""
        if head.nullable:
            return rest
        if head.kind is not Kind.REPEAT:
            word = self._shortest.of(head)
            return self._before(word.data, rest, word.num_remembered)
        body, low, _ = head.args
        word = self._shortest.of(body)
        rounds = self._repeats.setdefault((body, tail), [rest])
        while len(rounds) <= low:
            rounds.append(self._before(word.data, rounds[-1], word.num_remembered))
        return rounds[low]

    def _before(self, data: bytes, cell: Cell, num_remembered: int) -> Cell:
        total = cell.num_remembered + num_remembered
        for byte in reversed(data):
            cell = self._one_before(byte, cell, total)
        return cell

    def _one_before(self, byte: int, following: Cell, num_remembered: int) -> Cell:
        """Tries every token that spells what comes."""
        cell = Cell(byte, following, num_remembered)
        self._num_cells += 1
        (firsts, counts), data, num_tokens = self._trie.child_spans, self._trie.path_bytes, self._trie.num_tokens
        node = 0
        at: Cell | None = cell
        while at is not None and at.following is not None:
            node = data.find(at.byte, firsts[node], firsts[node] + counts[node])
            if node < 0:
                break
            at = at.following
            if at.cost + 1 < cell.cost and num_tokens[node]:
                cell.cost, cell.after = at.cost + 1, at
                cell.token = int(self._trie.tokens[self._trie.first_token[node]])
        return cell

    def _shorten(self, cell: Cell, data: bytes, state: Term) -> None:
        """Tries the tokens that spell the data and go on in a state, where every distance is known."""
        node: int | None = 0
        for byte in data:
            node = None if node is None else self._trie.child(node, byte)
        if node is None:
            return
        tokens, numbers, states = self._walk.reached(state, node)
        for token, number in zip(tokens.tolist(), numbers.tolist(), strict=True):
            after = self._distant(states[number])
            if after.cost + 1 < cell.cost:
                cell.cost, cell.after, cell.token = after.cost + 1, after, token

    # -- few states -----------------------------------------------------------------------------------

    def _distant(self, state: Term) -> Cell:
        cell = self._cells.get(state)
        if cell is None:
            assert self._exact is not None
            cell = self._cells[state] = Cell(0, None, 0)
            cell.cost = self._exact.get(state, UNREACHABLE)
        return cell

    def _distances(self) -> dict[Term, int] | None:
        """Tokens from every state to an end, backwards from the ends; None where there are too many states."""
        users: dict[Term, list[Term]] = {self._automaton.start: []}
        pending = [self._automaton.start]
        num_arcs = 0
        for state in pending:  # grows while it is walked
            if self._automaton.start.captures:
                return None
            reached = self._walk.reached(state)
            num_arcs += len(reached.tokens)
            if not self._masks.is_restricted and (num_arcs > MAX_EXACT_ARCS or len(users) > MAX_EXACT_STATES):
                return None
            for number in np.unique(reached.numbers).tolist():
                following = reached.states[number]
                if following not in users:
                    users[following] = []
                    pending.append(following)
                users[following].append(state)
        distances = {state: 0 for state in users if state.nullable}
        nearest = list(distances)
        for state in nearest:
            for user in users[state]:
                if user not in distances:
                    distances[user] = distances[state] + 1
                    nearest.append(user)
        return distances


def _rests(state: Term) -> Sequence[Term]:
    """The states whose cells a state's own are made of."""
    if state.nullable:
        return ()
    if state.kind is Kind.ALT:
        return state.args
    return state.args[1:] if state.kind is Kind.CAT else ()


def _cost(cell: Cell) -> int:
    return cell.cost


def _margin(is_shared: bool) -> int:
    """States that share a need may differ in how their alternatives are grouped, and so in the text that is found."""
    return 8 if is_shared else 0


def _is_inside_key(state: Term) -> bool:
    while state.kind is Kind.CAT:
        state = state.args[0]
    return state.kind is Kind.CAPTURE


def _welcome(trie: Trie) -> list[int]:
    """The bytes of the vocabulary: printable ones first, and of those the ones of which a token holds most in a row."""
    mark = MARK if len(trie.by_byte[MARK[0]]) else b""  # around special tokens, which are in no alphabet
    runs = {byte: _longest_run(trie, byte) for byte in alphabet_of(trie.vocabulary).byte_set.union(mark)}
    return sorted(runs, key=lambda byte: (not 0x20 <= byte < 0x7F, -runs[byte], byte))


def _longest_run(trie: Trie, byte: int) -> int:
    longest = length = 0
    node = trie.child(0, byte)
    while node is not None:
        length += 1
        if trie.num_tokens[node]:
            longest = length
        node = trie.child(node, byte)
    return longest
