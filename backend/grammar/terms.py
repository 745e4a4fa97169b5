"""Languages over bytes as terms, built so that equal languages are mostly one object. `kinds` lists what a term can be.

A term is a state of the automaton: its derivative by a byte is the state after that byte (Brzozowski 1964; the
grouping of alternatives by their tail gives the partial derivatives of Antimirov 1996, whose number is linear).
Counts live in the terms, so `a{1,10000}` costs what `a*` costs until it is walked. References make recursion
possible: the tail of a CAT is then a stack of unbounded depth, shared by every state above it.

`interegular` was measured as the algebra instead (`benchmarks/algebra.py`). It enumerates every state before the
first byte, and knows neither counters nor references: the intersection of `[a-z]{1,N}` and `.*x.*` took it 64 ms at
N = 200 and 6.3 s at N = 2,000; terms take 0.6 ms at either.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

from forktree.backend.grammar.characters import Node, Writing, byte_node, char_node, is_whole, text_node
from forktree.backend.grammar.codepoints import ANY, CodeSet
from forktree.backend.grammar.kinds import ITEMS, KEYS, Kind, Machine, Term
from forktree.backend.grammar.spans import multiplied, touching
from forktree.backend.grammar.work import Work


@dataclass(slots=True, eq=False)
class _Scope:
    """Who resolves references. One an arena, and one for each constraint inside another."""

    resolve: Callable[[Hashable], Term] | None
    refs_capture: int = 0


class _Context(NamedTuple):
    """The context of a captured key, and the scope in which it means something."""

    scope: _Scope
    context: Hashable


class Terms:
    """Makes terms and keeps them unique. One arena a constraint; not thread-safe by itself."""

    def __init__(self, resolve: Callable[[Hashable], Term] | None = None) -> None:
        self._table: dict[tuple[Any, ...], Term] = {}
        self._unions: dict[tuple[Term, ...], Term] = {}  # the letters of a word mostly lead to the same union
        self._scope = _Scope(resolve)
        self._resolved: dict[Term, Term] = {}
        self.work = Work()
        self.empty = self._make(Kind.EMPTY, (), nullable=False, is_plain=True, flavour="")
        self.epsilon = self._make(Kind.EPSILON, (), nullable=True, is_plain=True, flavour="")

    def scoped(self, resolve: Callable[[Hashable], Term]) -> Terms:
        """The same arena with references of its own: `resolve` says what they stand for, whoever walks them."""
        twin = copy(self)
        twin._scope = _Scope(resolve)
        return twin

    @property
    def refs_capture(self) -> int:
        """What the references of this scope capture (`Term.captures`); set before the first reference."""
        return self._scope.refs_capture

    @refs_capture.setter
    def refs_capture(self, value: int) -> None:
        self._scope.refs_capture = value

    @property
    def num_terms(self) -> int:
        return len(self._table)

    # -- leaves ---------------------------------------------------------------------------------------

    def atom(self, node: Node) -> Term:
        flavour = str(node[1]) if node[0] == "start" else None
        return self._make(Kind.ATOM, (node,), nullable=False, is_plain=True, flavour=flavour)

    def char(self, codes: CodeSet, writing: Writing = "raw") -> Term:
        """One character of `codes`."""
        node = char_node(codes, writing)
        return self.atom(node) if node[2] else self.empty

    def byte(self, mask: int) -> Term:
        """One byte of a mask."""
        return self.atom(byte_node(mask)) if mask else self.empty

    def literal(self, text: str | bytes) -> Term:
        """These bytes, and no other spelling of them."""
        data = text.encode() if isinstance(text, str) else text
        if len(data) <= _MAX_LITERAL:
            return self.atom(text_node(data)) if data else self.epsilon
        pieces = [data[at : at + _MAX_LITERAL] for at in range(0, len(data), _MAX_LITERAL)]
        return self.cats(self.atom(text_node(piece)) for piece in pieces)

    def any_chars(self, writing: Writing = "raw") -> Term:
        """Every text, in this writing."""
        return self.repeat(self.char(ANY, writing), 0, None)

    def ref(self, key: Any) -> Term:
        scope = self._scope
        if isinstance(key, tuple) and len(key) == 4 and isinstance(key[1], _Context):
            scope, key = key[1].scope, (key[0], key[1].context, *key[2:])
        return self._make(Kind.REF, (key, scope), nullable=False, is_plain=True, flavour=None)

    def machine(self, machine: Machine, state: Hashable) -> Term:
        nullable = machine.is_final(state)
        find_flavour = getattr(machine, "flavour", None)
        flavour = None if find_flavour is None else find_flavour(state)
        return self._make(Kind.MACHINE, (machine, state), nullable=nullable, is_plain=True, flavour=flavour)

    def capture(self, classes: Iterable[tuple[Term, Hashable]], text: bytes | None, context: Hashable) -> Term:
        """A key of one of some languages that share no text. `text` is what was read of it, None is not kept."""
        held = context if isinstance(context, _Context) else _Context(self._scope, context)
        args = (tuple(classes), text, held)
        return self._make(Kind.CAPTURE, args, nullable=False, is_plain=True, flavour=None)

    def item(self, term: Term, text: bytes | None, context: Hashable, tag: Hashable) -> Term:
        """An item of an array up to the comma that follows it. `text` is what was read of it, None is not kept."""
        held = context if isinstance(context, _Context) else _Context(self._scope, context)
        return self._make(Kind.ITEM, (term, text, held, tag), nullable=False, is_plain=True, flavour=None)

    def resolved(self, ref: Term) -> Term:
        """What a reference stands for."""
        term = self._resolved.get(ref)
        if term is None:
            key, scope = ref.args
            assert scope.resolve is not None, "a reference needs a resolver"
            term = scope.resolve(key)
            assert not term.nullable, f"{key!r} is nullable"
            self._resolved[ref] = term
        return term

    # -- operators ------------------------------------------------------------------------------------

    def cat(self, head: Term, tail: Term) -> Term:
        if head.kind is Kind.EPSILON:
            return tail
        if tail.kind is Kind.EPSILON:
            return head
        if head.kind is Kind.EMPTY or tail.kind is Kind.EMPTY:
            return self.empty
        heads = []
        while head.kind is Kind.CAT:
            heads.append(head.args[0])
            head = head.args[1]
        term = self._cat_one(head, tail)
        for one in reversed(heads):
            term = self._cat_one(one, term)
        return term

    def cats(self, terms: Iterable[Term]) -> Term:
        term = self.epsilon
        for one in reversed(list(terms)):
            term = self.cat(one, term)
        return term

    def _cat_one(self, head: Term, tail: Term) -> Term:
        if _is_star(head) and (tail is head or (tail.kind is Kind.CAT and tail.args[0] is head)):
            return tail
        return self._make(
            Kind.CAT,
            (head, tail),
            nullable=head.nullable and tail.nullable,
            is_plain=head.is_plain and tail.is_plain,
            flavour=_joined(head.flavour, tail.flavour),
        )

    def alt(self, terms: Iterable[Term]) -> Term:
        """Union: flattened, without duplicates, operands with one tail joined at their heads."""
        operands = tuple(terms)
        if len(operands) == 1:
            return operands[0]
        term = self._unions.get(operands)
        if term is None:
            if len(self._unions) > _MAX_UNIONS:
                self._unions.clear()
            term = self._unions[operands] = self._union(operands)
        return term

    def _union(self, given: Sequence[Term], depth: int = 0) -> Term:
        by_tail: dict[Term, dict[Term, None]] = {}
        pending = list(given)
        self.work.spend(len(pending) // 16)
        if len(pending) > _MANY_STACKS and depth < _MAX_MERGED:
            pending = self._joined_tails(pending, depth)
        pending.reverse()
        while pending:
            term = pending.pop()
            if term.kind is Kind.ALT:
                pending.extend(reversed(term.args))
            elif term.kind is Kind.CAT:
                head, tail = term.args
                heads = by_tail.setdefault(tail, {})
                for one in head.args if head.kind is Kind.ALT else (head,):
                    heads[one] = None
            elif term.kind is not Kind.EMPTY:
                by_tail.setdefault(self.epsilon, {})[term] = None
        operands: list[Term] = []
        for tail, heads in by_tail.items():
            merged = self._merged_heads(list(heads))
            if tail is self.epsilon:
                operands += merged
            else:
                operands.append(self.cat(self._alt_of(merged), tail))
        return self._alt_of(self._merged_counts(operands))

    def _joined_tails(self, operands: list[Term], depth: int) -> list[Term]:
        """Operands with one head joined at their tails: the stacks of an ambiguous grammar, merged where they agree."""
        by_head: dict[Term, dict[Term, None]] = {}
        others: list[Term] = []
        pending = operands[::-1]
        while pending:
            term = pending.pop()
            if term.kind is Kind.ALT:
                pending.extend(reversed(term.args))
            elif term.kind is not Kind.CAT:
                others.append(term)
            else:
                head, tail = term.args
                for one in head.args if head.kind is Kind.ALT else (head,):
                    by_head.setdefault(one, {})[tail] = None
        return others + [self.cat(head, self._union(list(tails), depth + 1)) for head, tails in by_head.items()]

    def _alt_of(self, operands: Sequence[Term]) -> Term:
        unique = tuple(sorted(dict.fromkeys(operands), key=_serial))
        if not unique:
            return self.empty
        if len(unique) == 1:
            return unique[0]
        return self._make(
            Kind.ALT,
            unique,
            nullable=any(one.nullable for one in unique),
            is_plain=all(one.is_plain for one in unique),
            flavour=_joined(*(one.flavour for one in unique)),
        )

    def _merged_heads(self, heads: list[Term]) -> list[Term]:
        """Joins repeats of one body whose counts touch, and drops what an all-accepting operand contains."""
        if len(heads) < 2:
            return heads
        for one in heads:
            if _is_star(one) and self._is_any(one.args[0]):
                heads = [term for term in heads if term is one or term.flavour not in ("", one.flavour)]
        return self._joined_intervals([((one.args[0],), one) for one in heads if one.kind is Kind.REPEAT], heads)

    def _merged_counts(self, operands: list[Term]) -> list[Term]:
        """Joins `head body{a,b} rest` with `head body{c,d} rest` where the counts touch."""
        keyed = []
        for term in operands:
            if term.kind is Kind.CAT:
                head, tail = term.args
                repeat, rest = tail.args if tail.kind is Kind.CAT else (tail, None)
                if repeat.kind is Kind.REPEAT:
                    keyed.append(((head, repeat.args[0], rest), term))
        if len(keyed) < 2:
            return operands
        groups: dict[object, list[Term]] = {}
        for key, term in keyed:
            groups.setdefault(key, []).append(term)
        gone: set[Term] = set()
        added = []
        for (head, body, rest), group in groups.items():
            if len(group) < 2:
                continue
            gone.update(group)
            repeats = [tail.args[0] if tail.kind is Kind.CAT else tail for _, tail in (one.args for one in group)]
            for low, high in touching([(one.args[1], one.args[2]) for one in repeats]):
                tail = self.repeat(body, low, high)
                added.append(self.cat(head, tail if rest is None else self.cat(tail, rest)))
        return [term for term in operands if term not in gone] + added

    def _joined_intervals(self, repeats: list[tuple[tuple[Any, ...], Term]], heads: list[Term]) -> list[Term]:
        groups: dict[object, list[Term]] = {}
        for key, term in repeats:
            groups.setdefault(key, []).append(term)
        gone: set[Term] = set()
        added: list[Term] = []
        for group in groups.values():
            if len(group) > 1:
                gone.update(group)
                spans = touching([(one.args[1], one.args[2]) for one in group])
                added += [self.repeat(group[0].args[0], low, high) for low, high in spans]
        return [term for term in heads if term not in gone] + added if gone else heads

    def both(self, terms: Iterable[Term]) -> Term:
        """Intersection."""
        operands: dict[Term, None] = {}
        pending = list(terms)
        while pending:
            term = pending.pop()
            if term.kind is Kind.AND:
                pending.extend(term.args)
            elif term.kind is Kind.EMPTY:
                return self.empty
            elif not (term.kind is Kind.NOT and term.args[0] is self.empty):
                operands[term] = None
        kept = self._bounded(list(operands))
        if len(kept) == 1:
            return kept[0]
        if self._contradict(kept):
            return self.empty
        unique = tuple(sorted(kept, key=_serial))
        flavours = {one.flavour for one in unique if one.kind is not Kind.NOT}
        return self._make(
            Kind.AND,
            unique,
            nullable=all(one.nullable for one in unique),
            is_plain=False,
            flavour=flavours.pop() if len(flavours) == 1 else None,
        )

    def _bounded(self, operands: list[Term]) -> list[Term]:
        """Drops operands that another one implies; joins the counts of repeats of one character."""
        assert operands, "an intersection needs an operand"
        counts: dict[Term, tuple[int, int | None]] = {}
        others = []
        for term in operands:
            body = term.args[0] if term.kind is Kind.REPEAT else None
            if isinstance(body, Term) and body.kind is Kind.ATOM:
                low, high = counts.get(body, (0, None))
                highs = [bound for bound in (high, term.args[2]) if bound is not None]
                counts[body] = (max(low, term.args[1]), min(highs, default=None))
            else:
                others.append(term)
        for body, (low, high) in counts.items():
            if high is not None and low > high:
                return [self.empty]
            redundant = low == 0 and high is None and self._is_any(body)
            bounded = any(one.kind is not Kind.NOT and one.flavour in ("", body.flavour) for one in others)
            if not (redundant and bounded):
                others.append(self.repeat(body, low, high))
        return list(dict.fromkeys(others))

    def _contradict(self, operands: list[Term]) -> bool:
        present = set(operands)
        if self.empty in present:
            return True
        if self.epsilon in present and not all(one.nullable for one in operands):
            return True
        return any(one.kind is Kind.NOT and one.args[0] in present for one in operands)

    def without(self, term: Term) -> Term:
        """Complement, over all byte strings: intersect it with something."""
        if term.kind is Kind.NOT:
            return term.args[0]
        return self._make(Kind.NOT, (term,), nullable=not term.nullable, is_plain=False, flavour=None)

    def repeat(self, body: Term, low: int, high: int | None) -> Term:
        """`low` to `high` times, None is without end. Nested counts are multiplied out where that is exact."""
        if high == 0 or body.kind is Kind.EPSILON:
            return self.epsilon
        if body.kind is Kind.EMPTY:
            return self.epsilon if low == 0 else self.empty
        if low == 1 and high == 1:
            return body
        if body.kind is Kind.REPEAT:
            product = multiplied(body.args[1], body.args[2], low, high)
            if product is not None:
                return self.repeat(body.args[0], *product)
        if body.nullable:
            low = 0
        return self._make(
            Kind.REPEAT, (body, low, high), nullable=low == 0, is_plain=body.is_plain, flavour=body.flavour
        )

    def optional(self, term: Term) -> Term:
        return term if term.nullable else self.alt((self.epsilon, term))

    def _is_any(self, body: Term) -> bool:
        node = body.args[0] if body.kind is Kind.ATOM else None
        return isinstance(node, tuple) and is_whole(node) and node[0] == "start" and node[2] == ANY

    def _make(self, kind: Kind, args: tuple[Any, ...], *, nullable: bool, is_plain: bool, flavour: str | None) -> Term:
        key = (kind, *args)
        term = self._table.get(key)
        if term is None:
            self.work.spend()
            term = Term(len(self._table), kind, args, nullable, is_plain, flavour)
            term.captures = self._captures(kind, args)
            self._table[key] = term
        return term

    def _captures(self, kind: Kind, args: tuple[Any, ...]) -> int:
        match kind:
            case Kind.CAT:
                return int(args[0].captures | args[1].captures)
            case Kind.ALT | Kind.AND:
                captures = 0
                for one in args:
                    captures |= one.captures
                return captures
            case Kind.REPEAT | Kind.NOT:
                return int(args[0].captures)
            case Kind.REF:
                return int(args[1].refs_capture)
            case Kind.CAPTURE:
                return KEYS
            case Kind.ITEM:
                return ITEMS | int(args[0].captures)
        return 0


_MAX_LITERAL = 256  # bytes of one term: each step into it copies what is left
_MAX_MERGED = 4  # stack entries that one union looks into
_MAX_UNIONS = 50_000
_MANY_STACKS = 32  # alternatives; below that, joining them at their tails alone keeps states few


def _serial(term: Term) -> int:
    return term.serial


def _is_star(term: Term) -> bool:
    return term.kind is Kind.REPEAT and term.args[1] == 0 and term.args[2] is None


def _joined(*flavours: str | None) -> str | None:
    if None in flavours:
        return None
    known = set(flavours) - {""}
    if not known:
        return ""
    return known.pop() if len(known) == 1 else None
