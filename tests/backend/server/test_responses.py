"""`/v1/responses` through OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


class Person(BaseModel):
    name: Literal["Ada", "Bob"]
    age: Literal[3, 4]


def test_a_response_says_what_the_chat_route_says(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="wild", instructions="Be wild.", input="Hello", max_output_tokens=9, temperature=0
    )
    messages: Any = [{"role": "system", "content": "Be wild."}, {"role": "user", "content": "Hello"}]
    chat = client.chat.completions.create(model="wild", messages=messages, max_tokens=9, temperature=0)
    assert response.output_text == chat.choices[0].message.content
    assert (response.object, response.status, response.model) == ("response", "incomplete", "wild")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 9
    assert response.usage.input_tokens == chat.usage.prompt_tokens  # type: ignore[union-attr]


def test_a_stream_puts_the_same_response_together(client: openai.OpenAI) -> None:
    asked: Any = {"model": "wild", "input": "Hello", "text": {"format": _schema_format()}, "temperature": 0}
    numbers, deltas = [], []
    with client.responses.stream(**asked) as stream:
        for event in stream:
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
        final = stream.get_final_response()
    assert numbers == list(range(len(numbers)))
    assert "".join(deltas) == final.output_text == client.responses.create(**asked).output_text
    assert final.status == "completed"


def test_parse_gives_a_model_of_pydantic(client: openai.OpenAI) -> None:
    person = client.responses.parse(model="wild", input="Hello", text_format=Person).output_parsed
    assert isinstance(person, Person)


def test_a_required_tool_is_called_and_its_result_told(client: openai.OpenAI) -> None:
    asked: Any = {"model": "wild", "tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}}
    response = client.responses.create(**asked, input="Rain?")
    (call,) = response.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert set(json.loads(call.arguments)) == {"city", "unit"}
    items: Any = [
        {"role": "user", "content": "Rain?"},
        call.model_dump(exclude_none=True, mode="json"),
        {"type": "function_call_output", "call_id": call.call_id, "output": "yes"},
    ]
    again = client.responses.create(model="wild", tools=[WEATHER], input=items, max_output_tokens=3)
    assert again.usage is not None
    assert again.usage.output_tokens <= 3


def test_arguments_stream_as_they_are_made(client: openai.OpenAI) -> None:
    asked: Any = {"model": "wild", "input": "Rain?", "tools": [WEATHER], "tool_choice": "required"}
    with client.responses.stream(**asked) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        calls = [item for item in stream.get_final_response().output if item.type == "function_call"]
    assert "".join(pieces) == "".join(call.arguments for call in calls)
    assert len(pieces) > 1


def test_log_probabilities_come_with_the_text(client: openai.OpenAI) -> None:
    include: Any = ["message.output_text.logprobs"]
    response = client.responses.create(
        model="wild", input="Hello", max_output_tokens=4, include=include, top_logprobs=2, temperature=0
    )
    (part,) = response.output[0].content  # type: ignore[union-attr]
    assert len(part.logprobs) == 4
    assert all(len(one.top_logprobs) == 2 for one in part.logprobs)
    assert b"".join(bytes(one.bytes) for one in part.logprobs).decode(errors="ignore").startswith(part.text[:2])


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"truncation": "auto"}, "truncation"),
        ({"input": [{"type": "image_generation_call"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, None),
        ({"input": "long " * 900}, None),
        ({"top_logprobs": 2}, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_refused_before_anything_is_sent(
    client: openai.OpenAI, change: dict[str, Any], param: str | None, stream: bool
) -> None:
    body = {"model": "wild", "input": "Hello", "max_output_tokens": 3, "stream": stream} | change
    with pytest.raises(openai.BadRequestError) as raised:
        client.post("/responses", body=body, cast_to=object)
    if param is not None:
        assert raised.value.param == param


def _schema_format() -> dict[str, Any]:
    return {"type": "json_schema", "name": "person", "schema": Person.model_json_schema(), "strict": True}
