"""The keywords of a schema, read as what they allow.

A schema is the conjunction of its keywords. Keywords about one type are joined into one shape of that type
(`schema_keywords`); `allOf`, `anyOf`, `oneOf`, `not`, `if`, `dependent…` and references combine whole meanings.
Nothing here looks into the children of arrays and objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.schema_algebra import Algebra, CircularError
from forktree.backend.grammar.schema_constants import listed
from forktree.backend.grammar.schema_document import Document, Draft, Key, Place
from forktree.backend.grammar.schema_evaluated import Outcomes
from forktree.backend.grammar.schema_keywords import TypeKeywords
from forktree.backend.grammar.schema_numbers import NumberWriting
from forktree.backend.grammar.schema_shapes import (
    ANYTHING,
    NEVER,
    NOTHING,
    Atom,
    Goal,
    KeyRule,
    Meaning,
    Objects,
    SizeError,
    both_objects,
    goal_of,
    united,
)
from forktree.backend.grammar.schema_syntax import TYPES, check_place
from forktree.backend.grammar.terms import Term
from forktree.lang.errors import ConstraintError

Result = TypeVar("Result")

_APPLICATORS = (
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
)

_UNEVALUATED = frozenset(["unevaluatedProperties", "unevaluatedItems"])


class Interpreter:
    """Meanings of goals over one document, each worked out once."""

    def __init__(self, document: Document, derivatives: Derivatives, numbers: NumberWriting) -> None:
        self.document = document
        self.derivatives = derivatives
        self.terms = derivatives.terms
        self.numbers = numbers
        self._places: dict[Key, Place] = {}
        self._meanings: dict[Goal, Meaning] = {}
        self._by_place: dict[Key, Meaning] = {}
        self._open: list[Key] = []
        self._keywords = TypeKeywords(document, self.terms, self.goal)
        self.outcomes = Outcomes(self)
        self.algebra = Algebra(derivatives, numbers, meaning=self.meaning, pattern=self.pattern)
        self.anything = self.algebra.anything

    def goal(self, place: Place) -> Goal:
        """The goal that a subschema is."""
        if place.schema is True or place.schema == {}:
            return ANYTHING
        if place.schema is False:
            return NEVER
        self._places.setdefault(place.key, place)
        return goal_of(("schema", *place.key))

    def pointer_of(self, goal: Goal) -> str:
        """Where a goal comes from, for messages."""
        for atom in sorted(goal, key=repr):
            if atom[0] == "schema":
                return str(atom[1])
            if atom[0] == "not":
                return self.pointer_of(atom[1])
            if atom[0] == "or":
                return self.pointer_of(frozenset().union(*atom[1]))
        return ""

    def meaning(self, goal: Goal) -> Meaning:
        """What a goal allows, one level deep.

        Raises:
            ConstraintError: a keyword cannot be decided, a reference leads nowhere or in a circle.
        """
        found = self._meanings.get(goal)
        if found is None:
            found = self._meanings[goal] = self._joined(goal)
        return found

    def _joined(self, goal: Goal) -> Meaning:
        """Goals grow an atom at a time, so most of one is known."""
        if not goal:
            return self.anything
        if len(goal) == 1:
            return self._atom(*goal)
        *_, last = sorted(goal, key=repr)
        one = goal_of(last)
        return self.algebra.both(self.meaning(goal - one), self.meaning(one))

    def _atom(self, atom: Atom) -> Meaning:
        match atom[0]:
            case "schema":
                return self.schema(self._places[atom[1:]])
            case "const":
                return self._listed([json.loads(atom[1], parse_float=Decimal)])
            case "not":
                return self.algebra.complement(self.meaning(atom[1]))
            case "or":
                return united(map(self.meaning, atom[1]))
        return NOTHING

    # -- one schema -----------------------------------------------------------------------------------

    def schema(self, place: Place) -> Meaning:
        """What a subschema allows."""
        found = self._by_place.get(place.key)
        if found is None:
            if place.key in self._open:
                raise CircularError("the schema refers to itself without end", pointer=place.pointer)
            self._open.append(place.key)
            try:
                found = self._by_place[place.key] = self._read(place)
            finally:
                self._open.pop()
        return found

    def _read(self, place: Place) -> Meaning:
        schema = place.schema
        check_place(self.document, place)
        if isinstance(schema, bool):
            return self.anything if schema else NOTHING
        if "$ref" in schema and self.document.draft <= Draft.D7:
            return self.schema(self.document.resolve(place, "$ref"))  # its neighbours mean nothing in these drafts
        if _UNEVALUATED & schema.keys():
            return united(meaning for meaning, _ in self.outcomes.of(place))
        found = self.own(place)
        for keyword in _APPLICATORS:
            if keyword in schema:
                found = self.applied(place, keyword, found)
        return found

    def applied(self, place: Place, keyword: str, found: Meaning) -> Meaning:
        """What is left of a meaning under a keyword that combines schemas."""
        return located(place, keyword, partial(self._applied, place, keyword, found))

    def _applied(self, place: Place, keyword: str, found: Meaning) -> Meaning:
        both = self.algebra.both
        match keyword:
            case "allOf":
                for one in self.each(place, keyword):
                    found = self._within(one, found)
                return found
            case "anyOf":
                return both(found, united(map(self.schema, self.each(place, keyword))))
            case "oneOf":
                return self._one_of(place, found)
            case "not":
                return self.algebra.difference(found, self.schema(self.document.child(place, keyword)))
            case "if":
                return self._conditional(place, found)
            case "dependentRequired" | "dependentSchemas" | "dependencies":
                return both(found, self._dependent(keyword, place))
        return self._within(self.document.resolve(place, keyword), found)

    def _within(self, place: Place, found: Meaning) -> Meaning:
        """What is left of a meaning under a subschema. Read by itself it is remembered, but may be too large."""
        try:
            return self.algebra.both(found, self.schema(place))
        except SizeError:
            if place.key in self._open or not isinstance(place.schema, dict) or _UNEVALUATED & place.schema.keys():
                raise
        self._open.append(place.key)
        try:
            return self._narrowed(place, found)
        finally:
            self._open.pop()

    def _narrowed(self, place: Place, found: Meaning) -> Meaning:
        if "$ref" in place.schema and self.document.draft <= Draft.D7:
            return self._within(self.document.resolve(place, "$ref"), found)
        found = self.algebra.both(found, self.own(place))
        for keyword in _APPLICATORS:
            if keyword in place.schema:
                found = self.applied(place, keyword, found)
        return found

    def each(self, place: Place, keyword: str) -> list[Place]:
        return self.document.each(place, keyword)

    def pattern(self, pattern: str) -> Term:
        """The JSON bodies of texts in which an ECMA-262 pattern is found."""
        return self._keywords.pattern(pattern)

    def _one_of(self, place: Place, found: Meaning) -> Meaning:
        """Exactly one: what each branch leaves, without what the others allow."""
        meanings = [self.schema(one) for one in self.each(place, "oneOf")]
        branches = []
        for at, meaning in enumerate(meanings):
            branch = self.algebra.both(found, meaning)
            for excluded in meanings[:at] + meanings[at + 1 :]:
                branch = self.algebra.difference(branch, excluded)
            branches.append(branch)
        return united(branches)

    def _conditional(self, place: Place, found: Meaning) -> Meaning:
        condition = self.schema(self.document.child(place, "if"))
        held, failed = self.algebra.both(found, condition), self.algebra.difference(found, condition)
        if "then" in place.schema:
            held = self.algebra.both(held, self.schema(self.document.child(place, "then")))
        if "else" in place.schema:
            failed = self.algebra.both(failed, self.schema(self.document.child(place, "else")))
        return united([held, failed])

    def _dependent(self, keyword: str, place: Place) -> Meaning:
        found = self.anything
        for name in place.schema[keyword]:
            absent = Objects(rules=(KeyRule(named=((name, NEVER),)),))
            demand = place.schema[keyword][name]
            if isinstance(demand, list):
                present = [Objects(required=tuple(dict.fromkeys((name, *demand))))]
            else:
                then = self.schema(self.document.child(place, keyword, name))
                present = [both_objects(Objects(required=(name,)), one) for one in then.objects]
            found = self.algebra.both(found, self.only_objects([absent, *present]))
        return found

    def only_objects(self, objects: list[Objects]) -> Meaning:
        every = self.anything
        return Meaning(every.strings, every.numbers, every.arrays, tuple(objects), every.booleans, every.null)

    # -- keywords about one type ----------------------------------------------------------------------

    def own(self, place: Place) -> Meaning:
        """What the keywords about single types allow, and `const` and `enum`."""
        named = place.schema.get("type", list(TYPES))
        types = set(named if isinstance(named, list) else [named])
        is_integer = "integer" in types and "number" not in types
        read = self._keywords
        found = Meaning(
            self.algebra.live_strings(read.strings(place)) if "string" in types else (),
            self.algebra.written_numbers(read.numbers(place, is_integer)) if types & {"integer", "number"} else (),
            (read.arrays(place),) if "array" in types else (),
            (read.objects(place),) if "object" in types else (),
            frozenset([True, False]) if "boolean" in types else frozenset(),
            "null" in types,
        )
        if "const" in place.schema:
            found = self.algebra.both(found, self._listed([place.schema["const"]], f"{place.pointer}/const"))
        if "enum" in place.schema:
            found = self.algebra.both(found, self._listed(place.schema["enum"], f"{place.pointer}/enum"))
        return found

    def _listed(self, values: list[Any], pointer: str = "") -> Meaning:
        return listed(values, self.algebra.string_set, pointer)


def located(place: Place, keyword: str, read: Callable[[], Result]) -> Result:
    """What a keyword is read as; a refusal that does not say where is this keyword's."""
    try:
        return read()
    except ConstraintError as error:
        if error.pointer:
            raise
        raise type(error)(error.reason, pointer=f"{place.pointer}/{keyword}") from None
