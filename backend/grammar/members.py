"""What the members that may come next in an object lead to, read off their terms (`schema_objects` makes them).

A search for a shortest text asks: which of them need not be tried first, whatever the object still needs?
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import NamedTuple

from forktree.backend.grammar.schema_objects import ObjectState
from forktree.backend.grammar.schema_plans import ObjectPlan
from forktree.backend.grammar.terms import Kind, Term


class _Member(NamedTuple):
    """A member of an object of `plan`; behind it the object may be in any of `states`."""

    plan: ObjectPlan
    states: tuple[ObjectState, ...]
    is_named: bool


def is_detour(term: Term) -> bool:
    """Whether it is one more key of an object that needs names and not this key: it needs them behind it too.

    Without this a search goes down key after key, each a state of its own, before it tries a long required value.
    """
    if term.kind is not Kind.CAPTURE or term.args[1]:
        return False
    member = _member(term)
    return member is not None and all(_needs_only_names(member.plan, after) for after in member.states)


def _needs_only_names(plan: ObjectPlan, after: ObjectState) -> bool:
    has_more = after.count > plan.low and not after.pending
    return has_more and any(name.is_required for _, name in after.names_left(plan.names))


def due(arms: Sequence[Term]) -> Term | None:
    """Where members may come in any order, one that is required and that some shortest text begins with; else None.

    With no demand open a member costs the same wherever it stands, and the members of a legal object are legal in
    every order. A shortest text has all that are required, so that it may as well begin with any of those. Without
    this a search visits every set of the required names.
    """
    members = [_member(arm) for arm in arms]
    known = [member for member in members if member is not None]
    plan, states = known[0].plan if known else None, [after for member in known for after in member.states]
    if len(known) < len(arms) or any(member.plan is not plan for member in known) or any(s.pending for s in states):
        return None
    before = reduce(and_, (after.done for after in states))
    added = {member.states[0].done ^ before: arm for member, arm in zip(known, arms, strict=True) if member.is_named}
    if len(added) < sum(member.is_named for member in known) or any(bits.bit_count() != 1 for bits in added):
        return None  # they are not the next members of one state in any order
    assert plan is not None
    required = [bits for bits in added if plan.names[bits.bit_length() - 1].is_required]
    return added[min(required)] if required else None


def _member(term: Term) -> _Member | None:
    if term.kind is Kind.CAPTURE:
        match term.args[2].context:
            case (ObjectPlan() as plan,):
                return _Member(plan, tuple(after for _, tag in term.args[0] for _, after in tag), is_named=False)
        return None
    while term.kind is Kind.CAT:
        term = term.args[1]
    if term.kind is Kind.REF:
        match term.args[0]:
            case ("object", ObjectPlan() as plan, ObjectState() as state):
                return _Member(plan, (state,), is_named=True)
    return None
