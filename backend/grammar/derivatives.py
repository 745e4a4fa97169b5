"""Derivatives over a term arena: arcs by byte, dead ends pruned, states made when first visited.

A state is a `Term`. `arcs(state)` lists `(byte mask, next state)` with disjoint masks, only for bytes after which
some legal output remains. Shared by every matcher of a constraint, on any thread: one lock guards the arena.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any

from forktree.backend.grammar.characters import arcs_of
from forktree.backend.grammar.terms import Kind, Term, Terms
from forktree.backend.grammar.work import MASK_STEPS
from forktree.lang.errors import ConstraintError

Arcs = tuple[tuple[int, Term], ...]

MAX_EXPLORED = 200_000
MAX_PARALLEL = 20_000
_QUOTE = 0x22
_COMMA = 0x2C
_ALL_BYTES = (1 << 256) - 1


class Derivatives:
    """The transitions between the terms of one arena."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.lock = threading.RLock()
        self._loose: dict[Term, Arcs] = {}
        self._steps: dict[tuple[Term, int], Term | None] = {}

    def step(self, state: Term, byte: int) -> Term | None:
        """The state after one byte, or None where the byte is illegal."""
        if not state.captures:
            return _target(self.arcs(state), byte)
        key = (state, byte)
        if key not in self._steps:
            with self.lock, self.terms.work.limited(MASK_STEPS):
                reached = self._step(state, byte)
                is_live = reached is not None and self.is_live(reached)
                self._steps[key] = reached if is_live else None
        return self._steps[key]

    def _step(self, term: Term, byte: int) -> Term | None:
        """As `arcs`, for one byte only: a captured key would have an arc a byte, each to a state of its own."""
        if not term.captures:
            return _target(self._arcs(term), byte)
        match term.kind:
            case Kind.ALT:
                return self._any(self._step(one, byte) for one in term.args)
            case Kind.CAT:
                head, tail = term.args
                reached = self._step(head, byte)
                first = None if reached is None else self.terms.cat(reached, tail)
                return self._any((first, self._step(tail, byte))) if head.nullable else first
            case Kind.CAPTURE:
                return self._captured(term, byte)
            case Kind.ITEM:
                return self._remembered(term, byte)
            case Kind.AND:
                reached = [self._step_under_and(one, byte) for one in term.args]
                return None if None in reached else self.terms.both(one for one in reached if one is not None)
            case Kind.REF:
                return self._step(self.terms.resolved(term), byte)
        return _target(self._arcs(term), byte)

    def _any(self, terms: Iterable[Term | None]) -> Term | None:
        found = [term for term in terms if term is not None]
        return self.terms.alt(found) if found else None

    def _captured(self, term: Term, byte: int) -> Term | None:
        classes, text, context = term.args
        if byte == _QUOTE:  # a quote that is part of a key is escaped, and then no language may end before it
            for language, tag in classes:
                if language.nullable:
                    return self.terms.ref(("key", context, tag, text))
        left = [(_target(self._arcs(language), byte), tag) for language, tag in classes]
        kept = [(language, tag) for language, tag in left if language is not None]
        more = None if text is None else text + bytes([byte])
        return self.terms.capture(kept, more, context) if kept else None

    def _step_under_and(self, term: Term, byte: int) -> Term | None:
        if term.kind is Kind.NOT or not term.captures:
            return _target(tuple(self._arcs_under_and(term)), byte)
        return self._step(term, byte)

    def _remembered(self, term: Term, byte: int) -> Term | None:
        item, text, context, tag = term.args
        if byte == _COMMA and item.nullable:  # a comma inside an item never follows a whole one
            following = self.terms.ref(("item", context, tag, text))
            return following if self.is_live(self.terms.resolved(following)) else None
        reached = self._step(item, byte)
        if reached is None or not self.is_live(reached):
            return None
        return self.terms.item(reached, None if text is None else text + bytes([byte]), context, tag)

    def run(self, state: Term | None, data: bytes) -> Term | None:
        """The state after these bytes, or None where one of them is illegal."""
        for byte in data:
            if state is None:
                return None
            state = self.step(state, byte)
        return state

    def arcs(self, state: Term) -> Arcs:
        """Live arcs of a state. Masks are disjoint.

        Raises:
            ConstraintError: the state holds more than `MAX_PARALLEL` configurations, or takes more than `MASK_STEPS`.
        """
        arcs = state.arcs
        if arcs is None:
            with self.lock, self.terms.work.limited(MASK_STEPS):
                self._prepare(state)
                arcs = self._arcs(state)
        return arcs

    def _prepare(self, state: Term) -> None:
        """The arcs of the parts that `state` begins with, innermost first: the stacks of an ambiguous grammar nest."""
        pending, seen = [state], {state}
        while pending:
            term = pending[-1]
            parts = [part for part in self._beginning(term) if part.arcs is None and part not in seen]
            if parts:
                seen.update(parts)
                pending += parts
            else:
                self._arcs(pending.pop())

    def _beginning(self, term: Term) -> Sequence[Term]:
        """The parts whose arcs a term's own are made of, where they can nest."""
        match term.kind:
            case Kind.CAT:
                parts = []
                while term.kind is Kind.CAT:
                    head, term = term.args
                    parts.append(head)
                    if not head.nullable:
                        return parts
                return [*parts, term]
            case Kind.ALT:
                return term.args
            case Kind.REPEAT:
                return term.args[:1]
        return ()

    def loose_arcs(self, state: Term) -> Arcs:
        """As `arcs`, but keys are not remembered: a key that the same walk has written may come twice."""
        if not state.captures:
            return self.arcs(state)
        arcs = self._loose.get(state)
        if arcs is None:
            with self.lock:
                raw = self._raw_arcs(state, self.loose_arcs)
                arcs = tuple((mask, target) for mask, target in raw if self.is_live(target))
                self._loose[state] = arcs
        return arcs

    def possible_arcs(self, state: Term) -> list[tuple[int, Term]]:
        """As `arcs`, but some may lead nowhere; the caller holds the lock."""
        return list(state.arcs) if state.arcs is not None else self._raw_arcs(state, self._arcs)

    def is_live(self, term: Term) -> bool:
        """Whether the language is not empty."""
        if term.is_plain:
            return term.kind is not Kind.EMPTY
        with self.lock:
            return self._is_live(term)

    # -- derivatives ----------------------------------------------------------------------------------

    def _arcs(self, term: Term) -> Arcs:
        if term.arcs is None:
            raw = self._raw_arcs(term, self._arcs)
            term.arcs = tuple((mask, target) for mask, target in raw if target.is_plain or self._is_live(target))
        return term.arcs

    def _raw_arcs(self, term: Term, arcs_of_part: Callable[[Term], Arcs]) -> list[tuple[int, Term]]:
        terms = self.terms
        match term.kind:
            case Kind.ATOM:
                found = arcs_of(term.args[0])
                return [(mask, terms.epsilon if node is None else terms.atom(node)) for mask, node in found]
            case Kind.CAT:
                return self._cat_arcs(term, arcs_of_part)
            case Kind.ALT:
                if len(term.args) > MAX_PARALLEL:
                    raise ConstraintError(f"more than {MAX_PARALLEL} configurations at once: simplify the repeats")
                return self._union([arcs_of_part(one) for one in term.args])
            case Kind.REPEAT:
                body, low, high = term.args
                rest = terms.repeat(body, max(low - 1, 0), None if high is None else high - 1)
                return _joined((mask, terms.cat(target, rest)) for mask, target in arcs_of_part(body))
            case Kind.AND:
                return self._product([self._arcs_under_and(one) for one in term.args])
            case Kind.NOT:
                return self._arcs_under_and(term)
            case Kind.MACHINE:
                machine, state = term.args
                return [(mask, terms.machine(machine, target)) for mask, target in machine.arcs(state)]
            case Kind.CAPTURE:
                return self._capture_arcs(term)
            case Kind.ITEM:
                return self._item_arcs(term, arcs_of_part)
            case Kind.REF:
                return list(arcs_of_part(terms.resolved(term)))
        return []

    def _capture_arcs(self, term: Term) -> list[tuple[int, Term]]:
        classes, _, context = term.args
        parts: list[tuple[int, list[tuple[Term, Hashable]]]] = []
        found = []
        for language, tag in classes:
            parts = _refined(parts, [(mask, (target, tag)) for mask, target in self._arcs(language)])
            if language.nullable:
                found.append((1 << _QUOTE, self.terms.ref(("key", context, tag, None))))
        return found + [(mask, self.terms.capture(kept, None, context)) for mask, kept in parts]

    def _item_arcs(self, term: Term, arcs_of_part: Callable[[Term], Arcs]) -> list[tuple[int, Term]]:
        item, _, context, tag = term.args
        found = [(mask, self.terms.item(target, None, context, tag)) for mask, target in arcs_of_part(item)]
        if item.nullable:
            found.append((1 << _COMMA, self.terms.ref(("item", context, tag, None))))
        return found

    def _cat_arcs(self, term: Term, arcs_of_part: Callable[[Term], Arcs]) -> list[tuple[int, Term]]:
        parts = []
        while term.kind is Kind.CAT:
            head, tail = term.args
            parts.append([(mask, self.terms.cat(target, tail)) for mask, target in arcs_of_part(head)])
            if not head.nullable:
                return parts[0] if len(parts) == 1 else self._union(parts)
            term = tail
        parts.append(list(arcs_of_part(term)))
        return self._union(parts)

    def _union(self, lists: Sequence[Iterable[tuple[int, Term]]]) -> list[tuple[int, Term]]:
        by_mask: dict[int, list[Term]] = {}  # many names begin with one letter: equal masks are joined at once
        for arcs in lists:
            for mask, target in arcs:
                by_mask.setdefault(mask, []).append(target)
        parts: list[tuple[int, list[list[Term]]]] = _refined([], by_mask.items())
        self.terms.work.spend(len(parts) // 4)
        return _joined((mask, self.terms.alt(chain.from_iterable(found))) for mask, found in parts)

    def _product(self, lists: list[list[tuple[int, Term]]]) -> list[tuple[int, Term]]:
        parts: list[tuple[int, list[Term]]] = [(mask, [target]) for mask, target in lists[0]]
        for arcs in lists[1:]:
            parts = [
                (mask & other, [*targets, target]) for mask, targets in parts for other, target in arcs if mask & other
            ]
        self.terms.work.spend(len(parts) + sum(map(len, lists)) // 16)
        return _joined((mask, self.terms.both(targets)) for mask, targets in parts)

    def _arcs_under_and(self, term: Term) -> list[tuple[int, Term]]:
        """Arcs of an operand; those of a complement keep every byte, the rest of which leads to everything."""
        if term.kind is not Kind.NOT:
            return list(self._arcs(term))
        arcs = []
        left = _ALL_BYTES
        for mask, target in self._arcs(term.args[0]):
            arcs.append((mask, self.terms.without(target)))
            left &= ~mask
        if left:
            arcs.append((left, self.terms.without(self.terms.empty)))
        return arcs

    # -- liveness -------------------------------------------------------------------------------------

    def _is_live(self, term: Term) -> bool:
        if term.is_plain:
            return term.kind is not Kind.EMPTY
        if term.is_live is None:
            match term.kind:
                case Kind.CAT:
                    self._settle_spine(term)
                case Kind.ALT:
                    term.is_live = any(self._is_live(one) for one in term.args)
                case Kind.REPEAT:
                    term.is_live = term.nullable or self._is_live(term.args[0])
                case _:
                    self._explore(term)
        return bool(term.is_live)

    def _settle_spine(self, term: Term) -> None:
        """A long text is a chain of pairs: walked, since there may be more of them than calls can be nested."""
        spine = []
        while term.kind is Kind.CAT and not term.is_plain and term.is_live is None:
            spine.append(term)
            term = term.args[1]
        is_live = self._is_live(term)
        for pair in reversed(spine):
            is_live = pair.is_live = is_live and self._is_live(pair.args[0])

    def _explore(self, start: Term) -> None:
        """Breadth first for a text of an intersection; settles every state on the way to it, or all."""
        parents: dict[Term, Term | None] = {start: None}
        queue = deque([start])
        while queue:
            term = queue.popleft()
            if term.nullable or (term.is_live if term.is_live is not None else self._is_settled_live(term)):
                step: Term | None = term
                while step is not None:
                    step.is_live = True
                    step = parents[step]
                return
            if term.is_live is False:
                continue
            for _, target in self._raw_arcs(term, self._arcs):
                if target not in parents:
                    parents[target] = term
                    queue.append(target)
            if len(parents) > MAX_EXPLORED:
                raise ConstraintError(
                    f"more than {MAX_EXPLORED} states to decide whether parts of this constraint contradict each "
                    "other: simplify its patterns or lower its length bounds"
                )
        for term in parents:
            if term.kind in (Kind.AND, Kind.NOT):
                term.is_live = False

    def _is_settled_live(self, term: Term) -> bool:
        return term.kind not in (Kind.AND, Kind.NOT) and self._is_live(term)


def _joined(pairs: Iterable[tuple[int, Term]]) -> list[tuple[int, Term]]:
    """Arcs to one target become one arc; arcs to the empty language go."""
    masks: dict[Term, int] = {}
    for mask, target in pairs:
        if target.kind is not Kind.EMPTY:
            masks[target] = masks.get(target, 0) | mask
    return [(mask, target) for target, mask in masks.items()]


def _target(arcs: Arcs, byte: int) -> Term | None:
    for mask, target in arcs:
        if mask >> byte & 1:
            return target
    return None


def _refined(parts: list[tuple[int, list[Any]]], arcs: Iterable[tuple[int, Any]]) -> list[tuple[int, list[Any]]]:
    """Splits the parts so that each arc's mask is a union of parts, and adds its target to those."""
    for mask, target in arcs:
        refined = []
        for part, targets in parts:
            inside = part & mask if mask else 0
            if not inside:
                refined.append((part, targets))
                continue
            mask ^= inside
            if inside != part:
                refined.append((part ^ inside, targets))
            refined.append((inside, [*targets, target]))
        if mask:
            refined.append((mask, [target]))
        parts = refined
    return parts
