"""Markup of tool calls and of reasoning, found by rendering the model's own template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_tokenizers import CHATML, byte_level

from forktree.backend.call_markup import CallMarkup, Slot, call_markup, read_calls
from forktree.backend.chat import ChatTemplate
from forktree.backend.reasoning_markup import ReasoningMarkup, reasoning_markup

DATA = Path(__file__).parents[1] / "data/chat"
TEMPLATES = {
    row["id"]: row["chat_template"]
    for name in ("templates.jsonl", "tool_templates.jsonl")
    for row in map(json.loads, (DATA / name).read_text(encoding="utf-8").splitlines())
}
HERMES = CallMarkup(
    '<tool_call>\n{"name": "',
    (Slot.NAME, '", "arguments": ', Slot.ARGUMENTS),
    '}\n</tool_call>\n<tool_call>\n{"name": "',
    "}\n</tool_call><|im_end|>\n",
)
IN_JSON = {
    "chat_templates/qwen2.5-instruct",
    "llama.cpp/MiniMax-M1",
    "llama.cpp/NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "llama.cpp/Qwen-Qwen3-0.6B",
    "llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "llama.cpp/ibm-granite-granite-4.0",
    "llama.cpp/meetkai-functionary-medium-v3.1",
    "llama.cpp/meetkai-functionary-medium-v3.2",
    "llama.cpp/mistralai-Mistral-Nemo-Instruct-2407",
    "llama.cpp/openai-gpt-oss-120b",
    "llama.cpp/unsloth-Apriel-1.5",
    "mistral-common/v15",
    "mistral-common/v3",
}
ONE_ONLY = {"llama.cpp/openai-gpt-oss-120b"}
REASONING = {
    "llama.cpp/ByteDance-Seed-OSS": ReasoningMarkup("<seed:think>", "</seed:think>"),
    "llama.cpp/GLM-4.6": ReasoningMarkup("<think>", "</think>"),
    "llama.cpp/Qwen-Qwen3-0.6B": ReasoningMarkup("<think>", "</think>"),
    "llama.cpp/openai-gpt-oss-120b": ReasoningMarkup(
        "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
    ),
}
CALLS = [
    ("get_weather", {"city": 'Zürich "Nord"', "when": {"day": 3, "hours": [1, 2]}}, "abcdefgh1"),
    ("add", {"a": 1, "b": -2.5}, "abcdefgh2"),
]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": {"type": "object"}}}
    for name, _, _ in CALLS
]


def template(name: str) -> ChatTemplate:
    return ChatTemplate(byte_level(chat_template=TEMPLATES[name], bos_token="<|im_start|>"))


def rendered(chat: ChatTemplate, count: int) -> str:
    """A conversation in which the model calls, as the template writes it."""
    question = {"role": "user", "content": "How warm is it?"}
    for as_text in (False, True):
        calls = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(a) if as_text else a}}
            for name, a, id in CALLS[:count]
        ]
        for content in ("", None):
            answer = {"role": "assistant", "content": content, "tool_calls": calls}
            text = chat.probe([question, answer], tools=TOOLS)
            if text is not None:
                return text
    raise AssertionError("the template refuses calls")


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_markup_of_real_templates_is_found_or_there_is_none_in_json(name: str) -> None:
    markup = call_markup(template(name))
    assert (markup is not None) == (name in IN_JSON)
    if markup is not None:
        assert (markup.joint is None) == (name in ONE_ONLY)


@pytest.mark.parametrize("name", sorted(IN_JSON))
@pytest.mark.parametrize("count", [1, 2])
def test_calls_that_a_template_writes_are_read_back(name: str, count: int) -> None:
    chat = template(name)
    markup = call_markup(chat)
    assert markup is not None
    if count > 1 and markup.joint is None:
        return
    text = rendered(chat, count)
    end = text.rindex(markup.after) + len(markup.after)
    starts = [at for at in range(end) if text.startswith(markup.before, at)]
    names = [name for name, _, _ in CALLS]
    found = [read_calls(text[at:end], markup, names, markup.after) for at in starts]
    assert [(name, arguments) for name, arguments, _ in CALLS[:count]] in found


def test_a_call_that_is_not_whole_is_none() -> None:
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    after = "}\n</tool_call>"
    assert read_calls(text, HERMES, ["add", "ad"], after) == [("add", {"a": 1})]
    for end in range(len(text)):
        assert read_calls(text[:end], HERMES, ["add"], after) is None
    assert read_calls(text + " ", HERMES, ["add"], after) is None
    assert read_calls(text, HERMES, ["subtract"], after) is None


def test_the_pieces_of_a_known_markup() -> None:
    assert call_markup(template("chat_templates/qwen2.5-instruct")) == HERMES
    nemo = call_markup(template("llama.cpp/mistralai-Mistral-Nemo-Instruct-2407"))
    assert nemo is not None
    assert nemo.before == '[TOOL_CALLS][{"name": "'
    assert nemo.parts[-2:] == (', "id": "', Slot.ID)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_reasoning_of_real_templates_is_found(name: str) -> None:
    assert reasoning_markup(template(name)) == REASONING.get(name)


def test_a_template_that_opens_reasoning_shows_it_by_that() -> None:
    opened = CHATML.replace("assistant\\n' }}{% endif", "assistant\\n<think>\\n' }}{% endif")
    closing = "{% set unused = '</think>' %}"
    assert reasoning_markup(ChatTemplate(byte_level(chat_template=closing + opened))) == ("<think>", "</think>")
    assert reasoning_markup(ChatTemplate(byte_level(chat_template=opened))) is None
    assert reasoning_markup(ChatTemplate(byte_level(chat_template=None))) is None
    assert call_markup(ChatTemplate(byte_level(chat_template=None))) is None
