"""Tools as a constraint and back."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from forktree.lang.errors import LanguageError
from forktree.lang.expressions import gen
from forktree.lang.tools import output_from_tools, schema_of_calls, tool_of


class Place(BaseModel):
    city: str


def weather(place: Place, unit: Literal["C", "F"] = "C") -> str:
    """The weather at a place."""
    return f"20 {unit} in {place.city}"


def add(a: int, b: int) -> int:
    return a + b


def test_a_function_s_schema_comes_from_its_signature_and_docstring() -> None:
    tool = tool_of(weather)
    assert (tool.name, tool.description) == ("weather", "The weather at a place.")
    schema = json.loads(tool.parameters)
    assert schema["required"] == ["place"]
    assert schema["additionalProperties"] is False
    assert tool.to_dict()["function"]["name"] == "weather"


def test_a_call_comes_out_typed_and_runs() -> None:
    output = gen("call", tools=[weather, add]).output
    call = output.value_of('{"name":"weather","arguments":{"place":{"city":"Rome"}}}')
    assert call.name == "weather"
    assert call.arguments == {"place": Place(city="Rome")}
    assert call() == "20 C in Rome"
    assert output.value_of('{"name":"add","arguments":{"a":1,"b":2}}')() == 3


def test_definitions_are_where_the_references_look_for_them() -> None:
    schema = json.loads(schema_of_calls(output_from_tools([weather, add]).spec).schema)
    assert set(schema["$defs"]) == {"Place"}
    assert [each["properties"]["name"]["const"] for each in schema["anyOf"]] == ["weather", "add"]


def test_arguments_of_a_wrong_type_raise_the_validation_error() -> None:
    with pytest.raises(ValidationError):
        output_from_tools([add]).value_of('{"name":"add","arguments":{"a":"x","b":2}}')


def test_a_schema_is_a_tool_without_a_function() -> None:
    written = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
    call = output_from_tools([written]).value_of('{"name":"find","arguments":{}}')
    with pytest.raises(LanguageError, match="no function to run"):
        call()


def test_bounds_and_patterns_of_an_annotated_parameter_are_in_the_schema() -> None:
    def book(seats: Annotated[int, Field(ge=1, le=9)], train: Annotated[str, Field(pattern="^[A-Z]{2}$")]) -> None: ...

    properties = json.loads(tool_of(book).parameters)["properties"]
    assert (properties["seats"]["minimum"], properties["seats"]["maximum"]) == (1, 9)
    assert properties["train"]["pattern"] == "^[A-Z]{2}$"


@pytest.mark.parametrize("tools", [[], [add, add], [5], [lambda *args: None]])
def test_tools_that_cannot_be_called_by_name_are_refused(tools) -> None:
    with pytest.raises(LanguageError):
        output_from_tools(tools)


def test_parallel_calls_are_an_array_and_come_out_as_a_list() -> None:
    output = gen("calls", tools=[weather, add], parallel=True).output
    schema = json.loads(schema_of_calls(output.spec).schema)
    assert (schema["type"], schema["minItems"]) == ("array", 1)
    assert "maxItems" not in schema
    assert set(schema["$defs"]) == {"Place"}
    one, two = output.value_of(
        '[{"name":"add","arguments":{"a":1,"b":2}},{"name":"weather","arguments":{"place":{"city":"Rome"}}}]'
    )
    assert (one(), two()) == (3, "20 C in Rome")
    assert output.label == "list[tools[weather, add]]"


def test_a_number_bounds_the_parallel_calls() -> None:
    assert gen("calls", tools=[add], parallel=3).output.spec.high == 3


@pytest.mark.parametrize("options", [{}, {"dtype": int}, {"tools": [add], "dtype": int}])
def test_parallel_goes_with_tools_alone(options) -> None:
    with pytest.raises(LanguageError, match="goes with tools= alone"):
        gen("calls", parallel=True, **options)


@pytest.mark.parametrize("parallel", [0, -1, "two", None])
def test_parallel_is_true_or_a_count(parallel) -> None:
    with pytest.raises(LanguageError, match="is True or the most calls"):
        gen("calls", tools=[add], parallel=parallel)
