"""`/v1/chat/completions` over a model whose words are known: what is text, what is a call, what is thought."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from local_fakes import answerer, fake_local
from starlette.testclient import TestClient
from toy_tokenizers import CHATML, byte_level

from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings
from forktree.backend.tokenizer import Tokenizer

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN = next(
    row["chat_template"]
    for row in map(json.loads, (Path(__file__).parents[2] / "data/chat/templates.jsonl").read_text().splitlines())
    if row["id"] == "chat_templates/qwen2.5-instruct"
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}


def saying(text: str, template: str = CHATML) -> TestClient:
    """A server whose model says a text; the tags of calls are special tokens of its tokenizer."""
    tokenizer = Tokenizer(byte_level(chat_template=template, added=["<tool_call>", "</tool_call>"]))
    local = fake_local(tokenizer, answerer(tokenizer, text, markup=True))
    return TestClient(build(local, Settings(model_names=("m",))))


def ask(text: str, template: str = CHATML, **body: Any) -> tuple[dict[str, Any], str]:
    """The message and why it ended; streamed and whole are the same."""
    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 0, "max_tokens": 150, **body}
    with saying(text, template) as http:
        whole = http.post("/v1/chat/completions", json=asked)
        assert whole.status_code == 200, whole.text
        with http.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as answer:
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    choice = whole.json()["choices"][0]
    message, reason = put_together([json.loads(line)["choices"][0] for line in lines[:-1]])
    for call in (*choice["message"].get("tool_calls", ()), *message.get("tool_calls", ())):
        del call["id"]
    assert (message, reason) == (choice["message"], choice["finish_reason"])
    return message, reason


def put_together(choices: list[Any]) -> tuple[dict[str, Any], Any]:
    message: dict[str, Any] = {}
    for delta in (choice["delta"] for choice in choices):
        for key, value in delta.items():
            if key == "tool_calls":
                calls = message.setdefault(key, [])
                for call in value:
                    if call["index"] == len(calls):
                        calls.append({key: part for key, part in call.items() if key != "index"})
                    else:
                        calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            elif isinstance(value, str) and key != "role":
                message[key] = message.get(key, "") + value
            else:
                message[key] = value
    if message.get("tool_calls"):
        message["content"] = message["content"] or None
    return message, choices[-1]["finish_reason"]


def test_a_free_answer_beside_tools_is_text() -> None:
    message, reason = ask("Just {words}.", tools=[TOOL])
    assert (message["content"], reason) == ("Just {words}.", "stop")
    assert "tool_calls" not in message


def test_an_answer_may_say_something_and_then_call() -> None:
    message, reason = ask('Well.\n{"name": "add", "arguments": {"a": [1, "}"]}}', tools=[TOOL])
    assert message["content"] == "Well.\n"
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "add", "arguments": '{"a": [1, "}"]}'}}]
    assert reason == "tool_calls"


def test_several_calls_follow_each_other_where_they_may() -> None:
    text = '{"name": "add", "arguments": {"a": 1}}\n{"name": "add", "arguments": {"a": 2}}'
    message, _ = ask(text, tools=[TOOL])
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"a": 1}', '{"a": 2}']
    message, _ = ask(text, tools=[TOOL], parallel_tool_calls=False)
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"a": 1}']


@pytest.mark.parametrize("tool_choice", ["auto", "required"])
def test_calls_in_the_templates_own_special_tokens_are_read(tool_choice: str) -> None:
    said = "" if tool_choice == "required" else "Let me see.\n"
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    message, reason = ask(f"{said}{call}\n{call}", QWEN, tools=[TOOL], tool_choice=tool_choice)
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"a": 1}', '{"a": 1}']
    assert (message["content"], reason) == (said or None, "tool_calls")


def test_a_call_that_is_cut_keeps_what_it_has() -> None:
    message, reason = ask('{"name": "add", "arguments": {"a": 12345678}}', tools=[TOOL], max_tokens=38)
    ((call,), content) = message["tool_calls"], message["content"]
    assert '{"a": 12345678}'.startswith(call["function"]["arguments"])
    assert (content, reason) == (None, "length")


def test_a_call_is_text_where_no_tool_may_be_called() -> None:
    text = '{"name": "add", "arguments": {}}'
    for body in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        message, reason = ask(text, **body)
        assert (message["content"], reason) == (text, "stop")


@pytest.mark.parametrize("extra", [{}, {"choices": ["No.", "Yes."]}])
def test_what_is_thought_before_the_answer_stands_apart(extra: dict[str, Any]) -> None:
    message, reason = ask("<think>\nhm, so\n</think>\n\nYes.", THINKING, reasoning={}, **extra)
    assert (message["reasoning_content"].strip(), message["content"], reason) == ("hm, so", "Yes.", "stop")


def test_both_limits_may_be_given_if_they_agree() -> None:
    message, reason = ask("Hello", max_tokens=2, max_completion_tokens=2)
    assert (message["content"], reason) == ("He", "length")
    with saying("Hello") as http:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        answer = http.post("/v1/chat/completions", json={**body, "max_completion_tokens": 3})
    assert answer.json()["error"]["param"] == "max_tokens"


def test_a_bias_decides_and_a_forbidden_token_does_not_come() -> None:
    tokenizer = Tokenizer(byte_level())
    (h,), (b,) = tokenizer.encode("H"), tokenizer.encode("b")
    message, _ = ask("Hello", logit_bias={str(h): -100, str(b): 100}, max_tokens=1)
    assert message["content"] == "b"
