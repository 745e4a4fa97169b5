"""Every refusal reaches OpenAI's client as the exception class that its users catch, with code and field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from local_fakes import fake_local, hashed
from servers import running
from toy_tokenizers import byte_level

from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings
from forktree.backend.tokenizer import Tokenizer

HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def guarded_url() -> Iterator[str]:
    tokenizer = Tokenizer(byte_level())
    local = fake_local(tokenizer, hashed(tokenizer))
    settings = Settings(model_names=("m",), api_keys=frozenset(["right"]), max_body_bytes=10_000)
    with local, running(build(local, settings)) as url:
        yield f"{url}/v1"


def client_of(url: str, key: str = "right") -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0)


def test_a_wrong_key_is_an_authentication_error(guarded_url: str) -> None:
    with client_of(guarded_url, "wrong") as one, pytest.raises(openai.AuthenticationError) as caught:
        one.chat.completions.create(model="m", messages=HELLO)
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_not_found_before_a_stream_starts(guarded_url: str, stream: bool) -> None:
    with client_of(guarded_url) as one, pytest.raises(openai.NotFoundError, match="'m'") as caught:
        one.chat.completions.create(model="gpt", messages=HELLO, stream=stream)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_body_that_is_too_long_is_refused(guarded_url: str) -> None:
    with client_of(guarded_url) as one, pytest.raises(openai.APIStatusError) as caught:
        one.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 20_000}])
    assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"messages": [{"role": "user", "content": "word " * 600}]}, "context_length_exceeded", "messages"),
        ({"extra_body": {"regex": "("}}, "invalid_constraint", "regex"),
        ({"extra_body": {"grammar": "start: nothing"}}, "invalid_constraint", "grammar"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "thing"}}}},
            "invalid_constraint",
            "response_format.json_schema.schema/type",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "t", "parameters": {"type": "thing"}}}]},
            "invalid_constraint",
            "tools[0].function.parameters/type",
        ),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, None, "logit_bias"),
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 999}, None, "n"),
        ({"tool_choice": "required"}, None, "tool_choice"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "invalid_value", "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "invalid_value",
            "messages[0].content[0].type",
        ),
        ({"extra_body": {"nonsense": 1}}, "unknown_parameter", "nonsense"),
        ({"extra_body": {"regex": "a", "choices": ["a"]}}, None, "choices"),
    ],
)
def test_what_cannot_run_is_a_bad_request_that_names_the_field(
    client: openai.OpenAI, changes: Any, code: str | None, param: str, stream: bool
) -> None:
    asked: Any = {"model": "wild", "messages": HELLO, "max_tokens": 2} | changes
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**asked, stream=stream)
    assert (caught.value.code, caught.value.param, caught.value.type) == (code, param, "invalid_request_error")


def test_an_unknown_route_and_a_wrong_method_keep_the_shape(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.get("/nothing", cast_to=object)
    assert missing.value.code == "unknown_url"
    with pytest.raises(openai.APIStatusError) as wrong:
        client.get("/chat/completions", cast_to=object)
    assert (wrong.value.status_code, wrong.value.code) == (405, "method_not_allowed")
    assert wrong.value.response.headers["Allow"] == "POST"
