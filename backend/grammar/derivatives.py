"""Derivatives over a term arena: arcs by byte, dead ends pruned, states made when first visited.

A state is a `Term`. `arcs(state)` lists `(byte mask, next state)` with disjoint masks, only for bytes after which
some legal output remains. Shared by every matcher of a constraint, on any thread: one lock guards the arena.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from forktree.backend.grammar.characters import arcs_of
from forktree.backend.grammar.terms import Kind, Term, Terms
from forktree.lang.errors import ConstraintError

Arcs = tuple[tuple[int, Term], ...]

MAX_EXPLORED = 200_000
MAX_PARALLEL = 20_000
_ALL_BYTES = (1 << 256) - 1


class Derivatives:
    """The transitions between the terms of one arena."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.lock = threading.RLock()

    def step(self, state: Term, byte: int) -> Term | None:
        """The state after one byte, or None where the byte is illegal."""
        for mask, target in self.arcs(state):
            if mask >> byte & 1:
                return target
        return None

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
            ConstraintError: the state holds more than `MAX_PARALLEL` configurations.
        """
        arcs = state.arcs
        if arcs is None:
            with self.lock:
                arcs = self._arcs(state)
        return arcs

    def is_live(self, term: Term) -> bool:
        """Whether the language is not empty."""
        if term.is_plain:
            return term.kind is not Kind.EMPTY
        with self.lock:
            return self._is_live(term)

    # -- derivatives ----------------------------------------------------------------------------------

    def _arcs(self, term: Term) -> Arcs:
        if term.arcs is None:
            raw = self._raw_arcs(term)
            term.arcs = tuple((mask, target) for mask, target in raw if target.is_plain or self._is_live(target))
        return term.arcs

    def _raw_arcs(self, term: Term) -> list[tuple[int, Term]]:
        terms = self.terms
        match term.kind:
            case Kind.ATOM:
                return [
                    (mask, terms.epsilon if node is None else terms.atom(node)) for mask, node in arcs_of(term.args[0])
                ]
            case Kind.CAT:
                return self._cat_arcs(term)
            case Kind.ALT:
                if len(term.args) > MAX_PARALLEL:
                    raise ConstraintError(f"more than {MAX_PARALLEL} configurations at once: simplify the repeats")
                return self._union([self._arcs(one) for one in term.args])
            case Kind.REPEAT:
                body, low, high = term.args
                rest = terms.repeat(body, max(low - 1, 0), None if high is None else high - 1)
                return _joined((mask, terms.cat(target, rest)) for mask, target in self._arcs(body))
            case Kind.AND:
                return self._product([self._arcs_under_and(one) for one in term.args])
            case Kind.NOT:
                return self._arcs_under_and(term)
            case Kind.MACHINE:
                machine, state = term.args
                return [(mask, terms.machine(machine, target)) for mask, target in machine.arcs(state)]
            case Kind.REF:
                return list(self._arcs(terms.resolved(term)))
        return []

    def _cat_arcs(self, term: Term) -> list[tuple[int, Term]]:
        parts = []
        while term.kind is Kind.CAT:
            head, tail = term.args
            parts.append([(mask, self.terms.cat(target, tail)) for mask, target in self._arcs(head)])
            if not head.nullable:
                return parts[0] if len(parts) == 1 else self._union(parts)
            term = tail
        parts.append(list(self._arcs(term)))
        return self._union(parts)

    def _union(self, lists: list[list[tuple[int, Term]]] | list[Arcs]) -> list[tuple[int, Term]]:
        parts: list[tuple[int, list[Term]]] = []
        for arcs in lists:
            parts = _refined(parts, arcs)
        return _joined((mask, self.terms.alt(targets)) for mask, targets in parts)

    def _product(self, lists: list[list[tuple[int, Term]]]) -> list[tuple[int, Term]]:
        parts: list[tuple[int, list[Term]]] = [(mask, [target]) for mask, target in lists[0]]
        for arcs in lists[1:]:
            parts = [
                (mask & other, [*targets, target]) for mask, targets in parts for other, target in arcs if mask & other
            ]
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
                    term.is_live = self._is_live(term.args[0]) and self._is_live(term.args[1])
                case Kind.ALT:
                    term.is_live = any(self._is_live(one) for one in term.args)
                case Kind.REPEAT:
                    term.is_live = term.nullable or self._is_live(term.args[0])
                case _:
                    self._explore(term)
        return bool(term.is_live)

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
            for _, target in self._raw_arcs(term):
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


def _refined(parts: list[tuple[int, list[Term]]], arcs: Iterable[tuple[int, Term]]) -> list[tuple[int, list[Term]]]:
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
