"""Whether a schema is one: every keyword's value is what its draft's metaschema demands.

The metaschemas are small; they are spelled out here as one check a keyword, so that a refusal can say what was
found and where. What a draft does not define constrains nothing and is collected with the annotations.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, get_args

from forktree.backend.grammar.schema_document import (
    ONE_SCHEMA,
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    Document,
    Draft,
    Place,
)
from forktree.backend.grammar.schema_formats import KNOWN_FORMATS
from forktree.lang.constraints import VERBATIM, Unit
from forktree.lang.errors import ConstraintError

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
    ]
)
MAX_COUNT = 10**30
_REFERENCES = frozenset(["$ref", "$dynamicRef", "$recursiveRef"])
_STRUCTURE = frozenset(
    ["$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$defs", "definitions"]
)
_COUNTS = frozenset(
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"]
)
_NUMBERS = frozenset(["minimum", "maximum"])
_CONSTRAINTS = (
    ONE_SCHEMA
    | SCHEMA_LISTS
    | SCHEMA_MAPS
    | _COUNTS
    | _NUMBERS
    | frozenset(
        [
            "type",
            "enum",
            "const",
            "items",
            "required",
            "pattern",
            "format",
            "uniqueItems",
            "multipleOf",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "dependencies",
            "dependentRequired",
            VERBATIM,
        ]
    )
) - ANNOTATIONS
KEYWORDS = _CONSTRAINTS | _REFERENCES | _STRUCTURE


def is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    if isinstance(value, Decimal):  # `int` of 1e999999999 would not end
        return 0 <= value < MAX_COUNT and value == value.to_integral_value()
    return is_number(value) and 0 <= value < MAX_COUNT


def annotations_of(document: Document) -> tuple[str, ...]:
    """Pointers of everything that constrains nothing: annotations, and keywords and formats that no draft defines."""
    found = []
    for place in document.places():
        if isinstance(place.schema, dict):
            for keyword, value in place.schema.items():
                is_loose = keyword in ANNOTATIONS or keyword not in KEYWORDS
                if keyword == "id" and document.draft != Draft.D4:
                    is_loose = True
                if is_loose or (keyword == "format" and value not in KNOWN_FORMATS):
                    found.append(f"{place.pointer}/{keyword.replace('~', '~0').replace('/', '~1')}")
    return tuple(found)


def check(document: Document) -> None:
    """Checks every subschema.

    Raises:
        ConstraintError: one is not a schema of this draft, with the pointer to it.
    """
    for place in document.places():
        check_place(document, place)


def check_place(document: Document, place: Place) -> None:
    """Checks one subschema, not those below it."""
    schema = place.schema
    if isinstance(schema, bool) and (document.draft > Draft.D4 or place.pointer.endswith("/additionalProperties")):
        return
    if isinstance(schema, bool) and place.pointer.endswith("/additionalItems"):
        return
    if not isinstance(schema, dict):
        kind = "an object" if document.draft == Draft.D4 else "an object or a boolean"
        _refuse(place.pointer, f"a schema must be {kind}, not {_shown(schema)}")
    for keyword, value in schema.items():
        demand = _demand(document.draft, keyword, value)
        if demand is not None:
            _refuse(f"{place.pointer}/{keyword}", f"{keyword} must be {demand}, not {_shown(value)}")


def _demand(draft: Draft, keyword: str, value: Any) -> str | None:
    """What a keyword's value should have been, or None where it is right."""
    if keyword in _COUNTS:
        return None if is_count(value) else "an integer that is not negative (and below 10^30)"
    if keyword in _NUMBERS:
        return None if is_number(value) else "a number"
    if keyword in SCHEMA_LISTS:
        return None if isinstance(value, list) and value else "a list of schemas with at least one"
    if keyword in SCHEMA_MAPS or keyword in ("dependentRequired", "dependencies"):
        return _map_demand(keyword, value)
    if keyword in _REFERENCES or keyword in ("$id", "$anchor", "$dynamicAnchor", "$comment", "pattern", "format"):
        return None if isinstance(value, str) else "a text"
    rule = _RULES.get(keyword)
    return rule(draft, value) if rule is not None else None


def _map_demand(keyword: str, value: Any) -> str | None:
    if not isinstance(value, dict):
        return "an object"
    if keyword == "dependentRequired" and not all(_is_names(names) for names in value.values()):
        return "an object of lists of different texts"
    if keyword == "dependencies":
        lists = [names for names in value.values() if isinstance(names, list)]
        return None if all(_is_names(names) for names in lists) else "an object of schemas or lists of texts"
    return None


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value) and len(set(value)) == len(value)


def _type(draft: Draft, value: Any) -> str | None:
    names = value if isinstance(value, list) else [value]
    is_right = bool(names) and all(isinstance(one, str) and one in TYPES for one in names)
    return None if is_right and len(set(names)) == len(names) else f"one of {', '.join(TYPES)}, or a list of them"


def _enum(draft: Draft, value: Any) -> str | None:
    return None if isinstance(value, list) else "a list of values"


def _required(draft: Draft, value: Any) -> str | None:
    if draft == Draft.D4 and (value == [] or isinstance(value, bool)):
        return "a list of different names with at least one (a list of the object's, not a flag of the property's)"
    return None if _is_names(value) else "a list of different names"


def _exclusive(draft: Draft, value: Any) -> str | None:
    if draft == Draft.D4:
        return None if isinstance(value, bool) else "a boolean in draft 4"
    return None if is_number(value) else "a number (a boolean only in draft 4)"


def _items(draft: Draft, value: Any) -> str | None:
    if isinstance(value, list):
        return None if draft < Draft.D2020 and (value or draft != Draft.D4) else "one schema (prefixItems is the list)"
    return None


def _multiple(draft: Draft, value: Any) -> str | None:
    return None if is_number(value) and value > 0 else "a number above zero"


def _flag(draft: Draft, value: Any) -> str | None:
    return None if isinstance(value, bool) else "a boolean"


def _verbatim(draft: Draft, value: Any) -> str | None:
    is_right = isinstance(value, dict) and isinstance(value.get("document", ""), str)
    is_right = is_right and not value.keys() - {"document", "unit"} and value.get("unit", "word") in get_args(Unit)
    return None if is_right else 'an object with a text "document" and perhaps a "unit", "character" or "word"'


_RULES: dict[str, Callable[[Draft, Any], str | None]] = {
    "type": _type,
    "enum": _enum,
    "required": _required,
    "exclusiveMinimum": _exclusive,
    "exclusiveMaximum": _exclusive,
    "items": _items,
    "multipleOf": _multiple,
    "uniqueItems": _flag,
    VERBATIM: _verbatim,
}


def _shown(value: Any) -> str:
    text = repr(str(value) if isinstance(value, Decimal) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def _refuse(pointer: str, reason: str) -> None:
    raise ConstraintError(f"not a valid schema: {reason}", pointer=pointer)
