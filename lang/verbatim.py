"""`Verbatim`: a field whose value is a literal piece of a document.

It stands wherever a field's type stands (pydantic models, dataclasses, TypedDicts, schemas as dicts), the value is a
plain str. A type that is used for many documents leaves the document out, and `gen(schema=…, document=…)` binds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from forktree.lang.constraints import VERBATIM, SchemaSpec, Unit, checked_unit
from forktree.lang.errors import ConstraintError, LanguageError


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A text that is a literal piece of `document`; the empty text is one, so a field may be left empty.

    `Annotated[str, ft.Verbatim(document)]`, or `ft.Verbatim(document)` itself, is a field's type; in a dict it is a
    schema. `Field(min_length=…, max_length=…)` go with it. Without a document, `gen(document=…)` gives it.

    Args:
        document: what is copied from.
        unit: "word" takes only pieces that begin and end with whole words, which are what blanks separate.
    Raises:
        ConstraintError: the document is no text, or the unit is not one.
    """

    document: str | None = None
    unit: Unit = "character"

    def __post_init__(self) -> None:
        if self.document is not None and not isinstance(self.document, str):
            raise ConstraintError(f"the document must be a text, not {type(self.document).__name__}")
        checked_unit(self.unit)

    def to_schema(self) -> dict[str, Any]:
        """The JSON Schema of such a string, with forktree's keyword for the document."""
        document = {} if self.document is None else {"document": self.document}
        return {"type": "string", VERBATIM: {**document, "unit": self.unit}}

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007 (an instance is no class)

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]  # noqa: UP007

    def __get_pydantic_core_schema__(self, source: Any, handler: Any = None) -> Any:
        from pydantic_core import core_schema

        if handler is None:  # asked of the class
            raise LanguageError("a field's type is ft.Verbatim() or ft.Verbatim(document), not the class Verbatim")

        return core_schema.str_schema() if isinstance(source, Verbatim) else handler(source)

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return {**handler(core), **self.to_schema()}


def dumped_schema(schema: Mapping[str, Any] | bool) -> str:
    """A schema as JSON text, each `Verbatim` in it as the schema that it is.

    Raises:
        ConstraintError: it is not made of JSON values.
    """
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False, default=_schema_of)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema is not JSON: {error}") from error


def bound_spec(spec: SchemaSpec, document: object) -> SchemaSpec:
    """The schema with a document given to every `Verbatim` that has none.

    Raises:
        LanguageError: the document is no text, or there is nothing to give it to.
    """
    if not isinstance(document, str):
        raise LanguageError(f"document= takes the text to copy from, not {document!r}")
    schema = json.loads(spec.schema)
    if not _bind(schema, document):
        raise LanguageError("document= is for a schema with a Verbatim that has no document of its own; this has none")
    return SchemaSpec(json.dumps(schema, ensure_ascii=False), spec.order, spec.whitespace, spec.numbers)


def _schema_of(value: Any) -> Any:
    if isinstance(value, Verbatim):
        return value.to_schema()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _bind(schema: Any, document: str) -> int:
    """How many places were given the document."""
    if isinstance(schema, list):
        return sum(_bind(one, document) for one in schema)
    if not isinstance(schema, dict):
        return 0
    count = sum(_bind(one, document) for key, one in schema.items() if key != VERBATIM)
    keyword = schema.get(VERBATIM)
    if isinstance(keyword, dict) and "document" not in keyword:
        keyword["document"] = document
        count += 1
    return count
