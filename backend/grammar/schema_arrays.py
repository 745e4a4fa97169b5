"""The texts of arrays: by counts where every item is alike, by states where items are told apart.

`contains` splits an item into those that meet its goal and those that do not, so the counts are exact. Arrays of
different items are written in `schema_unique`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from forktree.backend.grammar.schema_shapes import (
    NEVER,
    Arrays,
    Goal,
    item_goal,
    joined_goals,
    negated,
)
from forktree.backend.grammar.schema_unique import UniqueWriter, Values, goals_of_unique
from forktree.backend.grammar.terms import Term
from forktree.lang.errors import ConstraintError

MAX_STATES = 50_000


class ArrayState(NamedTuple):
    """Items written, and for each `contains` how many of them met it."""

    at: int
    counts: tuple[int, ...]


def goals_of(shape: Arrays) -> list[Goal]:
    """Every goal that an item of such an array may be held to: for each `contains` it meets the goal, it does
    not, or it makes no difference any more."""
    items = [*shape.prefix, shape.rest]
    choices = ((one.goal, negated(one.goal), frozenset()) for one in shape.contains)
    if shape.unique:
        return [goal for goal in goals_of_unique(shape) if goal != NEVER]
    found = [joined_goals(item, *goals) for goals in product(*choices) for item in items]
    return [goal for goal in dict.fromkeys(found) if goal != NEVER]


class ArrayWriter:
    """Terms of the texts of array shapes."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._terms = values.terms
        self.unique = UniqueWriter(values)
        self._endable: set[tuple[Arrays, ArrayState]] = set()  # only grows, as what can be met only grows

    def is_met(self, shape: Arrays) -> bool:
        """Whether some array fits the shape."""
        if shape.unique:
            return self.unique.is_met(shape)
        if shape.contains:
            return self._can_end(shape, self._first(shape))
        most = self._most(shape)
        return most is None or most >= shape.low

    def text(self, shape: Arrays) -> Term:
        if shape.unique and not (shape.high is not None and shape.high <= 1):
            return self.unique.text(shape)
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
            goal = joined_goals(item, *(goal for goal, _ in choice))
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
