"""The keywords of a schema, read as what they allow.

A schema is the conjunction of its keywords. Keywords about one type are joined into one shape of that type;
`allOf`, `anyOf`, `oneOf`, `not`, `if`, `dependent…` and references combine whole meanings. Nothing here looks into
the children of arrays and objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

from forktree.backend.grammar.codepoints import ANY
from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.number_sets import (
    ALL_NUMBERS,
    Numbers,
    both_numbers,
)
from forktree.backend.grammar.regex_ecma import parse_ecma
from forktree.backend.grammar.regex_terms import search, whole_match
from forktree.backend.grammar.schema_algebra import Algebra, CircularError
from forktree.backend.grammar.schema_constants import bounded, listed
from forktree.backend.grammar.schema_document import Document, Draft, Key, Place
from forktree.backend.grammar.schema_evaluated import Outcomes
from forktree.backend.grammar.schema_formats import (
    KNOWN_FORMATS,
    MAX_HOSTNAME,
    format_syntax,
    undecided,
)
from forktree.backend.grammar.schema_lookahead import split_lookaheads
from forktree.backend.grammar.schema_numbers import NumberWriting
from forktree.backend.grammar.schema_shapes import (
    ANYTHING,
    NEVER,
    NOTHING,
    Arrays,
    Atom,
    Contains,
    Goal,
    KeyRule,
    Meaning,
    Objects,
    SizeError,
    Strings,
    both_objects,
    goal_of,
    united,
)
from forktree.backend.grammar.schema_syntax import TYPES, check_place
from forktree.backend.grammar.substrings import json_pieces
from forktree.backend.grammar.terms import Term
from forktree.lang.constraints import VERBATIM
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
        self._patterns: dict[str, Term] = {}
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
        return [self.document.child(place, keyword, at) for at in range(len(place.schema[keyword]))]

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
        found = Meaning(
            self._strings(place) if "string" in types else (),
            self._numbers(place, is_integer=is_integer) if types & {"integer", "number"} else (),
            self._arrays(place) if "array" in types else (),
            self._objects(place) if "object" in types else (),
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

    def _strings(self, place: Place) -> tuple[Strings, ...]:
        schema = place.schema
        parts = [self.algebra.any_body]
        low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
        if high is not None and high < low:
            raise ConstraintError(f"maxLength {high} is below minLength {low}", pointer=f"{place.pointer}/maxLength")
        if VERBATIM in schema:
            parts.append(self._pieces(place, low, None if high is None else int(high)))
        elif low or high is not None:
            char = self.terms.char(ANY, "json")
            parts.append(self.terms.repeat(char, low, None if high is None else int(high)))
        if "pattern" in schema:
            parts.append(self.pattern(schema["pattern"], f"{place.pointer}/pattern"))
        if schema.get("format") in KNOWN_FORMATS:
            parts += self._format(schema["format"], f"{place.pointer}/format")
        return self.algebra.live_strings(Strings(self.terms.both(parts)))

    def pattern(self, pattern: str, pointer: str = "") -> Term:
        """The JSON bodies of texts in which an ECMA-262 pattern is found."""
        found = self._patterns.get(pattern)
        if found is None:
            try:
                found = self._search(pattern)
            except ConstraintError as error:
                raise ConstraintError(f"{error.reason}, {error.pointer}", pointer=pointer) from None
            self._patterns[pattern] = found
        return found

    def _search(self, pattern: str) -> Term:
        lookaheads, rest = split_lookaheads(pattern)
        parts = [search(self.terms, parse_ecma(rest), "json")]
        for one in lookaheads:
            term = search(self.terms, parse_ecma(one.pattern), "json")
            parts.append(self.terms.without(term) if one.is_negative else term)
        return self.terms.both(parts)

    def _pieces(self, place: Place, low: int, high: int | None) -> Term:
        """The JSON bodies of the literal pieces of a document that have `low` to `high` characters."""
        keyword, pointer = place.schema[VERBATIM], f"{place.pointer}/{VERBATIM}"
        if "document" not in keyword:
            raise ConstraintError("a Verbatim field has no document: give it one, or gen(document=…)", pointer=pointer)
        try:
            machine = json_pieces(keyword["document"], keyword.get("unit", "character"))
        except ConstraintError as error:
            raise ConstraintError(error.reason, pointer=pointer) from None
        start = machine.start(low, high)
        return self.terms.machine(machine, start) if machine.is_live(start) else self.terms.empty

    def _format(self, name: str, pointer: str) -> list[Term]:
        reason = undecided(name, self.document.draft)
        if reason is not None:
            raise ConstraintError(
                f"format {name!r} cannot be decided by an automaton ({reason}): drop it, or say it as a pattern",
                pointer=pointer,
            )
        term = self._patterns.get(f"format {name}")
        if term is None:
            term = self._patterns[f"format {name}"] = whole_match(self.terms, format_syntax(name), "json")
        if name == "hostname":
            return [term, self.terms.repeat(self.terms.char(ANY, "json"), 1, MAX_HOSTNAME)]
        return [term]

    def _numbers(self, place: Place, *, is_integer: bool) -> tuple[Numbers, ...]:
        schema = place.schema
        found: Numbers | None = Numbers(step=Decimal(1), is_integer=True) if is_integer else ALL_NUMBERS
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
            if keyword not in schema or isinstance(schema[keyword], bool):
                continue
            value = bounded(schema[keyword], f"{place.pointer}/{keyword}")
            is_strict = keyword.startswith("exclusive") or schema.get(f"exclusive{keyword.capitalize()}") is True
            demand = _demand_of(keyword, value, is_strict=is_strict)
            found = both_numbers(found, demand) if found is not None else None
        return self.algebra.written_numbers(found)

    def _arrays(self, place: Place) -> tuple[Arrays, ...]:
        schema = place.schema
        items = schema.get("items", True)
        prefix = self.each(place, "prefixItems") if "prefixItems" in schema else []
        rest = ANYTHING
        if isinstance(items, list):
            prefix = self.each(place, "items")
            if "additionalItems" in schema:
                rest = self.goal(self.document.child(place, "additionalItems"))
        elif "items" in schema:
            rest = self.goal(self.document.child(place, "items"))
        shape = Arrays(
            tuple(map(self.goal, prefix)),
            rest,
            int(schema.get("minItems", 0)),
            int(schema["maxItems"]) if "maxItems" in schema else None,
            self._contains(place),
            True if schema.get("uniqueItems") else None,
        )
        if shape.high is not None and shape.high < shape.low:
            raise ConstraintError(
                f"maxItems {shape.high} is below minItems {shape.low}", pointer=f"{place.pointer}/maxItems"
            )
        return (shape,)

    def _contains(self, place: Place) -> tuple[Contains, ...]:
        schema = place.schema
        if "contains" not in schema:
            return ()
        goal = self.goal(self.document.child(place, "contains"))
        high = schema.get("maxContains")
        return (Contains(goal, int(schema.get("minContains", 1)), None if high is None else int(high)),)

    def _objects(self, place: Place) -> tuple[Objects, ...]:
        schema = place.schema
        child = self.document.child
        named = [(name, self.goal(child(place, "properties", name))) for name in schema.get("properties", {})]
        patterns = []
        for pattern in schema.get("patternProperties", {}):
            self.pattern(pattern, f"{place.pointer}/patternProperties")
            patterns.append((pattern, self.goal(child(place, "patternProperties", pattern))))
        additional = ANYTHING
        if "additionalProperties" in schema:
            additional = self.goal(child(place, "additionalProperties"))
        is_free = not named and not patterns and additional == ANYTHING
        names = self.goal(child(place, "propertyNames")) if "propertyNames" in schema else ANYTHING
        shape = Objects(
            () if is_free else (KeyRule(tuple(named), tuple(patterns), additional),),
            tuple(schema.get("required", ())),
            int(schema.get("minProperties", 0)),
            int(schema["maxProperties"]) if "maxProperties" in schema else None,
            names,
        )
        if shape.high is not None and shape.high < shape.low:
            raise ConstraintError(
                f"maxProperties {shape.high} is below minProperties {shape.low}",
                pointer=f"{place.pointer}/maxProperties",
            )
        return (shape,)


def located(place: Place, keyword: str, read: Callable[[], Result]) -> Result:
    """What a keyword is read as; a refusal that does not say where is this keyword's."""
    try:
        return read()
    except ConstraintError as error:
        if error.pointer:
            raise
        raise type(error)(error.reason, pointer=f"{place.pointer}/{keyword}") from None


def _demand_of(keyword: str, value: Decimal, *, is_strict: bool) -> Numbers:
    if keyword == "multipleOf":
        return Numbers(step=value)
    if keyword.lower().endswith("minimum"):
        return Numbers(low=value, is_above=is_strict)
    return Numbers(high=value, is_below=is_strict)
