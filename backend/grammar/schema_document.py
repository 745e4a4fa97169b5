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

Scope = tuple[tuple[str, str], ...]
Key = tuple[str, Scope]
_RECURSIVE = ""  # the name that `$recursiveAnchor: true` gives the root of its resource


@dataclass(frozen=True, slots=True)
class Place:
    """A subschema: where it is, what it says, and the URI that references in it are relative to.

    `scope`: for each name that dynamic references may find at several places, the pointer of the outermost one on
    the way here, sorted by name. The same subschema in another scope may mean something else.
    """

    pointer: str
    schema: Any = field(hash=False, compare=False)
    base: str = ""
    scope: Scope = ()

    @property
    def key(self) -> Key:
        return self.pointer, self.scope


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
        self._dynamic: dict[str, dict[str, str]] = {}  # by resource: the pointers of its dynamic anchors
        self._index(Place("", self.root, ""))
        names = [name for anchors in self._dynamic.values() for name in anchors]
        self._contested = frozenset(name for name in names if names.count(name) > 1)

    @property
    def place(self) -> Place:
        base = self._bases.get("", "")
        return Place("", self.root, base, self._entered((), base))

    def _entered(self, scope: Scope, base: str) -> Scope:
        """The scope after a resource was entered: the first on the way to define a name keeps it."""
        anchors = self._dynamic.get(base, {})
        known = dict(scope)
        added = [(name, anchors[name]) for name in anchors if name in self._contested and name not in known]
        return tuple(sorted((*scope, *added))) if added else scope

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
        base = self._bases.get(pointer, place.base)
        return Place(pointer, schema, base, place.scope if base == place.base else self._entered(place.scope, base))

    def each(self, place: Place, keyword: str) -> list[Place]:
        """The subschemas of a keyword that lists them."""
        return [self.child(place, keyword, at) for at in range(len(place.schema[keyword]))]

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
            uri, fragment = urldefrag(_joined(place.base, reference))
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
            target = root + unquote(fragment)
            if keyword == "$recursiveRef" and target == self._dynamic.get(uri, {}).get(_RECURSIVE):
                target = dict(place.scope).get(_RECURSIVE, target)
            return self._at(target, place.scope, reference, here)
        name = unquote(fragment)
        anchored = self._anchors.get((uri, name))
        if anchored is None:
            raise ConstraintError(f"{reference!r} points to nothing in this document", pointer=here)
        if keyword == "$dynamicRef" and self._dynamic.get(uri, {}).get(name) == anchored:
            anchored = dict(place.scope).get(name, anchored)
        return self._at(anchored, place.scope, reference, here)

    def _at(self, whole: str, scope: Scope, reference: str, here: str) -> Place:
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
        return Place(path, value, base, self._entered(scope, base))

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
            uri, fragment = urldefrag(_joined(place.base, name))
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
                    self._dynamic.setdefault(base, {})[name] = place.pointer
        if place.schema.get("$recursiveAnchor") is True and self.draft == Draft.D2019:
            self._dynamic.setdefault(base, {})[_RECURSIVE] = place.pointer


def _joined(base: str, reference: str) -> str:
    """A reference against its base; `urljoin` knows nothing of schemes such as `urn`."""
    if reference.startswith("#"):
        return urldefrag(base).url + reference
    return urljoin(base, reference)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _loaded(text: str) -> Any:
    if len(text) > MAX_SCHEMA_BYTES:
        raise ConstraintError(f"the schema has {len(text)} characters, the limit is {MAX_SCHEMA_BYTES}")
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_no_constant)
    except (ValueError, InvalidOperation) as error:
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
