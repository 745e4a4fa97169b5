"""A field that is a literal piece of a document: where it may stand, and how it gets its document."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

import forktree as ft
from forktree.lang.constraints import VERBATIM, SchemaSpec
from forktree.lang.errors import ConstraintError, LanguageError
from forktree.lang.expressions import gen
from forktree.lang.types import output_from_schema
from forktree.lang.verbatim import Verbatim

DOC = "Shell 12.40 EUR"
PIECE = {"document": DOC, "unit": "character"}


class Open(BaseModel):
    company: Annotated[str, Verbatim()]
    others: list[Annotated[str, Verbatim(unit="word")]]
    fixed: Verbatim("own")  # type: ignore[valid-type]


@dataclasses.dataclass
class Record:
    company: Verbatim(DOC)  # type: ignore[valid-type]
    note: typing.Optional[Verbatim(DOC)] = None  # type: ignore[valid-type]  # noqa: UP045


class Row(typing.TypedDict):
    company: Annotated[str, Verbatim(DOC)]


def schema_of(tp: Any, **options: Any) -> dict[str, Any]:
    spec = gen("x", schema=tp, **options).output.spec  # type: ignore[union-attr]
    assert isinstance(spec, SchemaSpec)
    return json.loads(spec.schema)


@pytest.mark.parametrize("tp", [Record, Row])
def test_it_stands_where_a_field_s_type_stands(tp: Any) -> None:
    assert schema_of(tp)["properties"]["company"][VERBATIM] == PIECE


def test_it_stands_in_a_schema_and_alone() -> None:
    assert schema_of({"properties": {"a": Verbatim(DOC)}})["properties"]["a"] == {"type": "string", VERBATIM: PIECE}
    assert schema_of(Verbatim(DOC)) == {"type": "string", VERBATIM: PIECE}
    assert schema_of(Annotated[str, Verbatim(DOC)])[VERBATIM] == PIECE
    assert ft.Schema({"items": Verbatim(DOC)}).accepts('["hell","12"]')


def test_document_is_given_to_every_field_that_has_none() -> None:
    found = schema_of(Open, document=DOC)["properties"]
    assert found["company"][VERBATIM] == PIECE
    assert found["others"]["items"][VERBATIM] == {"document": DOC, "unit": "word"}
    assert found["fixed"][VERBATIM]["document"] == "own"
    assert "document" not in schema_of(Open)["properties"]["company"][VERBATIM]


def test_one_type_serves_many_documents() -> None:
    first = gen("x", schema=Open, document="one").output
    second = gen("x", schema=Open, document="two").output
    assert first is not None
    assert second is not None
    assert first.spec != second.spec
    text = '{"company": "o", "others": [], "fixed": "ow"}'
    assert first.value_of(text) == Open(company="o", others=[], fixed="ow")
    assert type(first.value_of(text).company) is str


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"document": DOC}, "goes with schema="),
        ({"document": DOC, "regex": "a"}, "goes with schema="),
        ({"document": DOC, "schema": {"type": "string"}}, "this has none"),
        ({"document": DOC, "schema": Row}, "this has none"),
        ({"document": 5, "schema": Open}, "the text to copy from, not 5"),
    ],
)
def test_a_document_without_a_use_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(LanguageError, match=reason):
        gen("x", **options)


def test_the_class_is_no_type() -> None:
    with pytest.raises(LanguageError, match=r"ft.Verbatim\(\)"):

        class Wrong(BaseModel):
            company: Verbatim

    with pytest.raises(ConstraintError, match="not JSON"):
        output_from_schema({"items": Verbatim})


def test_a_program_with_a_document_survives_json() -> None:
    @ft.function
    def program(s):
        s += "Copy: " + ft.gen("x", schema=Open, document=DOC)

    traced = program.trace()
    assert ft.Program.from_json(traced.to_json()) == traced
