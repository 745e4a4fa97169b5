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

from forktree.backend.grammar.choices import any_of
from forktree.backend.grammar.codepoints import ANY
from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.number_sets import (
    ALL_NUMBERS,
    MAX_DIGITS,
    Numbers,
    both_numbers,
    not_numbers,
)
from forktree.backend.grammar.regex_ecma import parse_ecma
from forktree.backend.grammar.regex_terms import search, whole_match
from forktree.backend.grammar.schema_document import Document, Draft, Key, Place
from forktree.backend.grammar.schema_evaluated import Outcomes
from forktree.backend.grammar.schema_formats import (
    KNOWN_FORMATS,
    MAX_HOSTNAME,
    UNDECIDED_FORMATS,
    format_syntax,
)
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
    Keys,
    Meaning,
    Objects,
    Strings,
    both_arrays,
    both_objects,
    goal_of,
    not_arrays,
    not_objects,
    pairs,
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


class Interpreter:
    """Meanings of goals over one document, each worked out once."""

    def __init__(self, document: Document, derivatives: Derivatives, numbers: NumberWriting) -> None:
        self.document = document
        self.derivatives = derivatives
        self.terms = derivatives.terms
        self.numbers = numbers
        self.any_body = self.terms.any_chars("json")
        self._places: dict[Key, Place] = {}
        self._meanings: dict[Goal, Meaning] = {}
        self._by_place: dict[Key, Meaning] = {}
        self._open: list[Key] = []
        self._patterns: dict[str, Term] = {}
        self.outcomes = Outcomes(self)
        self.anything = Meaning(
            (Strings(self.any_body),),
            (ALL_NUMBERS,),
            (Arrays(),),
            (Objects(),),
            frozenset([True, False]),
            True,
        )

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
            found = self.anything
            for atom in sorted(goal, key=repr):
                found = self.both(found, self._atom(atom))
            self._meanings[goal] = found
        return found

    def _atom(self, atom: Atom) -> Meaning:
        match atom[0]:
            case "schema":
                return self.schema(self._places[atom[1:]])
            case "const":
                return self._values([json.loads(atom[1], parse_float=Decimal)])
            case "not":
                return self.complement(self.meaning(atom[1]))
            case "or":
                return united(map(self.meaning, atom[1]))
        return NOTHING

    # -- one schema -----------------------------------------------------------------------------------

    def schema(self, place: Place) -> Meaning:
        """What a subschema allows."""
        found = self._by_place.get(place.key)
        if found is None:
            if place.key in self._open:
                raise ConstraintError("the schema refers to itself without end", pointer=place.pointer)
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
            return self._reference("$ref", place)  # its neighbours mean nothing in these drafts
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            return united(meaning for meaning, _ in self.outcomes.of(place))
        found = self.own(place)
        for keyword in _APPLICATORS:
            if keyword in schema:
                found = self.both(found, self.applied(place, keyword))
        return found

    def applied(self, place: Place, keyword: str) -> Meaning:
        """What a keyword that combines schemas allows."""
        return located(place, keyword, partial(self._applied, place, keyword))

    def _applied(self, place: Place, keyword: str) -> Meaning:
        match keyword:
            case "allOf":
                return self._all_of(place)
            case "anyOf":
                return united(map(self.schema, self.each(place, "anyOf")))
            case "oneOf":
                return self._one_of(place)
            case "not":
                return self.complement(self.schema(self.document.child(place, "not")))
            case "if":
                return self._conditional(place)
            case "dependentRequired" | "dependentSchemas" | "dependencies":
                return self._dependent(keyword, place)
        return self._reference(keyword, place)

    def each(self, place: Place, keyword: str) -> list[Place]:
        return [self.document.child(place, keyword, at) for at in range(len(place.schema[keyword]))]

    def _reference(self, keyword: str, place: Place) -> Meaning:
        return self.schema(self.document.resolve(place, keyword))

    def _all_of(self, place: Place) -> Meaning:
        found = self.anything
        for one in self.each(place, "allOf"):
            found = self.both(found, self.schema(one))
        return found

    def _one_of(self, place: Place) -> Meaning:
        """Exactly one: each branch without the others, where they can meet at all."""
        meanings = [self.schema(one) for one in self.each(place, "oneOf")]
        found = []
        for at, meaning in enumerate(meanings):
            for other, excluded in enumerate(meanings):
                if other != at and not self.is_disjoint(meaning, excluded):
                    meaning = self.both(meaning, self.complement(excluded))
            found.append(meaning)
        return united(found)

    def _conditional(self, place: Place) -> Meaning:
        condition = self.schema(self.document.child(place, "if"))
        branches = []
        for keyword, branch in (("then", condition), ("else", self.complement(condition))):
            if keyword in place.schema:
                branch = self.both(branch, self.schema(self.document.child(place, keyword)))
            branches.append(branch)
        return united(branches)

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
            found = self.both(found, self.only_objects([absent, *present]))
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
            found = self.both(found, self._values([place.schema["const"]], f"{place.pointer}/const"))
        if "enum" in place.schema:
            found = self.both(found, self._values(place.schema["enum"], f"{place.pointer}/enum"))
        return found

    def _strings(self, place: Place) -> tuple[Strings, ...]:
        schema = place.schema
        parts = [self.any_body]
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
        return self._live_strings(Strings(self.terms.both(parts)))

    def pattern(self, pattern: str, pointer: str = "") -> Term:
        """The JSON bodies of texts in which an ECMA-262 pattern is found."""
        found = self._patterns.get(pattern)
        if found is None:
            try:
                found = search(self.terms, parse_ecma(pattern), "json")
            except ConstraintError as error:
                raise ConstraintError(f"{error.reason}, {error.pointer}", pointer=pointer) from None
            self._patterns[pattern] = found
        return found

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
        if name in UNDECIDED_FORMATS:
            raise ConstraintError(f"format {name!r} cannot be decided by an automaton: drop it", pointer=pointer)
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
            value = _bound(schema[keyword], f"{place.pointer}/{keyword}")
            is_strict = keyword.startswith("exclusive") or schema.get(f"exclusive{keyword.capitalize()}") is True
            demand = _demand_of(keyword, value, is_strict=is_strict)
            found = both_numbers(found, demand) if found is not None else None
        return self._written_numbers(found)

    def _written_numbers(self, shape: Numbers | None) -> tuple[Numbers, ...]:
        return (shape,) if shape is not None and self.numbers.can_write(shape) else ()

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

    # -- values ---------------------------------------------------------------------------------------

    def _values(self, values: list[Any], pointer: str = "") -> Meaning:
        strings = {value for value in values if isinstance(value, str) and not _has_surrogate(value)}
        numbers = {
            _bound(value, pointer)
            for value in values
            if isinstance(value, int | Decimal) and not isinstance(value, bool)
        }
        return Meaning(
            (self._string_set(frozenset(strings)),) if strings else (),
            (self._number_set(frozenset(numbers)),) if numbers else (),
            tuple(dict.fromkeys(_array_of(value) for value in values if isinstance(value, list))),
            tuple(dict.fromkeys(_object_of(value) for value in values if isinstance(value, dict))),
            frozenset(value for value in values if isinstance(value, bool)),
            None in values,
        )

    def _string_set(self, texts: frozenset[str]) -> Strings:
        return Strings(any_of(self.terms, texts, self.escaped_char), texts)

    def escaped_char(self, char: str) -> Term:
        """One character in every spelling that JSON has."""
        return self.terms.char(((ord(char), ord(char) + 1),), "json")

    def _number_set(self, values: frozenset[Decimal]) -> Numbers:
        return Numbers(only=values, is_integer=all(value == value.to_integral_value() for value in values))

    # -- algebra --------------------------------------------------------------------------------------

    def both(self, left: Meaning, right: Meaning) -> Meaning:
        """What both allow."""
        if left is self.anything:
            return right
        if right is self.anything:
            return left
        arrays = (both_arrays(a, b) for a, b in pairs(left.arrays, right.arrays))
        objects = (both_objects(a, b) for a, b in pairs(left.objects, right.objects))
        return united(
            [
                Meaning(
                    tuple(s for a, b in pairs(left.strings, right.strings) for s in self._both_strings(a, b)),
                    tuple(n for a, b in pairs(left.numbers, right.numbers) for n in self._both_numbers(a, b)),
                    tuple(one for one in arrays if one.high is None or one.low <= one.high),
                    tuple(one for one in objects if one.high is None or one.low <= one.high),
                    left.booleans & right.booleans,
                    left.null and right.null,
                )
            ]
        )

    def _both_strings(self, left: Strings, right: Strings) -> tuple[Strings, ...]:
        if left.only is None and right.only is None:
            return self._live_strings(Strings(self.terms.both([left.term, right.term])))
        texts = left.only if right.only is None else right.only if left.only is None else left.only & right.only
        assert texts is not None
        kept = frozenset(text for text in texts if all(self.has_text(one.term, text) for one in (left, right)))
        return (self._string_set(kept),) if kept else ()

    def has_text(self, body: Term, text: str) -> bool:
        """Whether a language of JSON bodies has this text."""
        written = json.dumps(text, ensure_ascii=False)[1:-1]
        state = self.derivatives.run(body, written.encode("utf-8", "surrogatepass"))
        return state is not None and state.nullable

    def _both_numbers(self, left: Numbers, right: Numbers) -> tuple[Numbers, ...]:
        return self._written_numbers(both_numbers(left, right))

    def _live_strings(self, shape: Strings) -> tuple[Strings, ...]:
        return (shape,) if self.derivatives.is_live(shape.term) else ()

    def complement(self, meaning: Meaning) -> Meaning:
        """Everything that the meaning excludes."""
        found = Meaning(
            self._not_strings(meaning.strings),
            self._not_numbers(meaning.numbers),
            booleans=frozenset([True, False]) - meaning.booleans,
            null=not meaning.null,
        )
        arrays: tuple[Arrays, ...] = (Arrays(),)
        for shape in meaning.arrays:
            merged = (both_arrays(a, b) for a, b in pairs(arrays, tuple(not_arrays(shape))))
            arrays = tuple(dict.fromkeys(one for one in merged if one.high is None or one.low <= one.high))
        objects: tuple[Objects, ...] = (Objects(),)
        for one in meaning.objects:
            joined = (both_objects(a, b) for a, b in pairs(objects, tuple(not_objects(one))))
            objects = tuple(dict.fromkeys(kept for kept in joined if kept.high is None or kept.low <= kept.high))
        return united([found, Meaning(arrays=arrays, objects=objects)])

    def _not_strings(self, shapes: tuple[Strings, ...]) -> tuple[Strings, ...]:
        left = [self.any_body, *(self.terms.without(one.term) for one in shapes)]
        return self._live_strings(Strings(self.terms.both(left)))

    def _not_numbers(self, shapes: tuple[Numbers, ...]) -> tuple[Numbers, ...]:
        found: tuple[Numbers, ...] = (ALL_NUMBERS,)
        for shape in shapes:
            merged = (self._both_numbers(a, b) for a, b in pairs(found, tuple(not_numbers(shape))))
            found = tuple(dict.fromkeys(one for some in merged for one in some))
        return found

    def is_disjoint(self, left: Meaning, right: Meaning) -> bool:
        """Sound and quick: no value meets both. Objects are told apart by a constant or a missing name."""
        met = self.both(
            Meaning(left.strings, left.numbers, booleans=left.booleans, null=left.null),
            Meaning(right.strings, right.numbers, booleans=right.booleans, null=right.null),
        )
        if not met.is_empty or (left.arrays and right.arrays):
            return False
        return all(self._objects_clash(both_objects(a, b)) for a, b in pairs(left.objects, right.objects))

    def _objects_clash(self, shape: Objects) -> bool:
        return any(self._clashes(self.key_goal(shape, name)) for name in shape.required)

    def _clashes(self, goal: Goal) -> bool:
        if goal >= NEVER:
            return True
        if any(atom[0] == "schema" and atom[1:] in self._open for atom in goal):
            return False
        return self.meaning(goal).is_empty

    def is_of(self, keys: Keys, text: str) -> bool:
        """Whether a text is a key of this kind."""
        return (
            text not in keys.without
            and all(self.has_text(self.pattern(one), text) for one in keys.matching)
            and not any(self.has_text(self.pattern(one), text) for one in keys.not_matching)
            and (keys.names == ANYTHING or self.is_text_of(keys.names, text))
        )

    def is_text_of(self, goal: Goal, text: str) -> bool:
        """Whether a text meets the goal as a string."""
        return any(self.has_text(shape.term, text) for shape in self.meaning(goal).strings)

    def key_goal(self, shape: Objects, name: str) -> Goal:
        """What the value under this key has to meet."""
        atoms: set[Atom] = set()
        for rule in shape.rules:
            own = [goal for key, goal in rule.named if key == name]
            own += [goal for pattern, goal in rule.patterns if self.has_text(self.pattern(pattern), name)]
            for goal in own or [rule.additional]:
                atoms |= goal
        for keys in shape.every:
            if self.is_of(keys, name):
                atoms |= keys.value
        return NEVER if ("never",) in atoms else frozenset(atoms)


def _array_of(value: list[Any]) -> Arrays:
    return Arrays(tuple(_const_goal(one) for one in value), NEVER, len(value), len(value))


def _object_of(value: dict[str, Any]) -> Objects:
    named = tuple((name, _const_goal(one)) for name, one in value.items())
    return Objects((KeyRule(named, (), NEVER),), tuple(value))


def _const_goal(value: Any) -> Goal:
    return goal_of(("const", _written(value)))


def _written(value: Any) -> str:
    """JSON text of a value with exact decimals."""
    if isinstance(value, Decimal):
        return f"{value:f}" if value.as_tuple().exponent != 0 else f"{value:f}.0"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_written(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)


def located(place: Place, keyword: str, read: Callable[[], Result]) -> Result:
    """What a keyword is read as; a refusal that does not say where is this keyword's."""
    try:
        return read()
    except ConstraintError as error:
        if error.pointer:
            raise
        raise ConstraintError(error.reason, pointer=f"{place.pointer}/{keyword}") from None


def _demand_of(keyword: str, value: Decimal, *, is_strict: bool) -> Numbers:
    if keyword == "multipleOf":
        return Numbers(step=value)
    if keyword.lower().endswith("minimum"):
        return Numbers(low=value, is_above=is_strict)
    return Numbers(high=value, is_below=is_strict)


def _bound(value: int | Decimal, pointer: str) -> Decimal:
    exact = Decimal(value)
    if exact and not -MAX_DIGITS <= exact.adjusted() <= MAX_DIGITS:
        raise ConstraintError(f"the number {value} has more than {MAX_DIGITS} digits", pointer=pointer)
    return exact


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
