"""Intersection and difference of meanings, kept small: shapes that contradict themselves are dropped on the way.

An object contradicts itself where a required key has a value that nothing meets, which is how `oneOf` and `if` tell
their branches apart in practice (a constant under one name). Looking for that reads the schemas of children; where a
child is still being read itself, nothing is concluded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from forktree.backend.grammar.choices import any_of
from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.number_sets import ALL_NUMBERS, Numbers, both_numbers, not_numbers
from forktree.backend.grammar.schema_numbers import NumberWriting
from forktree.backend.grammar.schema_shapes import (
    ANYTHING,
    NEVER,
    Arrays,
    Atom,
    Goal,
    Keys,
    Meaning,
    Objects,
    Strings,
    both_arrays,
    both_objects,
    item_goal,
    not_arrays,
    not_objects,
    pairs,
    united,
)
from forktree.backend.grammar.terms import Term
from forktree.lang.errors import ConstraintError

MAX_DEPTH = 3  # levels of values that are looked into for a contradiction


class CircularError(ConstraintError):
    """A schema refers to itself without a value in between."""


class Algebra:
    """Meanings as sets.

    Args:
        meaning: what a goal allows.
        pattern: the JSON bodies of texts in which a pattern is found.
    """

    def __init__(
        self,
        derivatives: Derivatives,
        numbers: NumberWriting,
        *,
        meaning: Callable[[Goal], Meaning],
        pattern: Callable[[str], Term],
    ) -> None:
        self._derivatives = derivatives
        self._terms = derivatives.terms
        self._numbers = numbers
        self._meaning = meaning
        self._pattern = pattern
        self._empty: dict[Goal, bool] = {}
        self._depth = 0
        self._languages: dict[Strings, Term] = {}
        self.any_body = self._terms.any_chars("json")
        self.anything = Meaning(
            (Strings(self.any_body),),
            (ALL_NUMBERS,),
            (Arrays(),),
            (Objects(),),
            frozenset([True, False]),
            True,
        )

    # -- sets -----------------------------------------------------------------------------------------

    def both(self, left: Meaning, right: Meaning) -> Meaning:
        """What both allow."""
        if left is self.anything:
            return right
        if right is self.anything:
            return left
        strings = (one for a, b in pairs(left.strings, right.strings) for one in self._both_strings(a, b))
        numbers = (one for a, b in pairs(left.numbers, right.numbers) for one in self.both_numbers(a, b))
        return united(
            [
                Meaning(
                    tuple(strings),
                    tuple(numbers),
                    self._both_arrays(left.arrays, right.arrays),
                    self._both_objects(left.objects, right.objects),
                    left.booleans & right.booleans,
                    left.null and right.null,
                )
            ]
        )

    def complement(self, meaning: Meaning) -> Meaning:
        """Everything that the meaning excludes."""
        return self.difference(self.anything, meaning)

    def difference(self, left: Meaning, right: Meaning) -> Meaning:
        """What `left` allows and `right` does not."""
        strings, numbers, arrays, objects = left.strings, left.numbers, left.arrays, left.objects
        if right.strings:
            outside = self._outside(right.strings)
            strings = tuple(one for shape in strings for one in self._both_strings(shape, outside))
        for number in right.numbers:
            joined = (self.both_numbers(a, b) for a, b in pairs(numbers, tuple(not_numbers(number))))
            numbers = tuple(dict.fromkeys(one for some in joined for one in some))
        for array in right.arrays:
            met = [one for one in arrays if not self._array_clashes(both_arrays(one, array))]
            kept = tuple(one for one in arrays if one not in met)
            arrays = kept + self._both_arrays(tuple(met), tuple(not_arrays(array)))
        for shape in right.objects:
            objects = self._objects_without(objects, shape)
        booleans = left.booleans - right.booleans
        return united([Meaning(strings, numbers, arrays, objects, booleans, left.null and not right.null)])

    def _objects_without(self, objects: tuple[Objects, ...], excluded: Objects) -> tuple[Objects, ...]:
        met = [one for one in objects if not self._object_clashes(both_objects(one, excluded))]
        kept = tuple(one for one in objects if one not in met)
        return kept + self._both_objects(tuple(met), tuple(not_objects(excluded)))

    def _outside(self, shapes: tuple[Strings, ...]) -> Strings:
        languages = [self._terms.without(self.language(one)) for one in shapes if one.only is None]
        excluded = frozenset[str]().union(*(one.only for one in shapes if one.only is not None))
        return Strings(self._terms.both([self.any_body, *languages]), excluded=excluded)

    # -- shapes ---------------------------------------------------------------------------------------

    def _both_arrays(self, left: tuple[Arrays, ...], right: tuple[Arrays, ...]) -> tuple[Arrays, ...]:
        joined = dict.fromkeys(both_arrays(a, b) for a, b in pairs(left, right))
        is_one = len(joined) < 2
        return tuple(one for one in joined if not (_is_crossed(one) if is_one else self._array_clashes(one)))

    def _both_objects(self, left: tuple[Objects, ...], right: tuple[Objects, ...]) -> tuple[Objects, ...]:
        joined = dict.fromkeys(both_objects(a, b) for a, b in pairs(left, right))
        is_one = len(joined) < 2
        return tuple(one for one in joined if not (_is_crossed(one) if is_one else self._object_clashes(one)))

    def _both_strings(self, left: Strings, right: Strings) -> tuple[Strings, ...]:
        if left.only is None and right.only is None:
            base = self._terms.both([left.base, right.base])
            return self.live_strings(Strings(base, excluded=left.excluded | right.excluded))
        one, other = (left, right) if left.only is not None else (right, left)
        kept = frozenset(text for text in one.only or () if self._has(other, text))
        return (self.string_set(kept),) if kept else ()

    def _has(self, shape: Strings, text: str) -> bool:
        if shape.only is not None:
            return text in shape.only
        return text not in shape.excluded and (shape.base is self.any_body or self.has_text(shape.base, text))

    def both_numbers(self, left: Numbers, right: Numbers) -> tuple[Numbers, ...]:
        return self.written_numbers(both_numbers(left, right))

    def written_numbers(self, shape: Numbers | None) -> tuple[Numbers, ...]:
        """The shape, unless nothing in it can be written."""
        return (shape,) if shape is not None and self._numbers.can_write(shape) else ()

    def live_strings(self, shape: Strings) -> tuple[Strings, ...]:
        """The shape, unless no text is in it."""
        is_endless = shape.base is self.any_body  # less some texts
        return (shape,) if is_endless or self._derivatives.is_live(self.language(shape)) else ()

    # -- contradictions -------------------------------------------------------------------------------

    def _array_clashes(self, shape: Arrays) -> bool:
        return _is_crossed(shape) or any(
            self._is_empty(item_goal(shape, at)) for at in range(min(shape.low, len(shape.prefix) + 1))
        )

    def _object_clashes(self, shape: Objects) -> bool:
        return _is_crossed(shape) or any(map(self._is_empty, self.key_goals(shape, shape.required)))

    def _is_empty(self, goal: Goal) -> bool:
        """Sound: nothing meets the goal. Not complete, as nothing below is looked at."""
        if goal == ANYTHING:
            return False
        if goal >= NEVER:
            return True
        found = self._empty.get(goal)
        if found is None:
            if self._depth == MAX_DEPTH:
                return False
            self._depth += 1
            try:
                found = self._empty[goal] = self._meaning(goal).is_empty
            except CircularError:
                return False
            finally:
                self._depth -= 1
        return found

    # -- keys -----------------------------------------------------------------------------------------

    def has_text(self, body: Term, text: str) -> bool:
        """Whether a language of JSON bodies has this text."""
        written = json.dumps(text, ensure_ascii=False)[1:-1]
        state = self._derivatives.run(body, written.encode("utf-8", "surrogatepass"))
        return state is not None and state.nullable

    def is_text_of(self, goal: Goal, text: str) -> bool:
        """Whether a text meets the goal as a string."""
        return any(self._has(shape, text) for shape in self._meaning(goal).strings)

    def is_of(self, keys: Keys, text: str) -> bool:
        """Whether a text is a key of this kind."""
        return (
            text not in keys.without
            and all(self.has_text(self._pattern(one), text) for one in keys.matching)
            and not any(self.has_text(self._pattern(one), text) for one in keys.not_matching)
            and (keys.names == ANYTHING or self.is_text_of(keys.names, text))
        )

    def key_goals(self, shape: Objects, names: Iterable[str]) -> Iterator[Goal]:
        """What the value under each of these keys has to meet, one after another."""
        rules = [(rule, dict(rule.named)) for rule in shape.rules]
        for name in names:
            atoms: set[Atom] = set()
            for rule, named in rules:
                own = [named[name]] if name in named else []
                own += [goal for pattern, goal in rule.patterns if self.has_text(self._pattern(pattern), name)]
                for goal in own or [rule.additional]:
                    atoms |= goal
            for keys in shape.every:
                if self.is_of(keys, name):
                    atoms |= keys.value
            yield NEVER if ("never",) in atoms else frozenset(atoms)

    # -- spellings ------------------------------------------------------------------------------------

    def string_set(self, texts: frozenset[str]) -> Strings:
        return Strings(self.any_body, texts)

    def language(self, shape: Strings) -> Term:
        """The JSON bodies of a shape's texts, in every spelling."""
        found = self._languages.get(shape)
        if found is None:
            found = self._languages[shape] = self._made(shape)
        return found

    def _made(self, shape: Strings) -> Term:
        if shape.only is not None:
            return any_of(self._terms, shape.only, self.escaped_char)
        if not shape.excluded:
            return shape.base
        return self._terms.both(
            [shape.base, self._terms.without(any_of(self._terms, shape.excluded, self.escaped_char))]
        )

    def escaped_char(self, char: str) -> Term:
        """One character in every spelling that JSON has."""
        return self._terms.char(((ord(char), ord(char) + 1),), "json")


def _is_crossed(shape: Arrays | Objects) -> bool:
    """No count lies between the bounds."""
    return shape.high is not None and shape.low > shape.high
