"""`uniqueItems`: the texts of arrays whose items differ by value, however they are written.

A state remembers what was written. Three kinds of items are told apart:

    listed    scalars that come from a finite set: one alternative each, which is gone once used
    texts     captured like keys: the next text is not one of those that were used
    others    captured up to the comma that follows: the next item is no spelling of a value that was used

An item that is the last one needs no memory, so `item ]` and `item ,` run in parallel.
"""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, Protocol

from forktree.backend.grammar.choices import any_of
from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.schema_shapes import (
    Arrays,
    Goal,
    Meaning,
    Numbers,
    Objects,
    Strings,
    item_goal,
    joined_goals,
    negated,
)
from forktree.backend.grammar.schema_values import Value, ValueSpeller, value_of
from forktree.backend.grammar.terms import Term, Terms

_COMMA = ord(",")
_MANY = 100_000  # values, far more than any array has items


class Values(Protocol):
    """What an array of different items needs from the rest of the schema's texts."""

    terms: Terms
    blanks: Term
    derivatives: Derivatives
    speller: ValueSpeller

    def value(self, goal: Goal) -> Term: ...

    def is_met(self, goal: Goal) -> bool: ...

    def meaning(self, goal: Goal) -> Meaning: ...

    def shape_text(self, shape: Strings | Numbers) -> Term: ...

    def escaped_char(self, char: str) -> Term: ...

    def language(self, shape: Strings) -> Term: ...

    def texts_of(self, shape: Strings) -> list[str] | None: ...

    def has_endless_keys(self, shape: Objects) -> bool: ...


class UniqueState(NamedTuple):
    """Items written, what they were, and which demands of `contains` are still open."""

    at: int
    used: frozenset[Value]
    pending: frozenset[int] = frozenset()


class UniqueWriter:
    """Terms of the texts of array shapes that ask for different items."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._terms = values.terms

    def text(self, shape: Arrays) -> Term:
        return self._terms.cat(self._terms.literal("["), self._ref(shape, self.first(shape)))

    def first(self, shape: Arrays) -> UniqueState:
        return UniqueState(0, frozenset(), frozenset(at for at, one in enumerate(shape.contains) if one.low))

    def _ref(self, shape: Arrays, state: UniqueState) -> Term:
        return self._terms.ref(("unique", shape, state))

    def _close(self) -> Term:
        return self._terms.cat(self._values.blanks, self._terms.literal("]"))

    def _comma(self) -> Term:
        return self._terms.cats([self._values.blanks, self._terms.literal(","), self._values.blanks])

    # -- what can be decided --------------------------------------------------------------------------

    def refusal(self, shape: Arrays) -> str | None:
        """Why the demand cannot be enforced, or None where it can."""
        if shape.unique is False:
            return "a demand for equal items cannot be decided"
        if not shape.unique or (shape.high is not None and shape.high <= 1):
            return None
        if any(one.low > 1 or one.high is not None or one.start for one in shape.contains):
            return "uniqueItems beside minContains or maxContains cannot be decided"
        if shape.low <= 1:
            return None
        if shape.contains and not self._has_values(shape.rest, shape.low):
            return "uniqueItems and minItems beside contains cannot be decided for items of few values"
        places = range(min(shape.low, len(shape.prefix) + 1))
        unknown = [at for at in places if not self._has_values(item_goal(shape, at), shape.low)]
        if not unknown or (not shape.prefix and self._has_values(shape.rest, shape.low) is False):
            return None
        return "uniqueItems and minItems cannot be decided for items of few values"

    def is_met(self, shape: Arrays) -> bool:
        """Whether some array fits the shape, as far as it is not refused."""
        met = [self._values.is_met(item_goal(shape, at)) for at in range(min(shape.low, len(shape.prefix) + 1))]
        if not all(met):
            return False
        for one in shape.contains:
            places = range(len(shape.prefix) + 1)
            if one.low and not any(self._values.is_met(joined_goals(item_goal(shape, at), one.goal)) for at in places):
                return False
        if shape.low <= 1 or shape.prefix or shape.contains:
            return True
        return self._has_values(shape.rest, shape.low) is not False

    def _has_values(self, goal: Goal, least: int) -> bool | None:
        """Whether so many different values meet the goal; None where that is not known."""
        if self._is_endless(goal, least, frozenset()):
            return True
        meaning = self._values.meaning(goal)
        if meaning.arrays or meaning.objects or any(one.only is None for one in meaning.numbers):
            return None
        texts = {text for shape in meaning.strings for text in self._values.texts_of(shape) or ()}
        numbers = {value for shape in meaning.numbers for value in shape.only or ()}
        return len(texts) + len(numbers) + len(meaning.booleans) + meaning.null >= least

    def _is_endless(self, goal: Goal, least: int, seen: frozenset[Goal]) -> bool:
        """Whether values never run out, as far as it is plain to see."""
        if goal in seen or not self._values.is_met(goal):
            return False
        meaning, seen = self._values.meaning(goal), seen | {goal}
        if any(self._values.texts_of(shape) is None for shape in meaning.strings):
            return True
        if any(_num_values(shape) > least for shape in meaning.numbers):
            return True
        for array in meaning.arrays:
            if array.high is None and self._values.is_met(array.rest) and not array.unique:
                return True
            if any(self._is_endless(item_goal(array, at), least, seen) for at in range(array.low)):
                return True
        return any(self._values.has_endless_keys(shape) for shape in meaning.objects)

    # -- texts ----------------------------------------------------------------------------------------

    def rest(self, shape: Arrays, state: UniqueState) -> Term:
        """What may follow once these items were written."""
        options = [self._close()] if state.at >= shape.low and not state.pending else []
        start = self._comma() if state.at else self._values.blanks
        options += [self._terms.cat(start, item) for item in self._items(shape, state)]
        return self._terms.alt(options)

    def _items(self, shape: Arrays, state: UniqueState) -> list[Term]:
        """The next item, and what follows it."""
        if shape.high is not None and state.at >= shape.high:
            return []
        if shape.prefix or shape.contains or not self._is_of_scalars(shape.rest):
            return self._any_items(shape, state)
        found = []
        for value, text in self._listed(shape.rest).items():
            if value not in state.used:
                after = UniqueState(state.at + 1, state.used | {value})
                found.append(self._terms.cat(text, self._ref(shape, after)))
        free = self._free(shape, state.used)
        if free is not self._terms.empty:
            captured = self._terms.capture([(free, state)], b"", ("item", shape))
            found.append(self._terms.cat(self._terms.literal('"'), captured))
        return found

    def _is_of_scalars(self, goal: Goal) -> bool:
        """Items that are texts or can be listed."""
        meaning = self._values.meaning(goal)
        return not (meaning.objects or meaning.arrays or any(one.only is None for one in meaning.numbers))

    def _listed(self, goal: Goal) -> dict[Value, Term]:
        """The items that can be listed, by value."""
        meaning, literal = self._values.meaning(goal), self._terms.literal
        words = [str(value).lower() for value in meaning.booleans] + (["null"] if meaning.null else [])
        found: dict[Value, Term] = {("word", word): literal(word) for word in words}
        for numbers in meaning.numbers:
            for value in numbers.only or ():
                found["number", value] = self._values.shape_text(Numbers(only=frozenset([value])))
        for strings in meaning.strings:
            for text in strings.only or ():
                found["text", text] = self._values.shape_text(Strings(strings.base, frozenset([text])))
        return found

    def _free(self, shape: Arrays, used: frozenset[Value]) -> Term:
        """The JSON bodies of the texts that cannot be listed and were not used."""
        terms = self._terms
        free = [self._values.language(one) for one in self._values.meaning(shape.rest).strings if one.only is None]
        if not free:
            return terms.empty
        taken = {str(value[1]) for value in (*self._listed(shape.rest), *used) if value[0] == "text"}
        language = terms.both([terms.alt(free), terms.without(any_of(terms, taken, self._values.escaped_char))])
        return language if self._values.derivatives.is_live(language) else terms.empty

    def after_text(self, shape: Arrays, state: UniqueState, text: bytes | None) -> Term:
        """What follows a text that cannot be listed."""
        used = state.used if text is None else state.used | {("text", json.loads(b'"' + text + b'"'))}
        return self.rest(shape, UniqueState(state.at + 1, used))

    # -- items of any kind ----------------------------------------------------------------------------

    def _any_items(self, shape: Arrays, state: UniqueState) -> list[Term]:
        terms, blanks = self._terms, self._values.blanks
        found = []
        for goal, after in self._choices(shape, state):
            item = self._unused(goal, state.used)
            if not self._values.derivatives.is_live(item):
                continue
            if after.at >= shape.low and not after.pending:
                found.append(terms.cat(item, self._close()))
            if shape.high is None or after.at < shape.high:
                found.append(terms.item(terms.cat(item, blanks), b"", shape, after))
        return found

    def _choices(self, shape: Arrays, state: UniqueState) -> list[tuple[Goal, UniqueState]]:
        """What the next item is held to, and the state after it: it meets each open demand or does not."""
        goal = item_goal(shape, state.at)
        size = len(shape.prefix) + 1
        at = state.at + 1 if shape.high is not None else min(state.at + 1, max(shape.low, size))
        found = [(goal, state._replace(at=at))]
        for demand in sorted(state.pending):
            wanted = shape.contains[demand].goal
            hit = [
                (joined_goals(one, wanted), after._replace(pending=after.pending - {demand})) for one, after in found
            ]
            miss = [(joined_goals(one, negated(wanted)), after) for one, after in found]
            found = [*hit, *miss]
        return [(one, after) for one, after in found if self._values.is_met(one)]

    def _unused(self, goal: Goal, used: frozenset[Value]) -> Term:
        """Texts of values that meet the goal and were not used."""
        term = self._values.value(goal)
        if not used:
            return term
        spelled = [self._values.speller.spelled(value) for value in sorted(used, key=repr)]
        return self._terms.both([term, self._terms.without(self._terms.alt(spelled))])

    def after_item(self, shape: Arrays, after: UniqueState, text: bytes | None) -> Term:
        """What follows an item of any kind and its comma."""
        if text is not None:
            after = after._replace(used=after.used | {value_of(text)})
        return self._terms.alt(self._terms.cat(self._values.blanks, item) for item in self._any_items(shape, after))


def goals_of_unique(shape: Arrays) -> list[Goal]:
    """Every goal that an item of such an array may be held to."""
    found: list[Goal] = []
    for item in (*shape.prefix, shape.rest):
        goals = [item]
        for one in shape.contains:
            goals += [joined_goals(goal, more) for goal in goals for more in (one.goal, negated(one.goal))]
        found += goals
    return list(dict.fromkeys(found))


def _num_values(shape: Numbers) -> int:
    """At least so many numbers are in the set, up to a limit."""
    if shape.only is not None:
        return 0
    if shape.low is None or shape.high is None:
        return _MANY
    step = Fraction(shape.step) if shape.step is not None else Fraction(Decimal("1e-15"))
    most = int((Fraction(shape.high) - Fraction(shape.low)) / step)
    return 0 if shape.not_steps else min(_MANY, most - len(shape.excluded))
