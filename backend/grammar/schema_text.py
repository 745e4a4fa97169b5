"""From goals to JSON text: the terms of values, built when they are first reached.

    value     Ref(goal) → null | true | "…" | 1 | [ … ] | { … }
    object    Ref(plan, i, n) is what may follow once the first i names were passed and n were written

Names come in the order in which the schema lists them. Constants and names are written as JSON writers write
them; free strings may use any escape.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from forktree.backend.grammar.choices import any_of
from forktree.backend.grammar.decimals import plain
from forktree.backend.grammar.schema_meaning import Interpreter
from forktree.backend.grammar.schema_shapes import (
    ANYTHING,
    NEVER,
    Arrays,
    Goal,
    Meaning,
    Numbers,
    Objects,
    Strings,
    item_goal,
)
from forktree.backend.grammar.terms import Term, Terms
from forktree.lang.errors import ConstraintError

MAX_GOALS = 100_000


class Name(NamedTuple):
    """A key that the schema names, in order."""

    text: str
    goal: Goal
    is_required: bool


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """An object shape, its names in order."""

    names: tuple[Name, ...]
    low: int
    high: int | None


class Writer:
    """Terms of the JSON texts of one schema.

    Raises, when made:
        ConstraintError: nothing satisfies the schema, or a part of it cannot be enforced.
    """

    def __init__(self, interpreter: Interpreter, max_blanks: int) -> None:
        self.interpreter = interpreter
        self.terms: Terms = interpreter.terms
        blanks = self.terms.byte(1 << 0x20 | 1 << 0x0A | 1 << 0x0D | 1 << 0x09)
        self.blanks = self.terms.repeat(blanks, 0, max_blanks)
        self._plans: dict[Objects, ObjectPlan] = {}
        self._live: set[Goal] = set()
        self._memo: dict[Goal, Term] = {}

    def start(self, root: Goal) -> Term:
        """The term of whole texts."""
        self._settle(root)
        if root not in self._live:
            raise ConstraintError("nothing can satisfy this schema", pointer=self._culprit(root))
        return self.terms.cats([self.blanks, self.value(root), self.blanks])

    # -- which goals can be met -----------------------------------------------------------------------

    def _settle(self, root: Goal) -> None:
        """Finds every goal in reach and which of them something satisfies: the least fixpoint."""
        users: dict[Goal, list[Goal]] = {root: []}
        pending = [root]
        while pending:
            goal = pending.pop()
            for child in self._children(self.interpreter.meaning(goal)):
                if child not in users:
                    users[child] = []
                    pending.append(child)
                users[child].append(goal)
            if len(users) > MAX_GOALS:
                raise ConstraintError(f"the schema combines into more than {MAX_GOALS} subschemas")
        pending = list(users)
        while pending:
            goal = pending.pop()
            if goal not in self._live and self._is_met(self.interpreter.meaning(goal)):
                self._live.add(goal)
                pending += users[goal]

    def _children(self, meaning: Meaning) -> list[Goal]:
        found = []
        for array in meaning.arrays:
            if array.contains or array.unique is not None:
                what = "contains" if array.contains else "uniqueItems"
                raise ConstraintError(f"{what} is not supported", pointer=self._pointer(what))
            found += [*array.prefix, array.rest]
        for shape in meaning.objects:
            found += [name.goal for name in self.plan(shape).names]
        return [goal for goal in found if goal != NEVER]

    def _is_met(self, meaning: Meaning) -> bool:
        if meaning.strings or meaning.numbers or meaning.booleans or meaning.null:
            return True
        return any(map(self._array_is_met, meaning.arrays)) or any(
            self._object_is_met(self.plan(shape)) for shape in meaning.objects
        )

    def _array_is_met(self, shape: Arrays) -> bool:
        most = self._most_items(shape)
        return most is None or most >= shape.low

    def _most_items(self, shape: Arrays) -> int | None:
        """The most items an array can have, as far as is known."""
        for at, goal in enumerate(shape.prefix):
            if goal not in self._live:
                return at if shape.high is None else min(at, shape.high)
        if shape.rest not in self._live:
            return len(shape.prefix) if shape.high is None else min(len(shape.prefix), shape.high)
        return shape.high

    def _object_is_met(self, plan: ObjectPlan) -> bool:
        live = [name for name in plan.names if name.goal in self._live]
        num_required = sum(name.is_required for name in plan.names)
        if any(name.is_required and name.goal not in self._live for name in plan.names):
            return False
        return len(live) >= plan.low and (plan.high is None or num_required <= plan.high)

    def _pointer(self, keyword: str) -> str:
        for place in self.interpreter.document.places():
            if isinstance(place.schema, dict) and keyword in place.schema:
                return f"{place.pointer}/{keyword}"
        return ""

    def _culprit(self, root: Goal) -> str:
        """The deepest place that alone makes the whole unsatisfiable, as far as it is plain to see."""
        goal, seen = root, {root}
        while True:
            meaning = self.interpreter.meaning(goal)
            dead = [child for child in self._needed(meaning) if child not in self._live and child not in seen]
            if not dead:
                return self.interpreter.pointer_of(goal)
            goal = dead[0]
            seen.add(goal)

    def _needed(self, meaning: Meaning) -> list[Goal]:
        found = []
        for array in meaning.arrays:
            found += [item_goal(array, at) for at in range(min(array.low, len(array.prefix) + 1))]
        for shape in meaning.objects:
            found += [name.goal for name in self.plan(shape).names if name.is_required]
        return [goal for goal in found if self.interpreter.pointer_of(goal)]

    # -- values ---------------------------------------------------------------------------------------

    def value(self, goal: Goal) -> Term:
        return self.terms.ref(("value", goal))

    def resolve(self, key: Hashable) -> Term:
        match key:
            case ("value", goal):
                return self._value(goal)  # type: ignore[arg-type]
            case ("object", plan, int(at), int(count)):
                return self._after_names(plan, at, count)  # type: ignore[arg-type]
        raise AssertionError(f"no such reference: {key!r}")

    def _value(self, goal: Goal) -> Term:
        meaning = self.interpreter.meaning(goal)
        literal = self.terms.literal
        options = [literal("true" if value else "false") for value in sorted(meaning.booleans)]
        if meaning.null:
            options.append(literal("null"))
        options += map(self._string, meaning.strings)
        options += map(self._number, meaning.numbers)
        options += [self._array(shape) for shape in meaning.arrays if self._array_is_met(shape)]
        plans = map(self.plan, meaning.objects)
        options += [self._object(plan) for plan in plans if self._object_is_met(plan)]
        return self.terms.alt(options)

    def _string(self, shape: Strings) -> Term:
        quote = self.terms.literal('"')
        body = shape.term if shape.only is None else any_of(self.terms, shape.only, self.name_char)
        return self.terms.cats([quote, body, quote])

    def name_char(self, char: str) -> Term:
        """One character of a constant or a name, as JSON writers write it."""
        if " " <= char <= "~" and char not in '"\\':
            return self.terms.literal(char)
        return self.interpreter.escaped_char(char)

    def _number(self, shape: Numbers) -> Term:
        if shape.only is not None:
            return any_of(self.terms, (text for value in shape.only for text in _spellings(value)))
        numbers = self.interpreter.numbers
        if not shape.is_integer:
            return shape.term
        return numbers.integer if shape.term is numbers.whole_valued else self.terms.both([shape.term, numbers.integer])

    def _array(self, shape: Arrays) -> Term:
        terms = self.terms
        close = terms.cat(self.blanks, terms.literal("]"))
        size, most = len(shape.prefix), self._most_items(shape)
        comma = terms.cats([self.blanks, terms.literal(","), self.blanks])

        def after(at: int) -> Term:
            """What follows `at` items, all of the prefix among them."""
            if most is not None and at >= most:
                return close
            item = terms.cat(comma, self.value(shape.rest))
            more = terms.repeat(item, max(shape.low - at, 0), None if most is None else most - at)
            return terms.cat(more, close)

        start = size if most is None else min(size, most)
        term = after(max(start, 1))
        for at in range(max(start, 1) - 1, 0, -1):
            item = terms.cats([comma, self.value(item_goal(shape, at)), term])
            term = terms.alt([item, close]) if at >= shape.low else item
        if most != 0:
            first = terms.cats([self.blanks, self.value(item_goal(shape, 0)), term])
            term = terms.alt([first, close]) if shape.low == 0 else first
        else:
            term = close
        return terms.cat(terms.literal("["), term)

    # -- objects --------------------------------------------------------------------------------------

    def plan(self, shape: Objects) -> ObjectPlan:
        found = self._plans.get(shape)
        if found is None:
            found = self._plans[shape] = self._planned(shape)
        return found

    def _planned(self, shape: Objects) -> ObjectPlan:
        is_closed = any(rule.additional == NEVER and not rule.patterns for rule in shape.rules)
        if not is_closed:
            raise ConstraintError(
                'the object is open: other keys are allowed, which is not supported; add "additionalProperties": false',
                pointer=self._open_pointer(shape),
            )
        order = [name for rule in shape.rules for name, _ in rule.named]
        names = []
        for name in dict.fromkeys([*order, *shape.required]):
            goal = self.interpreter.key_goal(shape, name)
            if shape.names != ANYTHING and not self._is_allowed_name(shape.names, name):
                goal = NEVER
            if goal != NEVER or name in shape.required:
                names.append(Name(name, goal, name in shape.required))
        return ObjectPlan(tuple(names), shape.low, shape.high)

    def _open_pointer(self, shape: Objects) -> str:
        for rule in shape.rules:
            for _, goal in rule.named:
                pointer = self.interpreter.pointer_of(goal)
                if "/properties/" in pointer:
                    return pointer[: pointer.rindex("/properties/")]
        return ""

    def _is_allowed_name(self, goal: Goal, name: str) -> bool:
        shapes = self.interpreter.meaning(goal).strings
        return any(self.interpreter.has_text(shape.term, name) for shape in shapes)

    def _object(self, plan: ObjectPlan) -> Term:
        return self.terms.cat(self.terms.literal("{"), self._rest(plan, 0, 0))

    def _rest(self, plan: ObjectPlan, at: int, count: int) -> Term:
        return self.terms.ref(("object", plan, at, self._counted(plan, count)))

    def _counted(self, plan: ObjectPlan, count: int) -> int:
        """How many were written, as far as it still matters: none, some, or the number where it is bounded."""
        if plan.high is not None:
            return count
        return min(count, max(plan.low, 1))

    def _after_names(self, plan: ObjectPlan, at: int, count: int) -> Term:
        terms = self.terms
        options = []
        num_left = sum(name.goal in self._live for name in plan.names[at:])
        still_required = sum(name.is_required for name in plan.names[at:])
        if not still_required and count >= plan.low:
            options.append(terms.cat(self.blanks, terms.literal("}")))
        branches = []
        for index in range(at, len(plan.names)):
            name = plan.names[index]
            if name.goal in self._live:
                num_left -= 1
                still_required -= name.is_required
                fits = plan.high is None or count + 1 + still_required <= plan.high
                if fits and count + 1 + num_left >= plan.low:
                    branches.append((name, self._rest(plan, index + 1, count + 1)))
            if name.is_required:
                break
        if branches:
            comma = [terms.literal(","), self.blanks] if count else []
            options.append(terms.cats([self.blanks, *comma, self._members(branches)]))
        return terms.alt(options)

    def _members(self, branches: list[tuple[Name, Term]]) -> Term:
        """One of these members, then what follows it."""
        terms = self.terms
        colon = terms.cats([terms.literal('"'), self.blanks, terms.literal(":"), self.blanks])
        quote = terms.literal('"')
        members = []
        for name, rest in branches:
            key = terms.cats(self.name_char(char) for char in name.text)
            members.append(terms.cats([key, colon, self.value(name.goal), rest]))
        return terms.cat(quote, terms.alt(members))


def _spellings(value: Decimal) -> list[str]:
    """As digits, and as written with a needless fraction where the schema does so."""
    shortest = plain(value)
    exponent = value.as_tuple().exponent
    written_long = isinstance(exponent, int) and exponent < 0 and "." not in shortest
    return [shortest, f"{shortest}.0"] if written_long else [shortest]
