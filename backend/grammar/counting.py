"""Counts that no token can use up: states that differ in nothing else share one mask.

A token of `longest` bytes runs through at most `longest` rounds of a repeat. From a state whose repeat still has
more rounds to go than that, it makes no difference how many, nor whether there is an upper bound at all.
"""

from __future__ import annotations

from forktree.backend.grammar.terms import Kind, Term, Terms

_MAX_SPINE = 256


def clipped(terms: Terms, state: Term, longest: int) -> Term:
    """The state with every count above `longest` replaced by `longest + 1`, or by no bound.

    A captured key is forgotten, which is what a walk for a mask does anyway.
    Counts inside an intersection stay: there they also decide what is legal later.
    """
    match state.kind:
        case Kind.REPEAT:
            return _clipped_repeat(terms, state, longest)
        case Kind.ALT if state.is_plain:
            parts = [clipped(terms, one, longest) for one in state.args]
            return terms.alt(parts) if any(a is not b for a, b in zip(parts, state.args, strict=True)) else state
        case Kind.CAT:
            return _clipped_spine(terms, state, longest)
        case Kind.CAPTURE if state.args[1] is not None:
            return terms.capture(state.args[0], None, state.args[2])
    return state


def _clipped_repeat(terms: Terms, state: Term, longest: int) -> Term:
    body, low, high = state.args
    least = min(low, longest + 1)
    most = None if high is None or high > longest else high
    return state if (least, most) == (low, high) else terms.repeat(body, least, most)


def _clipped_spine(terms: Terms, state: Term, longest: int) -> Term:
    heads = []
    rest = state
    changed = False
    while rest.kind is Kind.CAT and len(heads) < _MAX_SPINE:
        head, rest = rest.args
        short = clipped(terms, head, longest)
        changed = changed or short is not head
        heads.append(short)
    last = clipped(terms, rest, longest) if rest.kind is not Kind.CAT else rest
    if not changed and last is rest:
        return state
    heads.append(last)
    return terms.cats(heads)
