"""The texts of objects: which members may come next, and what follows them.

A state says how many of the names were passed (or, in any order, which were used), how many members were written,
which other keys were used, and which demands for some property are still open. With `order="schema"` the named keys
come in schema order and the others after them, in any order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from forktree.backend.grammar.choices import any_of
from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.schema_plans import KeyClass, Name, ObjectPlan, subsets
from forktree.backend.grammar.schema_shapes import NEVER, Goal
from forktree.backend.grammar.terms import Term, Terms


class ObjectState(NamedTuple):
    """`done` has a bit for each name that was used of those that come in any order: one number, not a set a state."""

    at: int = 0
    count: int = 0
    used: frozenset[str] = frozenset()
    pending: frozenset[int] = frozenset()
    done: int = 0

    def names_left(self, names: Sequence[Name]) -> Iterator[tuple[int, Name]]:
        """The names that may still come, with their places."""
        for index in range(self.at, len(names)):
            if not self.done >> index & 1:
                yield index, names[index]

    def left(self, names: int) -> int:
        """Of some names, as bits, those that may still come."""
        return (names & ~self.done) >> self.at


def fewest_bytes(plan: ObjectPlan, state: ObjectState) -> int:
    """No object that stands in this state ends with fewer: every name that it still requires has to be written."""
    required = [name for _, name in state.names_left(plan.names) if name.is_required]
    others = max(plan.low - state.count - len(required), 0)
    return sum(len(name.text) + 4 for name in required) + 4 * others + 1


class Values(Protocol):
    """What an object's text needs from the rest of the schema's."""

    terms: Terms
    blanks: Term
    derivatives: Derivatives

    def value(self, goal: Goal) -> Term: ...

    def is_met(self, goal: Goal) -> bool: ...

    def name_text(self, text: str) -> Term: ...

    def escaped_char(self, char: str) -> Term: ...


class _Step(NamedTuple):
    """A member that may come next, and the state after it."""

    member: Name | KeyClass
    goal: Goal
    after: ObjectState


class _Names(NamedTuple):
    """The names of a plan as bits, to count those that are left in a few steps however many there are.

    Attributes:
        required: they have to come.
        met: something meets what their value has to.
        has_class: so does a value of some other key.
    """

    required: int
    met: int
    has_class: bool


class ObjectWriter:
    """Terms of the texts of object plans."""

    def __init__(self, values: Values, *, any_order: bool) -> None:
        self._values = values
        self._terms = values.terms
        self._any_order = any_order
        self._names: dict[ObjectPlan, _Names] = {}

    def start(self, plan: ObjectPlan) -> Term:
        first = ObjectState(pending=frozenset(range(len(plan.some))))
        return self._terms.cat(self._terms.literal("{"), self._ref(plan, first))

    def is_met(self, plan: ObjectPlan) -> bool:
        """Whether some object fits the plan, by what is known to be met now."""
        names = self._names[plan] = self._sorted(plan)
        return self._can_end(plan, ObjectState(pending=frozenset(range(len(plan.some)))), names)

    def _sorted(self, plan: ObjectPlan) -> _Names:
        required = met = 0
        for index, name in enumerate(plan.names):
            required |= int(name.is_required) << index
            met |= int(self._values.is_met(name.goal)) << index
        return _Names(required, met, any(self._values.is_met(one.goal) for one in plan.classes))

    def _ref(self, plan: ObjectPlan, state: ObjectState) -> Term:
        if plan.high is None:
            state = state._replace(count=min(state.count, max(plan.low, 1)))
        return self._terms.ref(("object", plan, state))

    # -- what may come next ---------------------------------------------------------------------------

    def rest(self, plan: ObjectPlan, state: ObjectState) -> Term:
        """What may follow in a state: the end, or another member."""
        terms, blanks = self._terms, self._values.blanks
        options = []
        if self._may_close(plan, state):
            options.append(terms.cat(blanks, terms.literal("}")))
        names = self._names[plan]
        steps = [step for step in self._steps(plan, state) if self._can_end(plan, step.after, names)]
        members = self._members(plan, state, steps)
        if members:
            comma = [terms.literal(","), blanks] if state.count else []
            options.append(terms.cats([blanks, *comma, terms.literal('"'), terms.alt(members)]))
        return terms.alt(options)

    def _may_close(self, plan: ObjectPlan, state: ObjectState) -> bool:
        return state.count >= plan.low and not state.pending and not state.left(self._names[plan].required)

    def _steps(self, plan: ObjectPlan, state: ObjectState) -> Iterator[_Step]:
        if plan.high is not None and state.count >= plan.high:
            return
        num_ordered = 0 if self._any_order else plan.num_ordered
        for index, name in state.names_left(plan.names):
            if index < num_ordered:
                yield from self._choices(plan, state._replace(at=index + 1), name)
                if name.is_required:
                    return
            else:
                yield from self._choices(plan, state._replace(at=num_ordered, done=state.done | 1 << index), name)
        for key_class in plan.classes:
            yield from self._choices(plan, state._replace(at=num_ordered), key_class)

    def _choices(self, plan: ObjectPlan, state: ObjectState, member: Name | KeyClass) -> Iterator[_Step]:
        """The member as it is, and meeting any of the open demands that it may meet; the state knows of its name."""
        for chosen in subsets(member.discharges & state.pending):
            goal = plan.goal_with(member.goal, chosen)
            if goal == NEVER or not self._values.is_met(goal):
                continue
            yield _Step(member, goal, state._replace(count=state.count + 1, pending=state.pending - chosen))

    def _can_end(self, plan: ObjectPlan, state: ObjectState, names: _Names) -> bool:
        """Whether an object that stands in this state can be finished; a class always has another key."""
        if state.pending:
            least = self._least_members(plan, [name for _, name in state.names_left(plan.names)], state.pending)
            if least is None:
                return False
        else:  # the common case, asked for each of many names
            least = state.left(names.required).bit_count()
            if state.left(names.required & ~names.met):
                return False
        if plan.high is not None and state.count + least > plan.high:
            return False
        return names.has_class or state.count + state.left(names.met).bit_count() >= plan.low

    def _least_members(self, plan: ObjectPlan, names: list[Name], pending: frozenset[int]) -> int | None:
        """The fewest members that bring every required name and meet every open demand; None where none do."""
        least = {pending: 0}  # by the demands that are still open
        for name in names:
            if name.is_required:
                least = self._with_member(plan, name, least)
            elif name.discharges & pending:
                least = _least_of(least, self._with_member(plan, name, least))
        for _ in pending:
            for key_class in plan.classes:
                if key_class.discharges & pending:
                    least = _least_of(least, self._with_member(plan, key_class, least))
        return least.get(frozenset())

    def _with_member(
        self, plan: ObjectPlan, member: Name | KeyClass, least: dict[frozenset[int], int]
    ) -> dict[frozenset[int], int]:
        found: dict[frozenset[int], int] = {}
        for pending, count in least.items():
            for chosen in subsets(member.discharges & pending):
                if self._values.is_met(plan.goal_with(member.goal, chosen)):
                    found = _least_of(found, {pending - chosen: count + 1})
        return found

    # -- their texts ----------------------------------------------------------------------------------

    def _members(self, plan: ObjectPlan, state: ObjectState, steps: list[_Step]) -> list[Term]:
        """Keys (after the quote), values and what follows."""
        terms = self._terms
        members = []
        classes: dict[KeyClass, list[_Step]] = {}
        for step in steps:
            if isinstance(step.member, Name):
                key = self._values.name_text(step.member.text)
                value = terms.cat(self._colon(), self._values.value(step.goal))
                members.append(terms.cats([key, terms.literal('"'), value, self._ref(plan, step.after)]))
            else:
                classes.setdefault(step.member, []).append(step)
        if classes:
            captured = self._captured(plan, state, classes)
            if captured is not None:
                members.append(captured)
        return members

    def _captured(self, plan: ObjectPlan, state: ObjectState, classes: dict[KeyClass, list[_Step]]) -> Term | None:
        terms = self._terms
        fresh = []
        for key_class, steps in classes.items():
            language = key_class.language
            if state.used:
                language = terms.both([language, terms.without(self._used_keys(state.used))])
            if self._values.derivatives.is_live(language):
                tag = tuple((step.goal, step.after) for step in steps)
                fresh.append((language, tag))
        return terms.capture(fresh, b"", (plan,)) if fresh else None

    def _used_keys(self, used: frozenset[str]) -> Term:
        return any_of(self._terms, used, self._values.escaped_char)

    def after_key(self, plan: ObjectPlan, tag: tuple[tuple[Goal, ObjectState], ...], text: bytes | None) -> Term:
        """What follows a key of a class; its text is used up from now on."""
        terms = self._terms
        options = []
        for goal, after in tag:
            if text is not None:
                after = after._replace(used=after.used | {json.loads(b'"' + text + b'"')})
            options.append(terms.cat(self._values.value(goal), self._ref(plan, after)))
        return terms.cat(self._colon(), terms.alt(options))

    def _colon(self) -> Term:
        return self._terms.cats([self._values.blanks, self._terms.literal(":"), self._values.blanks])


def _least_of(left: dict[frozenset[int], int], right: dict[frozenset[int], int]) -> dict[frozenset[int], int]:
    return {**left, **{key: min(count, left.get(key, count)) for key, count in right.items()}}
