"""From goals to JSON text: the terms of values, built when they are first reached.

    value     Ref("value", goal) → null | true | "…" | 1 | [ … ] | { … }
    object    Ref("object", plan, state)      `schema_objects`
    array     Ref("array", shape, state)      `schema_arrays`

Constants and names are written as JSON writers write them; free strings may use any escape.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import groupby
from typing import Any

from forktree.backend.grammar.choices import any_of
from forktree.backend.grammar.schema_arrays import ArrayWriter, goals_of
from forktree.backend.grammar.schema_meaning import Interpreter
from forktree.backend.grammar.schema_objects import ObjectWriter
from forktree.backend.grammar.schema_plans import ObjectPlan, finite_texts, plan_of
from forktree.backend.grammar.schema_shapes import (
    NEVER,
    Arrays,
    Goal,
    Meaning,
    Numbers,
    Objects,
    Strings,
    item_goal,
)
from forktree.backend.grammar.schema_values import ValueSpeller
from forktree.backend.grammar.substrings import written_pieces
from forktree.backend.grammar.terms import ITEMS, KEYS, Term, Terms
from forktree.lang.errors import ConstraintError

MAX_GOALS = 100_000


class Writer:
    """Terms of the JSON texts of one schema."""

    def __init__(self, interpreter: Interpreter, *, max_blanks: int, any_order: bool) -> None:
        self.interpreter = interpreter
        self.derivatives = interpreter.derivatives
        self.terms: Terms = interpreter.terms
        blanks = self.terms.byte(1 << 0x20 | 1 << 0x0A | 1 << 0x0D | 1 << 0x09)
        self.blanks = self.terms.repeat(blanks, 0, max_blanks)
        self.objects = ObjectWriter(self, any_order=any_order)
        self.speller = ValueSpeller(self.terms, self.blanks, self.escaped_char, interpreter.numbers.text)
        self.arrays = ArrayWriter(self)
        self._plans: dict[Objects, ObjectPlan] = {}
        self._live: set[Goal] = set()

    def start(self, root: Goal) -> Term:
        """The term of whole texts.

        Raises:
            ConstraintError: nothing satisfies the schema, or a part of it cannot be enforced.
        """
        self._settle(root)
        if root not in self._live:
            raise ConstraintError("nothing can satisfy this schema", pointer=self._culprit(root))
        return self.terms.cats([self.blanks, self.value(root), self.blanks])

    def meaning(self, goal: Goal) -> Meaning:
        return self.interpreter.meaning(goal)

    def is_met(self, goal: Goal) -> bool:
        """Whether some value meets the goal."""
        return goal in self._live

    # -- which goals can be met -----------------------------------------------------------------------

    def _settle(self, root: Goal) -> None:
        """Finds every goal in reach and which of them something satisfies: the least fixpoint."""
        users: dict[Goal, list[Goal]] = {root: []}
        pending = [root]
        while pending:
            goal = pending.pop()
            for child in self._located(goal):
                if child not in users:
                    users[child] = []
                    pending.append(child)
                users[child].append(goal)
            if len(users) > MAX_GOALS:
                reason = f"the schema combines into more than {MAX_GOALS} subschemas"
                raise ConstraintError(reason, pointer=self.interpreter.pointer_of(goal))
        asked = dict.fromkeys(reversed(users))  # in rounds: who has many children is asked once for all of them
        while asked:
            met = [goal for goal in asked if goal not in self._live and self._is_met_now(goal)]
            asked = dict.fromkeys(user for goal in met for user in users[goal])
        for goal in users:
            self._check_unique(goal)

    def _is_met_now(self, goal: Goal) -> bool:
        is_met = self._has_value(self.meaning(goal))
        if is_met:
            self._live.add(goal)
        return is_met

    def _check_unique(self, goal: Goal) -> None:
        for array in self.meaning(goal).arrays:
            refusal = self.arrays.unique.refusal(array)
            if refusal is not None:
                raise ConstraintError(refusal, pointer=self._pointer(goal, "uniqueItems"))

    def _located(self, goal: Goal) -> list[Goal]:
        """The goals of its children; a refusal that does not say where is this goal's."""
        try:
            return self._children(goal)
        except ConstraintError as error:
            if error.pointer:
                raise
            raise ConstraintError(error.reason, pointer=self.interpreter.pointer_of(goal)) from None

    def _children(self, goal: Goal) -> list[Goal]:
        meaning = self.meaning(goal)
        found = []
        for array in meaning.arrays:
            self.terms.refs_capture |= KEYS | ITEMS if array.unique else 0
            found += goals_of(array)
        for shape in meaning.objects:
            plan = self.plan(shape)
            self.terms.refs_capture |= KEYS if plan.classes else 0
            found += plan.goals()
        return list(dict.fromkeys(found))

    def _has_value(self, meaning: Meaning) -> bool:
        if meaning.strings or meaning.numbers or meaning.booleans or meaning.null:
            return True
        return any(map(self.arrays.is_met, meaning.arrays)) or any(
            self.objects.is_met(self.plan(shape)) for shape in meaning.objects
        )

    def _pointer(self, goal: Goal, keyword: str) -> str:
        pointer = self.interpreter.pointer_of(goal)
        for place in self.interpreter.document.places():
            if isinstance(place.schema, dict) and keyword in place.schema and place.pointer.startswith(pointer):
                return f"{place.pointer}/{keyword}"
        return pointer

    def _culprit(self, root: Goal) -> str:
        """The deepest place that makes the whole unsatisfiable, as far as it is plain to see."""
        goal, seen = root, {root}
        while True:
            dead = [child for child in self._needed(goal) if child not in self._live and child not in seen]
            if not dead:
                return self.interpreter.pointer_of(goal)
            goal = dead[0]
            seen.add(goal)

    def _needed(self, goal: Goal) -> list[Goal]:
        meaning = self.meaning(goal)
        found = []
        for array in meaning.arrays:
            found += [item_goal(array, at) for at in range(min(array.low, len(array.prefix) + 1))]
        for shape in meaning.objects:
            found += [name.goal for name in self.plan(shape).names if name.is_required]
        return [child for child in found if child != NEVER and self.interpreter.pointer_of(child)]

    def plan(self, shape: Objects) -> ObjectPlan:
        found = self._plans.get(shape)
        if found is None:
            found = self._plans[shape] = plan_of(shape, self.interpreter)
        return found

    # -- texts ----------------------------------------------------------------------------------------

    def value(self, goal: Goal) -> Term:
        return self.terms.ref(("value", goal))

    def resolve(self, key: Hashable) -> Term:
        """The term that a reference stands for."""
        parts: Any = key
        match parts:
            case ("value", goal):
                return self._value(goal)
            case ("object", plan, state):
                return self.objects.rest(plan, state)
            case ("key", (ObjectPlan() as plan,), tag, text):
                return self.objects.after_key(plan, tag, text)
            case ("array", shape, state):
                return self.arrays.rest(shape, state)
            case ("unique", shape, state):
                return self.arrays.unique.rest(shape, state)
            case ("key", ("item", Arrays() as shape), state, text):
                return self.arrays.unique.after_text(shape, state, text)
            case ("item", Arrays() as shape, after, text):
                return self.arrays.unique.after_item(shape, after, text)
            case ("members", left, is_first):
                return self.speller.members(left, is_first)
        raise AssertionError(f"no such reference: {key!r}")

    def _value(self, goal: Goal) -> Term:
        meaning = self.meaning(goal)
        literal = self.terms.literal
        options = [literal("true" if value else "false") for value in sorted(meaning.booleans)]
        if meaning.null:
            options.append(literal("null"))
        options += map(self.shape_text, (*meaning.strings, *meaning.numbers))
        options += [self.arrays.text(shape) for shape in meaning.arrays if self.arrays.is_met(shape)]
        plans = map(self.plan, meaning.objects)
        options += [self.objects.start(plan) for plan in plans if self.objects.is_met(plan)]
        return self.terms.alt(options)

    def shape_text(self, shape: Strings | Numbers) -> Term:
        """The texts of the values of a scalar shape."""
        if isinstance(shape, Strings):
            quote = self.terms.literal('"')
            body = (
                written_pieces(self.terms, self.language(shape))
                if shape.only is None
                else any_of(self.terms, shape.only, self.name_char)
            )
            return self.terms.cats([quote, body, quote])
        return self.interpreter.numbers.text(shape)

    def language(self, shape: Strings) -> Term:
        return self.interpreter.algebra.language(shape)

    def texts_of(self, shape: Strings) -> list[str] | None:
        """All texts of a shape, or None where they are endless or too many to list."""
        if shape.only is not None:
            return sorted(shape.only)
        if shape.base is self.interpreter.algebra.any_body:
            return None
        return finite_texts(self.language(shape), self.interpreter)

    def has_endless_keys(self, shape: Objects) -> bool:
        """Whether objects of this shape may differ in endlessly many keys."""
        plan = self.plan(shape)
        num_required = sum(name.is_required for name in plan.names)
        return (plan.high is None or plan.high > num_required) and any(self.is_met(one.goal) for one in plan.classes)

    def name_text(self, text: str) -> Term:
        """A constant or a name, as JSON writers write it."""
        runs = [list(run) for _, run in groupby(text, key=_is_plain)]
        terms = []
        for run in runs:
            terms += [self.terms.literal("".join(run))] if _is_plain(run[0]) else map(self.escaped_char, run)
        return self.terms.cats(terms)

    def name_char(self, char: str) -> Term:
        """One character of a constant or a name, as JSON writers write it."""
        return self.terms.literal(char) if _is_plain(char) else self.escaped_char(char)

    def escaped_char(self, char: str) -> Term:
        return self.interpreter.algebra.escaped_char(char)


def _is_plain(char: str) -> bool:
    return " " <= char <= "~" and char not in '"\\'
