"""What `unevaluatedProperties` and `unevaluatedItems` see: the ways in which a subschema can hold, and for each the
keys and items that its keywords looked at.

An outcome is a meaning and a `Cover`. Where a value has several outcomes, the widest cover is the one that counts; as
a wider cover only lets more through, the union over outcomes is exact without telling apart which of them holds. Only
`oneOf` and `if` choose by what does not hold, so only they take complements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from forktree.backend.grammar.schema_algebra import CircularError
from forktree.backend.grammar.schema_document import Draft, Key, Place
from forktree.backend.grammar.schema_shapes import (
    ANYTHING,
    MAX_ALTERNATIVES,
    NEVER,
    Arrays,
    Goal,
    KeyRule,
    Meaning,
    Objects,
    both_objects,
    goal_of,
    united,
)
from forktree.lang.errors import ConstraintError

if TYPE_CHECKING:
    from forktree.backend.grammar.schema_meaning import Interpreter


@dataclass(frozen=True, slots=True)
class Cover:
    """Keys and items that were evaluated: by name, by pattern, the first `items`, those that meet a goal, or all."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    has_all_keys: bool = False
    items: int = 0
    goals: frozenset[Goal] = frozenset()
    has_all_items: bool = False

    def __or__(self, other: Cover) -> Cover:
        return Cover(
            self.names | other.names,
            self.patterns | other.patterns,
            self.has_all_keys or other.has_all_keys,
            max(self.items, other.items),
            self.goals | other.goals,
            self.has_all_items or other.has_all_items,
        )


class Outcome(NamedTuple):
    meaning: Meaning
    cover: Cover


class Outcomes:
    """The outcomes of the subschemas of one document."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._known: dict[Key, list[Outcome]] = {}
        self._open: set[Key] = set()

    def of(self, place: Place) -> list[Outcome]:
        """Every way in which a value can meet the subschema.

        Raises:
            ConstraintError: there are too many, or the subschema refers to itself.
        """
        found = self._known.get(place.key)
        if found is None:
            if place.key in self._open:
                raise CircularError("the schema refers to itself without end", pointer=place.pointer)
            self._open.add(place.key)
            try:
                found = self._known[place.key] = self._read(place)
            finally:
                self._open.discard(place.key)
        return found

    def _read(self, place: Place) -> list[Outcome]:
        schema, interpreter = place.schema, self._interpreter
        if isinstance(schema, bool) or not self._looks(place, set()):
            return [Outcome(interpreter.schema(place), Cover())]
        found = [Outcome(interpreter.own(place), self._own_cover(place))]
        for keyword in ("not", "dependentRequired"):
            if keyword in schema:
                found = self._joined(
                    found, [Outcome(interpreter.applied(place, keyword, interpreter.anything), Cover())]
                )
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword in schema:
                found = self._joined(found, self.of(interpreter.document.resolve(place, keyword)))
        for part in interpreter.each(place, "allOf") if "allOf" in schema else ():
            found = self._joined(found, self.of(part))
        if "anyOf" in schema:
            found = self._joined(found, self._any_of(interpreter.each(place, "anyOf")))
        if "oneOf" in schema:
            found = self._joined(found, self._one_of(interpreter.each(place, "oneOf")))
        if "if" in schema:
            found = self._joined(found, self._conditional(place))
        for keyword in ("dependentSchemas", "dependencies"):
            for name in schema.get(keyword, ()):
                found = self._joined(found, self._dependent(place, keyword, name))
        return self._restricted(place, found)

    def _looks(self, place: Place, seen: set[Key]) -> bool:
        """Whether a keyword in this schema, or in one about the same value, evaluates keys or items."""
        schema, document = place.schema, self._interpreter.document
        if not isinstance(schema, dict) or place.key in seen:
            return False
        seen.add(place.key)
        if _EVALUATING & schema.keys():
            return True
        steps: list[tuple[str | int, ...]] = [(keyword,) for keyword in ("if", "then", "else") if keyword in schema]
        for keyword in ("allOf", "anyOf", "oneOf"):
            steps += [(keyword, at) for at in range(len(schema.get(keyword, ())))]
        for keyword in ("dependentSchemas", "dependencies"):
            steps += [(keyword, name) for name, one in schema.get(keyword, {}).items() if not isinstance(one, list)]
        parts = [document.child(place, *one) for one in steps]
        parts += [document.resolve(place, one) for one in ("$ref", "$dynamicRef", "$recursiveRef") if one in schema]
        return any(self._looks(part, seen) for part in parts)

    def _own_cover(self, place: Place) -> Cover:
        schema, document = place.schema, self._interpreter.document
        items = schema.get("items")
        is_list = isinstance(items, list)
        goals: frozenset[Goal] = frozenset()
        if "contains" in schema and document.draft >= Draft.D2020:
            goals = frozenset([self._interpreter.goal(document.child(place, "contains"))])
        return Cover(
            frozenset(schema.get("properties", ())),
            frozenset(schema.get("patternProperties", ())),
            "additionalProperties" in schema,
            len(items) if is_list else len(schema.get("prefixItems", ())),
            goals,
            ("additionalItems" in schema) if is_list else items is not None,
        )

    # -- combining ------------------------------------------------------------------------------------

    def _joined(self, left: list[Outcome], right: list[Outcome]) -> list[Outcome]:
        """Both hold."""
        both = self._interpreter.algebra.both
        return _merged(Outcome(both(a.meaning, b.meaning), a.cover | b.cover) for a in left for b in right)

    def _any_of(self, parts: list[Place]) -> list[Outcome]:
        """One or more hold: a union of branches counts only where its cover is wider than each of theirs."""
        branches = [self.of(part) for part in parts]
        found = _merged(outcome for outcomes in branches for outcome in outcomes)
        for outcomes in branches:
            found = _merged([*found, *self._wider(found, outcomes)])
        return found

    def _wider(self, left: list[Outcome], right: list[Outcome]) -> Iterable[Outcome]:
        for a, b in product(left, right):
            cover = a.cover | b.cover
            if cover not in (a.cover, b.cover):
                yield Outcome(self._interpreter.algebra.both(a.meaning, b.meaning), cover)

    def _one_of(self, parts: list[Place]) -> list[Outcome]:
        interpreter, algebra = self._interpreter, self._interpreter.algebra
        found = []
        for at, part in enumerate(parts):
            others = [interpreter.schema(other) for place, other in enumerate(parts) if place != at]
            for outcome in self.of(part):
                meaning = outcome.meaning
                for other in others:
                    meaning = algebra.difference(meaning, other)
                found.append(Outcome(meaning, outcome.cover))
        return _merged(found)

    def _conditional(self, place: Place) -> list[Outcome]:
        schema, interpreter = place.schema, self._interpreter
        condition = interpreter.document.child(place, "if")
        held = self.of(condition)
        failed = [Outcome(interpreter.algebra.complement(interpreter.schema(condition)), Cover())]
        if "then" in schema:
            held = self._joined(held, self.of(interpreter.document.child(place, "then")))
        if "else" in schema:
            failed = self._joined(failed, self.of(interpreter.document.child(place, "else")))
        return _merged([*held, *failed])

    def _dependent(self, place: Place, keyword: str, name: str) -> list[Outcome]:
        interpreter, demand = self._interpreter, place.schema[keyword][name]
        absent = Outcome(interpreter.only_objects([Objects(rules=(KeyRule(named=((name, NEVER),)),))]), Cover())
        if isinstance(demand, list):
            with_names = Meaning(objects=(Objects(required=tuple(dict.fromkeys((name, *demand)))),))
            return [absent, Outcome(with_names, Cover())]
        here = Objects(required=(name,))
        found = [absent]
        for meaning, cover in self.of(interpreter.document.child(place, keyword, name)):
            found.append(Outcome(Meaning(objects=tuple(both_objects(here, one) for one in meaning.objects)), cover))
        return _merged(found)

    # -- what is left ---------------------------------------------------------------------------------

    def _restricted(self, place: Place, outcomes: list[Outcome]) -> list[Outcome]:
        interpreter, schema = self._interpreter, place.schema
        child, anything = interpreter.document.child, interpreter.anything
        found = []
        for meaning, cover in outcomes:
            if "unevaluatedProperties" in schema:
                rule = _key_rule(cover, interpreter.goal(child(place, "unevaluatedProperties")))
                meaning = interpreter.algebra.both(meaning, interpreter.only_objects([rule]))
                cover |= Cover(has_all_keys=True)
            if "unevaluatedItems" in schema:
                shape = _item_rule(cover, interpreter.goal(child(place, "unevaluatedItems")))
                limit = Meaning(
                    anything.strings, anything.numbers, (shape,), anything.objects, anything.booleans, anything.null
                )
                meaning = interpreter.algebra.both(meaning, limit)
                cover |= Cover(has_all_items=True)
            found.append(Outcome(meaning, cover))
        return _merged(found)


_EVALUATING = frozenset(
    [
        "properties",
        "patternProperties",
        "additionalProperties",
        "unevaluatedProperties",
        "prefixItems",
        "items",
        "additionalItems",
        "contains",
        "unevaluatedItems",
    ]
)


def _merged(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Outcomes of one cover become one; those that nothing meets go."""
    by_cover: dict[Cover, list[Meaning]] = {}
    for meaning, cover in outcomes:
        if not meaning.is_empty:
            by_cover.setdefault(cover, []).append(meaning)
    if len(by_cover) > MAX_ALTERNATIVES:
        raise ConstraintError(f"more than {MAX_ALTERNATIVES} ways to evaluate keys and items")
    return [Outcome(united(meanings), cover) for cover, meanings in by_cover.items()]


def _key_rule(cover: Cover, goal: Goal) -> Objects:
    """The keys that nothing looked at meet the goal."""
    if cover.has_all_keys or goal == ANYTHING:
        return Objects()
    named = tuple((name, ANYTHING) for name in sorted(cover.names))
    return Objects((KeyRule(named, tuple((pattern, ANYTHING) for pattern in sorted(cover.patterns)), goal),))


def _item_rule(cover: Cover, goal: Goal) -> Arrays:
    """The items that nothing looked at meet the goal."""
    if cover.has_all_items or ANYTHING in (goal, *cover.goals):
        return Arrays()
    if cover.goals:
        goals = sorted((*cover.goals, goal), key=repr)
        goal = goal_of(("or", tuple(one for one in goals if one != NEVER)))
    return Arrays((ANYTHING,) * cover.items, goal)
