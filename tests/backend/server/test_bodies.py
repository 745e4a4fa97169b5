"""Bodies: strict JSON within bounds, and errors that say where."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from forktree.backend.server.bodies import checked, parsed
from forktree.backend.server.errors import ApiError
from forktree.backend.server.schemas.chat import ChatRequest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b'{"\\udfff": 1}',
        b"[" * 100_000,
        b'{"a": ' + b"1" * 5000 + b"}",
    ],
)
def test_what_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parsed(data)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_an_empty_body_is_said_to_be_empty(http: TestClient) -> None:
    answer = http.post("/v1/completions")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the body is empty: send a JSON object")


def test_where_nothing_is_to_be_said_an_empty_body_will_do(http: TestClient) -> None:
    for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
        assert http.post("/flush_cache", headers=headers).status_code == 200


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert parsed(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"model": None}, "model", "model is required"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "messages[0].content is required"),
        ({"messages": [{"content": "x"}]}, "messages[0]", "messages[0]: "),
        ({"temperature": "0.5"}, "temperature", 'temperature: Input should be a valid number, not "0.5"'),
        ({"n": True}, "n", "n: Input should be a valid integer, not true"),
        ({"stream": "yes"}, "stream", "stream: "),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is required"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, None, "schema is required"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "is required"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name", "is required"),
        ({"tool_choice": "maybe"}, "tool_choice", "tool_choice: "),
        ({"store": True}, "store", "nothing is stored"),
        ({"functions": []}, "functions", "write tools"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "between -100 and 100"),
        ({"messages": [{"role": "user", "content": "x", "colour": 1}]}, "messages[0].colour", "unknown field"),
        ({"max_token": 5}, "max_token", "unknown field max_token; did you mean 'max_tokens'?"),
        ({"colour": 5}, "colour", "unknown field colour: leave it out"),
        ({"messages": []}, "messages", "messages must have at least 1 item, not 0"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], param: str | None, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        checked(ChatRequest, {"model": "m", "messages": HELLO} | changes)
    assert caught.value.status == 400
    assert param is None or caught.value.param == param
    assert message in caught.value.message


@pytest.mark.parametrize("value", [[], "text", 3, None])
def test_a_body_is_an_object(value: Any) -> None:
    with pytest.raises(ApiError, match="must be a JSON object"):
        checked(ChatRequest, value)


def test_a_body_of_another_kind_is_refused(http: TestClient) -> None:
    answer = http.post("/v1/completions", content="model=m", headers={"Content-Type": "text/plain"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
