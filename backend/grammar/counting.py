"""Counts that no token can use up: states that differ in nothing else share one mask.

A token of `longest` bytes runs through at most `longest` rounds of a repeat. From a state whose repeat still has
more rounds to go than that, it makes no difference how many, nor whether there is an upper bound at all.
"""

from __future__ import annotations

from forktree.backend.grammar.terms import Kind, Term, Terms

_MAX_SPINE = 256
_MAX_DEPTH = 12


def clipped(terms: Terms, state: Term, longest: int) -> Term:
    """The state with every count above `longest` replaced by `longest + 1`, or by no bound.

    A captured key is forgotten, which is what a walk for a mask does anyway.
    Counts inside an intersection stay: there they also decide what is legal later. So do counts below many nested
    alternatives, which the stacks of an ambiguous grammar are.
    """
    return _Clip(terms, longest).of(state, 0)


def unbounded(terms: Terms, state: Term, longest: int) -> Term:
    """The state with every upper count above `longest` gone; what it takes to end an output stays the same."""
    return _Unbound(terms, longest).of(state, 0)


class _Clip:
    """One state's clipping: parts that many stacks share are clipped once."""

    def __init__(self, terms: Terms, longest: int) -> None:
        self._terms = terms
        self._longest = longest
        self._known: dict[Term, Term] = {}

    def of(self, state: Term, depth: int) -> Term:
        match state.kind:
            case Kind.REPEAT:
                return self._repeat(state)
            case Kind.ALT | Kind.CAT if depth < _MAX_DEPTH:
                if state not in self._known:
                    self._known[state] = (
                        self._alt(state, depth) if state.kind is Kind.ALT else self._spine(state, depth)
                    )
                return self._known[state]
            case Kind.CAPTURE if state.args[1] is not None:
                return self._terms.capture(state.args[0], None, state.args[2])
            case Kind.ITEM if state.args[1] is not None:
                item, _, context, tag = state.args
                return self._terms.item(item, None, context, tag)
        return state

    def _repeat(self, state: Term) -> Term:
        body, low, high = state.args
        least = min(low, self._longest + 1)
        most = None if high is None or high > self._longest else high
        return state if (least, most) == (low, high) else self._terms.repeat(body, least, most)

    def _alt(self, state: Term, depth: int) -> Term:
        if not state.is_plain:
            return state
        parts = [self.of(one, depth + 1) for one in state.args]
        return self._terms.alt(parts) if any(a is not b for a, b in zip(parts, state.args, strict=True)) else state

    def _spine(self, state: Term, depth: int) -> Term:
        heads = []
        rest = state
        changed = False
        while rest.kind is Kind.CAT and len(heads) < _MAX_SPINE:
            head, rest = rest.args
            short = self.of(head, depth + 1)
            changed = changed or short is not head
            heads.append(short)
        last = self.of(rest, depth + 1) if rest.kind is not Kind.CAT else rest
        if not changed and last is rest:
            return state
        heads.append(last)
        return self._terms.cats(heads)


class _Unbound(_Clip):
    """Lower counts stay: they say what is still to be written."""

    def _repeat(self, state: Term) -> Term:
        body, low, high = state.args
        if high is None or high <= max(low, self._longest):
            return state
        return self._terms.repeat(body, low, None)
