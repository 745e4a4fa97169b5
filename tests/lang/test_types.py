"""Python types as constraints and back."""

from __future__ import annotations

import datetime as dt
import enum
import json
import re
from dataclasses import dataclass
from typing import Literal, NotRequired, Optional, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forktree.lang.constraints import ChoicesSpec, SchemaSpec
from forktree.lang.errors import ConstraintError, LanguageError
from forktree.lang.types import output_from_dtype, output_from_schema


class Item(BaseModel):
    name: str
    price: float = Field(ge=0)


class Receipt(BaseModel):
    company: str
    items: list[Item] = []
    note: str | None = None


class OpenModel(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict):
    a: int
    b: NotRequired[str]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


def schema_of(tp) -> dict:
    spec = output_from_schema(tp).spec
    assert isinstance(spec, SchemaSpec)
    return json.loads(spec.schema)


def test_a_model_is_closed_at_every_level() -> None:
    schema = schema_of(Receipt)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Item"]["additionalProperties"] is False


def test_a_model_that_allows_extra_fields_stays_open() -> None:
    assert schema_of(OpenModel)["additionalProperties"] is True


def test_dataclasses_and_typed_dicts_are_closed() -> None:
    assert schema_of(Point)["additionalProperties"] is False
    schema = schema_of(Options)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["a"]


def test_a_typed_dict_inside_a_list_works_too() -> None:
    assert output_from_schema(list[Options]).value_of('[{"a":1}]') == [{"a": 1}]


def test_a_field_of_any_mapping_stays_as_open_as_it_is() -> None:
    class Free(BaseModel):
        extra: dict[str, int]

    assert schema_of(Free)["properties"]["extra"]["additionalProperties"] == {"type": "integer"}


@pytest.mark.parametrize("schema", [{"type": "object"}, '{"type": "object", "title": "T"}', {"properties": {"a": {}}}])
def test_a_schema_of_the_user_is_left_as_written(schema) -> None:
    written = schema if isinstance(schema, dict) else json.loads(schema)
    assert schema_of(schema) == written


def test_keys_keep_the_order_of_the_fields() -> None:
    assert list(schema_of(Receipt)["properties"]) == ["company", "items", "note"]


@pytest.mark.parametrize(
    ("tp", "text", "value"),
    [
        (Receipt, '{"company":"A","items":[{"name":"x","price":1.5}]}', None),
        (Point, '{"x":1}', Point(1, 0)),
        (Options, '{"a":1}', {"a": 1}),
        (Colour, '"red"', Colour.RED),
        (Literal["a", 1], "1", 1),
        (Optional[int], "null", None),  # noqa: UP045
        (list[list[int]], "[[1],[2,3]]", [[1], [2, 3]]),
        (dict[str, float], '{"a":1.5}', {"a": 1.5}),
        (int, "12", 12),
        (dt.date, '"2024-02-29"', dt.date(2024, 2, 29)),
        (tuple[int, str], '[1,"a"]', (1, "a")),
    ],
)
def test_text_becomes_a_value_of_the_type(tp, text, value) -> None:
    parsed = output_from_schema(tp).value_of(text)
    if tp is Receipt:
        assert parsed == Receipt(company="A", items=[Item(name="x", price=1.5)])
    else:
        assert parsed == value


def test_a_dict_schema_gives_plain_data() -> None:
    assert output_from_schema({"type": "object"}).value_of('{"a":[1]}') == {"a": [1]}


def test_the_type_s_own_validation_error_comes_out_as_itself() -> None:
    with pytest.raises(ValidationError):
        output_from_schema(Item).value_of('{"name":"x","price":-1}')


@pytest.mark.parametrize("wrong", ["{not json", "[1]", {"a": object()}])
def test_a_schema_that_is_not_json_is_a_constraint_error(wrong) -> None:
    with pytest.raises(ConstraintError):
        output_from_schema(wrong)


@pytest.mark.parametrize("wrong", [5, object(), print])
def test_what_is_no_type_is_refused(wrong) -> None:
    with pytest.raises(LanguageError, match="pydantic model, a dataclass"):
        output_from_schema(wrong)


def test_a_type_without_a_schema_is_a_constraint_error() -> None:
    class Opaque:
        pass

    with pytest.raises(ConstraintError, match="Opaque"):
        output_from_schema(Opaque)


def test_equal_types_share_one_output() -> None:
    assert output_from_schema(Receipt) is output_from_schema(Receipt)


# dtype


@pytest.mark.parametrize(
    ("dtype", "texts", "others"),
    [
        (int, ["0", "-7", "1200"], ["01", "+1", "1.0", "", " 1", "1\n"]),
        (float, ["0", "-1.5", "2.25"], ["1.", ".5", "1e3", "nan", "01.0"]),
        (dt.time, ["00:00:00", "23:59:59"], ["24:00:00", "1:00:00"]),
        (dt.datetime, ["2024-02-29T10:00:00"], ["2023-02-29T10:00:00", "2024-02-29"]),
    ],
)
def test_plain_spellings_are_exactly_those_that_parse(dtype, texts, others) -> None:
    output = output_from_dtype(dtype)
    for text in texts:
        assert re.fullmatch(output.spec.pattern, text)
        assert isinstance(output.value_of(text), dtype)
    for text in others:
        assert not re.fullmatch(output.spec.pattern, text)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 9999), st.integers(0, 13), st.integers(0, 32))
def test_the_pattern_of_a_date_takes_real_dates_and_no_others(year, month, day) -> None:
    text = f"{year:04}-{month:02}-{day:02}"
    try:
        dt.date.fromisoformat(text)
        is_date = True
    except ValueError:
        is_date = False
    assert bool(re.fullmatch(output_from_dtype(dt.date).spec.pattern, text)) == is_date


def test_bool_is_true_or_false() -> None:
    output = output_from_dtype(bool)
    assert output.spec == ChoicesSpec(("True", "False"))
    assert output.value_of("True") is True
    assert output.value_of("False") is False


def test_str_is_a_quoted_string_whose_value_has_no_quotes() -> None:
    assert output_from_dtype(str).value_of('"a, b!"') == "a, b!"


def test_an_enum_or_literal_of_strings_is_written_without_quotes() -> None:
    assert output_from_dtype(Colour).spec == ChoicesSpec(("red", "blue"))
    assert output_from_dtype(Colour).value_of("blue") is Colour.BLUE
    assert output_from_dtype(Literal["x", "y"]).value_of("y") == "y"


def test_other_types_are_json() -> None:
    assert output_from_dtype(Level).value_of("2") is Level.HIGH
    assert output_from_dtype(list[int]).value_of("[1,2]") == [1, 2]
