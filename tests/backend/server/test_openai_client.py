"""OpenAI's own Python client against a running server: what comes back is what its types promise."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "get_time"}}
HELLO: Any = [{"role": "user", "content": "Hello"}]


class Person(BaseModel):
    name: Literal["Ada", "Bob"]
    age: Literal[3, 4]


def test_a_chat_is_answered_with_usage_and_a_reason(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="wild", messages=HELLO, max_tokens=5, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "wild"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    asked: Any = {"model": "wild", "messages": HELLO, "max_tokens": 12, "temperature": 1.0, "seed": 3, "n": 2}
    whole = client.chat.completions.create(**asked)
    texts, reasons = ["", ""], [None, None]
    for chunk in client.chat.completions.create(**asked, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    assert reasons == [choice.finish_reason for choice in whole.choices]


def test_the_clients_stream_helper_puts_the_answer_together(client: openai.OpenAI) -> None:
    asked: Any = {"model": "wild", "messages": HELLO, "temperature": 0, "extra_body": {"regex": "[ab]{9}"}}
    with client.chat.completions.stream(**asked) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    whole = client.chat.completions.create(**asked)
    assert "".join(pieces) == final.choices[0].message.content == whole.choices[0].message.content


def test_the_second_request_finds_its_prompt_cached(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Seven swans swam silently southwards. " * 4}]
    usages = [client.chat.completions.create(model="wild", messages=messages, max_tokens=1).usage for _ in range(2)]
    first, second = (usage.prompt_tokens_details.cached_tokens for usage in usages)
    assert usages[0].prompt_tokens == usages[1].prompt_tokens == second + 1
    assert first < second


def test_parse_gives_a_model_of_pydantic(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model="wild", messages=HELLO, response_format=Person, max_tokens=64)
    person = answer.choices[0].message.parsed
    assert isinstance(person, Person)
    assert answer.choices[0].finish_reason == "stop"


def test_an_answer_that_was_cut_does_not_parse(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="wild", messages=HELLO, response_format=Person, max_tokens=2)


def test_json_mode_gives_an_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="wild",
        messages=HELLO,
        response_format={"type": "json_object"},
        max_tokens=40,
        extra_body={"on_budget": "close"},
    )
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


@pytest.mark.parametrize(
    ("extra", "legal"),
    [
        ({"regex": "[ab]{4}"}, lambda text: set(text) <= set("ab") and len(text) == 4),
        ({"choices": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"grammar": 'start: "x" | "y" start'}, lambda text: text.lstrip("y") == "x"),
    ],
)
def test_an_extra_constraint_is_obeyed(client: openai.OpenAI, extra: dict[str, Any], legal: Any) -> None:
    answer = client.chat.completions.create(model="wild", messages=HELLO, max_tokens=60, extra_body=extra)
    assert answer.choices[0].finish_reason == "stop"
    assert legal(answer.choices[0].message.content)


def test_the_models_are_listed_and_found_by_each_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["wild", "another/name"]
    assert client.models.retrieve("another/name").owned_by == "forktree"
    answer = client.chat.completions.create(model="another/name", messages=HELLO, max_tokens=1)
    assert answer.model == "another/name"


@pytest.mark.asyncio
async def test_the_asynchronous_client_is_answered_side_by_side(wild_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{wild_url}/v1", api_key="none", max_retries=0) as one:
        asked = [
            one.chat.completions.create(
                model="wild", messages=[{"role": "user", "content": str(number)}], max_tokens=4, temperature=0
            )
            for number in range(8)
        ]
        answers = await asyncio.gather(*asked)
    assert len({answer.id for answer in answers}) == 8
    assert all(answer.usage and answer.usage.completion_tokens for answer in answers)


# --- tools -------------------------------------------------------------------------------------------------


def test_a_required_tool_is_called_with_legal_arguments(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="wild", messages=HELLO, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=80
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}


def test_a_tool_made_of_a_pydantic_model_comes_back_as_one(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="wild",
        messages=HELLO,
        tools=[openai.pydantic_function_tool(Person)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=100,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Person)


def test_a_stream_parses_too(client: openai.OpenAI) -> None:
    asked: Any = {"model": "wild", "messages": HELLO, "response_format": Person, "max_tokens": 64}
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)


def test_a_named_tool_is_the_one_that_is_called(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="wild",
        messages=HELLO,
        tools=[WEATHER, TIME],
        tool_choice={"type": "function", "function": {"name": "get_time"}},
        max_tokens=60,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_time", {})


def test_allowed_tools_are_the_only_ones(client: openai.OpenAI) -> None:
    choice: Any = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]},
    }
    answer = client.chat.completions.create(
        model="wild",
        messages=HELLO,
        tools=[WEATHER, TIME],
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=60,
    )
    assert [call.function.name for call in answer.choices[0].message.tool_calls or []] == ["get_time"]


def test_a_streamed_call_grows_into_the_whole_one(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": "wild",
        "messages": HELLO,
        "tools": [WEATHER, TIME],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 90,
        "seed": 5,
    }
    whole = client.chat.completions.create(**asked).choices[0]
    names, arguments, ids, reason = "", "", [], None
    for chunk in client.chat.completions.create(**asked, stream=True):
        assert not chunk.choices[0].delta.content
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.index == 0
            ids += [call.id] if call.id else []
            names += call.function.name or ""
            arguments += call.function.arguments or ""
        reason = chunk.choices[0].finish_reason or reason
    (made,) = whole.message.tool_calls or []
    assert (names, arguments) == (made.function.name, made.function.arguments)
    assert len(ids) == 1
    assert reason == whole.finish_reason == "tool_calls"


def test_a_tool_loop_takes_its_own_answer_back(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(
        model="wild", messages=HELLO, tools=[TIME], tool_choice="required", parallel_tool_calls=False, max_tokens=60
    )
    message = first.choices[0].message
    (call,) = message.tool_calls or []
    turns: Any = [*HELLO, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "12:00"}]
    second = client.chat.completions.create(model="wild", messages=turns, tools=[TIME], max_tokens=5)
    assert second.choices[0].message.role == "assistant"


# --- the built-in model ------------------------------------------------------------------------------------


@pytest.mark.model
def test_the_built_in_model_knows_a_capital(smol_client: openai.OpenAI) -> None:
    answer = smol_client.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=12,
        temperature=0,
        stop=["."],
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.model
def test_the_built_in_model_calls_a_tool_with_what_was_asked(smol_client: openai.OpenAI) -> None:
    answer = smol_client.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "What is the weather in Oslo, in C?"}],
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=60,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert json.loads(call.function.arguments)["city"] == "Oslo"


@pytest.mark.model
def test_a_free_answer_beside_tools_is_text(smol_client: openai.OpenAI) -> None:
    answer = smol_client.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "Say hello."}],
        tools=[TIME],
        tool_choice="auto",
        temperature=0,
        max_tokens=20,
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None
