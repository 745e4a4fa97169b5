"""Anthropic's own Python client against a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from servers import running

from forktree.backend.local import Local
from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings

GREEDY = {"temperature": 0}  # which this client has no argument for
HELLO: Any = [{"role": "user", "content": "Hello"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def claude(wild_url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=wild_url, api_key="none", max_retries=0, timeout=60) as one:
        yield one


def test_a_message_is_answered_in_blocks_with_usage(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.create(model="wild", messages=HELLO, max_tokens=5, extra_body=GREEDY)
    (block,) = answer.content
    assert (answer.type, answer.role, answer.model, block.type) == ("message", "assistant", "wild", "text")
    assert block.text
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 5)


def test_it_says_what_the_chat_route_says(claude: anthropic.Anthropic, client: Any) -> None:
    answer = claude.messages.create(model="wild", system="Be wild.", messages=HELLO, max_tokens=9, extra_body=GREEDY)
    chat = client.chat.completions.create(
        model="wild", messages=[{"role": "system", "content": "Be wild."}, *HELLO], max_tokens=9, temperature=0
    )
    assert answer.content[0].text == chat.choices[0].message.content


def test_a_stream_puts_the_same_message_together(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": "wild", "messages": HELLO, "max_tokens": 12, "extra_body": GREEDY}
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    whole = claude.messages.create(**asked)
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_cached_prompt_is_counted_apart(claude: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "Nine nimble newts nap. " * 5}]
    count = claude.messages.count_tokens(model="wild", messages=messages).input_tokens
    claude.messages.create(model="wild", messages=messages, max_tokens=1)
    usage = claude.messages.create(model="wild", messages=messages, max_tokens=1).usage
    assert usage.input_tokens + usage.cache_read_input_tokens == count
    assert usage.input_tokens == 1


def test_a_forced_tool_is_called_with_arguments_that_satisfy_its_schema(claude: anthropic.Anthropic) -> None:
    choice: Any = {"type": "tool", "name": "get_weather"}
    asked: Any = {"model": "wild", "messages": HELLO, "max_tokens": 200, "tools": [WEATHER], "tool_choice": choice}
    answer = claude.messages.create(**asked)
    (block,) = answer.content
    assert (block.type, block.name, answer.stop_reason) == ("tool_use", "get_weather", "tool_use")
    assert set(block.input) == {"city", "unit"}
    with claude.messages.stream(**asked) as stream:
        (streamed,) = stream.get_final_message().content
    assert set(streamed.input) == {"city", "unit"}


def test_a_conversation_with_calls_and_results_is_told_again(claude: anthropic.Anthropic) -> None:
    messages: Any = [
        *HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_a", "name": "get_weather", "input": {"city": "Oslo", "unit": "C"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_a", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "And so?"},
            ],
        },
    ]
    answer = claude.messages.create(model="wild", messages=messages, tools=[WEATHER], max_tokens=3)
    assert answer.usage.output_tokens <= 3


def test_a_stop_sequence_is_named(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": "wild", "messages": HELLO, "max_tokens": 9, "extra_body": GREEDY}
    text = claude.messages.create(**asked).content[0].text
    answer = claude.messages.create(**asked, stop_sequences=[text[3:5]])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", text[3:5])
    assert answer.content[0].text == text[: text.index(text[3:5])]


def test_output_config_is_enforced(claude: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    config: Any = {"format": {"type": "json_schema", "schema": schema | {"additionalProperties": False}}}
    answer = claude.messages.create(model="wild", messages=HELLO, max_tokens=60, output_config=config)
    assert isinstance(json.loads(answer.content[0].text)["ok"], bool)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"model": "gpt"}, anthropic.NotFoundError, "gpt"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
        ({"messages": []}, anthropic.BadRequestError, "messages"),
        ({"temperature": 3}, anthropic.BadRequestError, "temperature"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "I"}]}, anthropic.BadRequestError, "last message"),
        ({"tools": [{"type": "web_search_20250305", "name": "web"}]}, anthropic.BadRequestError, "tools"),
        ({"messages": [{"role": "user", "content": "long " * 900}]}, anthropic.BadRequestError, "512"),
        ({"unknown": 1}, anthropic.BadRequestError, "unknown"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_run_is_the_clients_own_error(
    claude: anthropic.Anthropic, change: dict[str, Any], error: type[Exception], said: str, stream: bool
) -> None:
    body = {"model": "wild", "messages": HELLO, "max_tokens": 3, "stream": stream} | change
    with pytest.raises(error, match=said) as raised:
        claude.post("/v1/messages", body=body, cast_to=object)
    assert raised.value.body["type"] == "error"  # type: ignore[attr-defined]


def test_a_key_is_taken_as_this_client_sends_it(wild_local: Local) -> None:
    settings = Settings(model_names=("wild",), api_keys=frozenset(["right"]))
    with running(build(wild_local, settings)) as url:
        asked: Any = {"model": "wild", "messages": HELLO, "max_tokens": 1}
        with anthropic.Anthropic(base_url=url, api_key="right", max_retries=0) as good:
            assert good.messages.create(**asked).usage.output_tokens == 1
        with (
            anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as bad,
            pytest.raises(anthropic.AuthenticationError),
        ):
            bad.messages.create(**asked)
