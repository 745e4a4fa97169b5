"""A JSON Schema as a document: its draft, its places, and what a reference in it points to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import IntEnum
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from forktree.lang.errors import ConstraintError

MAX_SCHEMA_BYTES = 16 << 20
MAX_NESTING = 200


class Draft(IntEnum):
    D4 = 4
    D6 = 6
    D7 = 7
    D2019 = 2019
    D2020 = 2020


_DRAFTS = {
    "json-schema.org/draft-04/schema": Draft.D4,
    "json-schema.org/draft-06/schema": Draft.D6,
    "json-schema.org/draft-07/schema": Draft.D7,
    "json-schema.org/draft/2019-09/schema": Draft.D2019,
    "json-schema.org/draft/2020-12/schema": Draft.D2020,
}

ONE_SCHEMA = frozenset(
    [
        "additionalProperties",
        "propertyNames",
        "not",
        "if",
        "then",
        "else",
        "contains",
        "unevaluatedProperties",
        "unevaluatedItems",
        "additionalItems",
        "contentSchema",
    ]
)
SCHEMA_LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
SCHEMA_MAPS = frozenset(["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"])


@dataclass(frozen=True, slots=True)
class Place:
    """A subschema: where it is, what it says, and the URI that references in it are relative to."""

    pointer: str
    schema: Any = field(hash=False, compare=False)
    base: str = ""


class Document:
    """One schema document, read once.

    Raises:
        ConstraintError: it is not JSON, nests too deep, or names a draft that is not known.
    """

    def __init__(self, text: str) -> None:
        self.root = _loaded(text)
        self.draft = _draft_of(self.root)
        self._bases: dict[str, str] = {}
        self._resources: dict[str, str] = {"": ""}
        self._anchors: dict[tuple[str, str], str] = {}
        self.dynamic_anchors: set[str] = set()
        self._index(Place("", self.root, ""))

    @property
    def place(self) -> Place:
        return Place("", self.root, self._bases.get("", ""))

    def places(self) -> Iterator[Place]:
        """Every subschema, parents first."""
        pending = [self.place]
        while pending:
            place = pending.pop()
            yield place
            pending.extend(reversed(self.children(place)))

    def child(self, place: Place, *steps: str | int) -> Place:
        """The subschema at these steps below a place."""
        schema, pointer = place.schema, place.pointer
        for step in steps:
            schema = schema[step]
            pointer += "/" + _escaped(str(step))
        return Place(pointer, schema, self._bases.get(pointer, place.base))

    def children(self, place: Place) -> list[Place]:
        """The subschemas that the keywords of a schema hold."""
        schema = place.schema
        if not isinstance(schema, dict):
            return []
        found = []
        for keyword, value in schema.items():
            if keyword in ONE_SCHEMA or (keyword == "items" and not isinstance(value, list)):
                found.append(self.child(place, keyword))
            elif (keyword in SCHEMA_LISTS or keyword == "items") and isinstance(value, list):
                found += [self.child(place, keyword, at) for at in range(len(value))]
            elif keyword in SCHEMA_MAPS and isinstance(value, dict):
                found += [self.child(place, keyword, name) for name in value]
            elif keyword == "dependencies" and isinstance(value, dict):
                found += [self.child(place, keyword, name) for name in value if not isinstance(value[name], list)]
        return found

    def resolve(self, place: Place, keyword: str) -> Place:
        """What a place's `$ref` (or another reference) points to.

        Raises:
            ConstraintError: nothing in this document.
        """
        reference = place.schema[keyword]
        here = f"{place.pointer}/{keyword}"
        try:
            uri, fragment = urldefrag(urljoin(place.base, reference))
        except ValueError as error:
            raise ConstraintError(f"{reference!r} is no URI reference: {error}", pointer=here) from None
        root = self._resources.get(uri)
        if root is None and uri.rstrip("#") == place.base:
            root = self._resources[""]
        if root is None:
            raise ConstraintError(
                f"{reference!r} points outside this document; put what it points to under $defs", pointer=here
            )
        if not fragment or fragment.startswith("/"):
            return self._at(root, unquote(fragment), reference, here)
        anchored = self._anchors.get((uri, unquote(fragment)))
        if anchored is None:
            raise ConstraintError(f"{reference!r} points to nothing in this document", pointer=here)
        return self._at(anchored, "", reference, here)

    def _at(self, root: str, pointer: str, reference: str, here: str) -> Place:
        whole = root + pointer
        value: Any = self.root
        base = self._bases.get("", "")
        path = ""
        for step in whole.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(name)] if isinstance(value, list) else value[name]
            except (KeyError, ValueError, IndexError, TypeError):
                raise ConstraintError(f"{reference!r} points to nothing in this document", pointer=here) from None
            path += "/" + _escaped(name)
            base = self._bases.get(path, base)
        return Place(path, value, base)

    def _index(self, root: Place) -> None:
        """Notes the URI of every place and every name that a reference may use."""
        pending = [(root, 0)]
        while pending:
            place, depth = pending.pop()
            if depth > MAX_NESTING:
                raise ConstraintError(f"schemas nest deeper than {MAX_NESTING}", pointer=place.pointer)
            base = self._base_of(place)
            self._bases[place.pointer] = base
            if isinstance(place.schema, dict):
                self._note_anchors(place, base)
                here = Place(place.pointer, place.schema, base)
                pending += [(child, depth + 1) for child in self.children(here)]

    def _base_of(self, place: Place) -> str:
        schema = place.schema
        name = schema.get("$id", schema.get("id") if self.draft == Draft.D4 else None) if _is_map(schema) else None
        if not isinstance(name, str) or ("$ref" in schema and self.draft <= Draft.D7):
            return place.base
        try:
            uri, fragment = urldefrag(urljoin(place.base, name))
        except ValueError as error:
            raise ConstraintError(f"$id {name!r} is no URI: {error}", pointer=place.pointer) from None
        if fragment and self.draft <= Draft.D7:
            self._anchors[uri, fragment] = place.pointer
        if urldefrag(name).url:
            self._resources[uri] = place.pointer
        return uri

    def _note_anchors(self, place: Place, base: str) -> None:
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = place.schema.get(keyword)
            if isinstance(name, str):
                self._anchors[base, name] = place.pointer
                if keyword == "$dynamicAnchor":
                    self.dynamic_anchors.add(name)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _loaded(text: str) -> Any:
    if len(text) > MAX_SCHEMA_BYTES:
        raise ConstraintError(f"the schema has {len(text)} characters, the limit is {MAX_SCHEMA_BYTES}")
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_no_constant)
    except (json.JSONDecodeError, InvalidOperation) as error:
        raise ConstraintError(f"the schema is not JSON: {error}") from None
    except RecursionError:
        raise ConstraintError("the schema nests too deep to be read") from None


def _no_constant(name: str) -> Any:
    raise ConstraintError(f"the schema is not JSON: {name} is no JSON number")


def _draft_of(root: Any) -> Draft:
    named = root.get("$schema") if isinstance(root, dict) else None
    if named is None:
        return Draft.D2020
    key = str(named).rstrip("#").removeprefix("http://").removeprefix("https://")
    draft = _DRAFTS.get(key)
    if draft is None:
        known = ", ".join(sorted(_DRAFTS))
        raise ConstraintError(f"unknown $schema {named!r}; known are {known}", pointer="/$schema")
    return draft
