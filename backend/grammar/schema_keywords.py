"""The keywords about one JSON type, read as one shape of that type. Children are goals, and are not looked into."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from forktree.backend.grammar.codepoints import ANY
from forktree.backend.grammar.number_sets import ALL_NUMBERS, Numbers, both_numbers
from forktree.backend.grammar.regex_ecma import parse_ecma
from forktree.backend.grammar.regex_terms import search, whole_match
from forktree.backend.grammar.schema_constants import bounded
from forktree.backend.grammar.schema_document import Document, Place
from forktree.backend.grammar.schema_formats import KNOWN_FORMATS, MAX_HOSTNAME, format_syntax, undecided
from forktree.backend.grammar.schema_lookahead import split_lookaheads
from forktree.backend.grammar.schema_shapes import ANYTHING, Arrays, Contains, Goal, KeyRule, Objects, Strings
from forktree.backend.grammar.substrings import json_pieces
from forktree.backend.grammar.terms import Term, Terms
from forktree.lang.constraints import VERBATIM
from forktree.lang.errors import ConstraintError


class TypeKeywords:
    """Shapes of subschemas, type by type.

    Args:
        goal: the goal that a subschema is.
    Raises, when a shape is read:
        ConstraintError: a keyword cannot be decided, or bounds cross.
    """

    def __init__(self, document: Document, terms: Terms, goal: Callable[[Place], Goal]) -> None:
        self._document = document
        self._terms = terms
        self._goal = goal
        self._patterns: dict[str, Term] = {}

    def strings(self, place: Place) -> Strings:
        """Perhaps none."""
        schema = place.schema
        parts = [self._terms.any_chars("json")]
        low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
        if high is not None and high < low:
            raise ConstraintError(f"maxLength {high} is below minLength {low}", pointer=f"{place.pointer}/maxLength")
        if VERBATIM in schema:
            parts.append(self._pieces(place, low, None if high is None else int(high)))
        elif low or high is not None:
            char = self._terms.char(ANY, "json")
            parts.append(self._terms.repeat(char, low, None if high is None else int(high)))
        if "pattern" in schema:
            parts.append(self.pattern(schema["pattern"], f"{place.pointer}/pattern"))
        if schema.get("format") in KNOWN_FORMATS:
            parts += self._format(schema["format"], f"{place.pointer}/format")
        return Strings(self._terms.both(parts))

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
        parts = [search(self._terms, parse_ecma(rest), "json")]
        for one in lookaheads:
            term = search(self._terms, parse_ecma(one.pattern), "json")
            parts.append(self._terms.without(term) if one.is_negative else term)
        return self._terms.both(parts)

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
        return self._terms.machine(machine, start) if machine.is_live(start) else self._terms.empty

    def _format(self, name: str, pointer: str) -> list[Term]:
        reason = undecided(name, self._document.draft)
        if reason is not None:
            raise ConstraintError(
                f"format {name!r} cannot be decided by an automaton ({reason}): drop it, or say it as a pattern",
                pointer=pointer,
            )
        term = self._patterns.get(f"format {name}")
        if term is None:
            term = self._patterns[f"format {name}"] = whole_match(self._terms, format_syntax(name), "json")
        if name == "hostname":
            return [term, self._terms.repeat(self._terms.char(ANY, "json"), 1, MAX_HOSTNAME)]
        return [term]

    def numbers(self, place: Place, is_integer: bool) -> Numbers | None:
        """None where the bounds leave none; an integer is what `type` says."""
        schema = place.schema
        found: Numbers | None = Numbers(step=Decimal(1), is_integer=True) if is_integer else ALL_NUMBERS
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
            if keyword not in schema or isinstance(schema[keyword], bool):
                continue
            value = bounded(schema[keyword], f"{place.pointer}/{keyword}")
            is_strict = keyword.startswith("exclusive") or schema.get(f"exclusive{keyword.capitalize()}") is True
            demand = _demand_of(keyword, value, is_strict=is_strict)
            found = both_numbers(found, demand) if found is not None else None
        return found

    def arrays(self, place: Place) -> Arrays:
        schema = place.schema
        items = schema.get("items", True)
        prefix = self._document.each(place, "prefixItems") if "prefixItems" in schema else []
        rest = ANYTHING
        if isinstance(items, list):
            prefix = self._document.each(place, "items")
            if "additionalItems" in schema:
                rest = self._goal(self._document.child(place, "additionalItems"))
        elif "items" in schema:
            rest = self._goal(self._document.child(place, "items"))
        shape = Arrays(
            tuple(map(self._goal, prefix)),
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
        return shape

    def _contains(self, place: Place) -> tuple[Contains, ...]:
        schema = place.schema
        if "contains" not in schema:
            return ()
        goal = self._goal(self._document.child(place, "contains"))
        high = schema.get("maxContains")
        return (Contains(goal, int(schema.get("minContains", 1)), None if high is None else int(high)),)

    def objects(self, place: Place) -> Objects:
        schema = place.schema
        child = self._document.child
        named = [(name, self._goal(child(place, "properties", name))) for name in schema.get("properties", {})]
        patterns = []
        for pattern in schema.get("patternProperties", {}):
            self.pattern(pattern, f"{place.pointer}/patternProperties")
            patterns.append((pattern, self._goal(child(place, "patternProperties", pattern))))
        additional = ANYTHING
        if "additionalProperties" in schema:
            additional = self._goal(child(place, "additionalProperties"))
        is_free = not named and not patterns and additional == ANYTHING
        names = self._goal(child(place, "propertyNames")) if "propertyNames" in schema else ANYTHING
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
        return shape


def _demand_of(keyword: str, value: Decimal, *, is_strict: bool) -> Numbers:
    if keyword == "multipleOf":
        return Numbers(step=value)
    if keyword.lower().endswith("minimum"):
        return Numbers(low=value, is_above=is_strict)
    return Numbers(high=value, is_below=is_strict)
