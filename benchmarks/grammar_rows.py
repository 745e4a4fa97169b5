"""Schemas with instances, and the texts that an engine may be expected to accept for an instance.

A row is one JSON object a line: `schema`, `valid` and `invalid` (lists of instances), perhaps `id` and `draft`.
Instances are values; engines read text. JSON Schema says nothing about the order of keys, the blanks, or the spelling
of numbers, and every engine writes some of the possible forms only. So a valid instance counts as accepted when the
engine takes *one* of its forms here, and an invalid one as rejected when it takes none:

    as given        compact, keys as the row has them
    schema order    compact, keys in the order in which the schema names them, the others after them; beside a `$ref`
                    either the schema's own names come first, or the target's
    plain numbers   the same two, integers as digits and other numbers without an exponent
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

_MAX_DEPTH = 40  # of one value; deeper levels keep the order that they have


@dataclass(frozen=True, slots=True)
class Row:
    """One schema and its instances, each as the texts that may stand for it."""

    name: str
    schema: Any
    valid: tuple[tuple[str, ...], ...]
    invalid: tuple[tuple[str, ...], ...]


def load_rows(path: Path, limit: int | None = None) -> list[Row]:
    """The rows of a JSON Lines file, the first `limit`.

    Raises:
        ValueError: a line is no JSON object with a `schema`; the message names the line.
    """
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if limit is not None and len(rows) >= limit:
            break
        if not line.strip():
            continue
        try:
            rows.append(_row(json.loads(line), f"{path.stem}:{number}"))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}:{number} is not a JSON object with a schema: {error!r}") from error
    return rows


def _row(data: dict[str, Any], name: str) -> Row:
    schema = data["schema"]
    if data.get("draft") == "draft7" and isinstance(schema, dict):
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    valid, invalid = (tuple(written_forms(v, schema) for v in data.get(key, [])) for key in ("valid", "invalid"))
    return Row(data.get("id", name), schema, valid, invalid)


def written_forms(value: Any, schema: Any) -> tuple[str, ...]:
    """The texts that stand for a value, the likeliest first, without repeats."""
    orders = (_Order(schema, lead).apply(value, schema) for lead in ("own", "target"))
    texts = (render(form) for form in (value, *orders) for render in (_compact, _plain))
    return tuple(dict.fromkeys(texts))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> str:
    match value:
        case dict():
            return "{" + ",".join(f"{_compact(key)}:{_plain(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_plain, value)) + "]"
        case float() if value.is_integer():
            return str(int(value))
        case float():
            return format(Decimal(repr(value)), "f")
    return _compact(value)


class _Order:
    """Puts the keys of a value in the order in which a schema names them, in the branches that the value follows."""

    def __init__(self, root: Any, lead: Literal["own", "target"]) -> None:
        self._root = root
        self._lead = lead
        self._validator = validator_for(root, default=Draft202012Validator)(root)

    def apply(self, value: Any, *schemas: Any, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            return value
        applied = [part for schema in schemas for part in self._applied(value, schema, set())]
        if isinstance(value, list):
            return [
                self.apply(item, *self._item_schemas(applied, index), depth=depth + 1)
                for index, item in enumerate(value)
            ]
        if not isinstance(value, dict):
            return value
        named = dict.fromkeys(name for part in applied for name in _named(part))
        keys = [*(name for name in named if name in value), *(key for key in value if key not in named)]
        return {key: self.apply(value[key], *self._value_schemas(applied, key), depth=depth + 1) for key in keys}

    def _applied(self, value: Any, schema: Any, seen: set[int]) -> Iterator[dict[str, Any]]:
        """The schema and all that it applies to the same value, in document order."""
        if not isinstance(schema, dict) or id(schema) in seen:
            return
        seen.add(id(schema))
        if self._lead == "own":
            yield schema
        if isinstance(reference := schema.get("$ref"), str):
            yield from self._applied(value, self._resolved(reference), seen)
        if self._lead == "target":
            yield schema
        for part in _list(schema.get("allOf")):
            yield from self._applied(value, part, seen)
        for part in (*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))):
            if self._follows(value, part):
                yield from self._applied(value, part, seen)
        if "if" in schema:
            taken = ("if", "then") if self._follows(value, schema["if"]) else ("else",)
            for keyword in taken:
                yield from self._applied(value, schema.get(keyword), seen)

    def _follows(self, value: Any, schema: Any) -> bool:
        try:
            return bool(self._validator.evolve(schema=schema).is_valid(value))
        except Exception:  # a reference or a pattern that the validator cannot follow
            return True

    def _resolved(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return None
        found = self._root
        for step in unquote(reference[1:]).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(step)] if isinstance(found, list) else found[step]
            except (KeyError, IndexError, ValueError, TypeError):
                return None
        return found

    def _value_schemas(self, applied: list[dict[str, Any]], key: str) -> Iterator[Any]:
        for part in applied:
            properties = part.get("properties", {})
            if isinstance(properties, dict) and key in properties:
                yield properties[key]
            for pattern, schema in _items(part.get("patternProperties")):
                if _matches(pattern, key):
                    yield schema
            yield part.get("additionalProperties")

    def _item_schemas(self, applied: list[dict[str, Any]], index: int) -> Iterator[Any]:
        for part in applied:
            for keyword in ("prefixItems", "items"):
                items = part.get(keyword)
                if isinstance(items, list) and index < len(items):
                    yield items[index]
            yield part.get("items")
            yield part.get("additionalItems")


def _named(schema: dict[str, Any]) -> Iterator[str]:
    """The keys that a schema names, first those that it describes."""
    yield from (name for name, _ in _items(schema.get("properties")))
    for keyword in ("dependentRequired", "dependencies", "dependentSchemas"):
        for name, demanded in _items(schema.get(keyword)):
            yield name
            yield from _list(demanded)
    yield from _list(schema.get("required"))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()


def _matches(pattern: str, key: str) -> bool:
    try:
        return re.search(pattern, key) is not None
    except re.error:
        return False
