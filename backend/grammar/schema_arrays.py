"""The texts of arrays: by counts where every item is alike, by states where items are told apart.

`contains` splits an item into those that meet its goal and those that do not, so the counts are exact.
`uniqueItems` remembers what was written, which works where items are texts or come from a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple, Protocol

from forktree.backend.grammar.choices import any_of
from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.schema_shapes import (
    NEVER,
    Arrays,
    Goal,
    Meaning,
    Numbers,
    Strings,
    item_goal,
    negated,
)
from forktree.backend.grammar.terms import Term, Terms
from forktree.lang.errors import ConstraintError

MAX_STATES = 50_000


class Values(Protocol):
    """What an array's text needs from the rest of the schema's."""

    terms: Terms
    blanks: Term
    derivatives: Derivatives

    def value(self, goal: Goal) -> Term: ...

    def is_met(self, goal: Goal) -> bool: ...

    def meaning(self, goal: Goal) -> Meaning: ...

    def shape_text(self, shape: Strings | Numbers) -> Term: ...

    def escaped_char(self, char: str) -> Term: ...


class ArrayState(NamedTuple):
    """Items written, and for each `contains` how many of them met it."""

    at: int
    counts: tuple[int, ...]


class UniqueState(NamedTuple):
    """Items written, and what they were."""

    at: int
    used: frozenset[object]


def goals_of(shape: Arrays) -> list[Goal]:
    """Every goal that an item of such an array may be held to: for each `contains` it meets the goal, it does
    not, or it makes no difference any more."""
    items = [*shape.prefix, shape.rest]
    choices = ((one.goal, negated(one.goal), frozenset()) for one in shape.contains)
    found = [_joined(item, *goals) for goals in product(*choices) for item in items]
    return [goal for goal in dict.fromkeys(found) if goal != NEVER]


def _joined(*goals: Goal) -> Goal:
    whole: Goal = frozenset().union(*goals)
    return NEVER if ("never",) in whole else whole


class ArrayWriter:
    """Terms of the texts of array shapes."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._terms = values.terms
        self._endable: set[tuple[Arrays, ArrayState]] = set()  # only grows, as what can be met only grows

    def is_met(self, shape: Arrays) -> bool:
        """Whether some array fits the shape."""
        if shape.unique:
            return self._has_enough(shape)
        if shape.contains:
            return self._can_end(shape, self._first(shape))
        most = self._most(shape)
        return most is None or most >= shape.low

    def text(self, shape: Arrays) -> Term:
        if shape.unique and not (shape.high is not None and shape.high <= 1):
            return self._terms.cat(self._terms.literal("["), self._unique_ref(shape, UniqueState(0, frozenset())))
        if shape.contains:
            return self._terms.cat(self._terms.literal("["), self._ref(shape, self._first(shape)))
        return self._plain(shape)

    def _close(self) -> Term:
        return self._terms.cat(self._values.blanks, self._terms.literal("]"))

    def _comma(self) -> Term:
        return self._terms.cats([self._values.blanks, self._terms.literal(","), self._values.blanks])

    # -- items by place -------------------------------------------------------------------------------

    def _most(self, shape: Arrays) -> int | None:
        """The most items that an array can have; None is without end."""
        for at, goal in enumerate((*shape.prefix, shape.rest)):
            if not self._values.is_met(goal):
                return at if shape.high is None else min(at, shape.high)
        return shape.high

    def _plain(self, shape: Arrays) -> Term:
        terms, close, most = self._terms, self._close(), self._most(shape)
        size = len(shape.prefix) if most is None else min(len(shape.prefix), most)
        start = max(size, 1)
        term = close
        if most is None or start < most:
            item = terms.cat(self._comma(), self._values.value(shape.rest))
            more = terms.repeat(item, max(shape.low - start, 0), None if most is None else most - start)
            term = terms.cat(more, close)
        for at in range(start - 1, 0, -1):
            item = terms.cats([self._comma(), self._values.value(item_goal(shape, at)), term])
            term = terms.alt([item, close]) if at >= shape.low else item
        if most == 0:
            return terms.cat(terms.literal("["), close)
        first = terms.cats([self._values.blanks, self._values.value(item_goal(shape, 0)), term])
        term = terms.alt([first, close]) if shape.low == 0 else first
        return terms.cat(terms.literal("["), term)

    # -- contains -------------------------------------------------------------------------------------

    def _first(self, shape: Arrays) -> ArrayState:
        return ArrayState(0, (0,) * len(shape.contains))

    def _ref(self, shape: Arrays, state: ArrayState) -> Term:
        return self._terms.ref(("array", shape, state))

    def rest(self, shape: Arrays, state: ArrayState) -> Term:
        """What may follow: the end, or another item."""
        terms = self._terms
        options = [self._close()] if self._may_close(shape, state) else []
        start = self._comma() if state.at else self._values.blanks
        for goal, after in self._steps(shape, state):
            if self._can_end(shape, after):
                options.append(terms.cats([start, self._values.value(goal), self._ref(shape, after)]))
        return terms.alt(options)

    def _may_close(self, shape: Arrays, state: ArrayState) -> bool:
        return state.at >= shape.low and all(
            one.low <= count for one, count in zip(shape.contains, state.counts, strict=True)
        )

    def _steps(self, shape: Arrays, state: ArrayState) -> Iterator[tuple[Goal, ArrayState]]:
        if shape.high is not None and state.at >= shape.high:
            return
        item = item_goal(shape, state.at)
        splits: list[list[tuple[Goal, int]]] = []
        for one, count in zip(shape.contains, state.counts, strict=True):
            is_settled = one.high is None and count >= one.low
            if state.at < one.start or is_settled:
                splits.append([(frozenset(), 0)])
            else:
                hit = [] if one.high is not None and count >= one.high else [(one.goal, 1)]
                splits.append([*hit, (negated(one.goal), 0)])
        for choice in product(*splits):
            goal = _joined(item, *(goal for goal, _ in choice))
            if goal != NEVER and self._values.is_met(goal):
                counts = tuple(count + more for count, (_, more) in zip(state.counts, choice, strict=True))
                yield goal, ArrayState(self._counted(shape, state.at + 1), counts)

    def _counted(self, shape: Arrays, at: int) -> int:
        if shape.high is not None:
            return at
        return min(at, max(shape.low, len(shape.prefix), 1, *(one.start for one in shape.contains)))

    def _can_end(self, shape: Arrays, start: ArrayState) -> bool:
        key = (shape, start)
        if key not in self._endable and self._search(shape, start):
            self._endable.add(key)
        return key in self._endable

    def _search(self, shape: Arrays, start: ArrayState) -> bool:
        seen = {start}
        pending = [start]
        while pending:
            state = pending.pop()
            if self._may_close(shape, state):
                return True
            for _, after in self._steps(shape, state):
                if after not in seen:
                    seen.add(after)
                    pending.append(after)
            if len(seen) > MAX_STATES:
                raise ConstraintError(f"the counts of an array with `contains` take more than {MAX_STATES} states")
        return False

    # -- unique items ---------------------------------------------------------------------------------

    def _unique_ref(self, shape: Arrays, state: UniqueState) -> Term:
        return self._terms.ref(("unique", shape, state))

    def check_unique(self, shape: Arrays) -> str | None:
        """Why uniqueness cannot be enforced, or None where it can."""
        if shape.unique is False:
            return "a demand for equal items cannot be decided"
        if not shape.unique or (shape.high is not None and shape.high <= 1):
            return None
        if shape.contains or (shape.prefix and shape.rest != NEVER) or shape.prefix:
            return "uniqueItems beside prefixItems or contains is not supported"
        meaning = self._values.meaning(shape.rest)
        if meaning.objects or meaning.arrays or any(one.only is None for one in meaning.numbers):
            return "uniqueItems is supported for items that are texts or come from an enumeration"
        return None

    def _listed(self, shape: Arrays) -> dict[object, Term]:
        """The items that can be listed, by value."""
        meaning, literal = self._values.meaning(shape.rest), self._terms.literal
        found: dict[object, Term] = {("bool", value): literal(str(value).lower()) for value in meaning.booleans}
        if meaning.null:
            found["null"] = literal("null")
        for numbers in meaning.numbers:
            for value in numbers.only or ():
                found["number", value] = self._values.shape_text(Numbers(only=frozenset([value])))
        for strings in meaning.strings:
            for text in strings.only or ():
                found["text", text] = self._values.shape_text(Strings(strings.term, frozenset([text])))
        return found

    def _free(self, shape: Arrays, used: frozenset[object]) -> Term:
        """The JSON bodies of the texts that cannot be listed and were not used."""
        terms = self._terms
        free = [one.term for one in self._values.meaning(shape.rest).strings if one.only is None]
        listed = [key[1] for key in self._listed(shape) if isinstance(key, tuple) and key[0] == "text"]
        taken = [key[1] for key in used if isinstance(key, tuple) and key[0] == "text"]
        excluded = any_of(terms, {str(text) for text in (*listed, *taken)}, self._values.escaped_char)
        language = terms.both([terms.alt(free), terms.without(excluded)]) if free else terms.empty
        return language if self._values.derivatives.is_live(language) else terms.empty

    def _has_enough(self, shape: Arrays) -> bool:
        if shape.low <= 1:
            return shape.low == 0 or self._values.is_met(item_goal(shape, 0))
        if self.check_unique(shape) is not None:
            return True  # refused later, with the pointer
        return len(self._listed(shape)) >= shape.low or self._free(shape, frozenset()) is not self._terms.empty

    def unique_rest(self, shape: Arrays, state: UniqueState) -> Term:
        """What may follow once these items were written."""
        terms = self._terms
        options = [self._close()] if state.at >= shape.low else []
        start = self._comma() if state.at else self._values.blanks
        if shape.high is None or state.at < shape.high:
            for value, text in self._listed(shape).items():
                if value not in state.used:
                    after = UniqueState(state.at + 1, state.used | {value})
                    options.append(terms.cats([start, text, self._unique_ref(shape, after)]))
            free = self._free(shape, state.used)
            if free is not terms.empty:
                captured = terms.capture([(free, state)], b"", ("item", shape))
                options.append(terms.cats([start, terms.literal('"'), captured]))
        return terms.alt(options)

    def after_item(self, shape: Arrays, state: UniqueState, text: bytes | None) -> Term:
        """What follows a text that cannot be listed."""
        used = state.used if text is None else state.used | {("text", json.loads(b'"' + text + b'"'))}
        return self.unique_rest(shape, UniqueState(state.at + 1, used))
