"""Markup of tool calls and of reasoning, found by rendering the model's own template."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from grammar_walks import random_text
from toy_tokenizers import CHATML, byte_level

from forktree.backend.call_markup import CallMarkup, Slot, call_markup, read_calls
from forktree.backend.chat import ChatTemplate
from forktree.backend.grammar.constraints import constraint_from_spec
from forktree.backend.local_forms import Form, form_of
from forktree.backend.reasoning_markup import ReasoningMarkup, reasoning_markup
from forktree.backend.render import Prompt
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.constraints import ToolSpec, ToolsSpec

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
    "}\n</tool_call>",
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
ONE_BY_ONE = {"llama.cpp/ByteDance-Seed-OSS", "llama.cpp/GLM-4.6", "llama.cpp/Qwen3-Coder"}
PYTHON_OBJECTS = {"llama.cpp/ByteDance-Seed-OSS"}  # quotes an object as Python prints it; what is generated is JSON
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
SCHEMAS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "when": {"type": "object"}},
        "required": ["city"],
    },
    "add": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": SCHEMAS[name]}}
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
    names = [name for name, _, _ in CALLS]
    texts = written_calls(chat, count, markup.before, markup.after)
    found = [read_calls(text, markup, names, markup.after) for text in texts]
    assert [(name, arguments) for name, arguments, _ in CALLS[:count]] in found


def written_calls(chat: ChatTemplate, count: int, before: str, after: str) -> list[str]:
    """Every stretch of a rendered answer that begins and ends as calls do."""
    text = rendered(chat, count)
    text = text[text.rindex("How warm is it?") :]
    start = text.index(f"{before}{CALLS[0][0]}")
    return [text[start:end] for end in range(start, len(text) + 1) if text.endswith(after, start, end)]


@pytest.mark.parametrize("name", sorted((IN_JSON | ONE_BY_ONE) - PYTHON_OBJECTS))
@pytest.mark.parametrize("count", [1, 2])
def test_what_a_template_writes_satisfies_the_constraint_and_is_read_as_the_calls(name: str, count: int) -> None:
    hf = byte_level(chat_template=TEMPLATES[name], bos_token="<|im_start|>")
    tokenizer = Tokenizer(hf)
    tools = tuple(ToolSpec(name, json.dumps(schema)) for name, schema in SCHEMAS.items())
    spec = ToolsSpec(tools, is_list=count > 1, high=count)
    form = form_of(spec, Prompt((1,)), tokenizer)
    if count > 1 and name in ONE_ONLY:
        assert form == Form(spec)
        return
    assert form.calls is not None
    markup = tokenizer.call_markup
    assert markup is not None
    constraint = constraint_from_spec(form.spec)
    closing = form.spec.parts[-1].text
    written = written_calls(tokenizer.chat, count, markup.before, closing)
    values = [form.calls.value(text) for text in written if constraint.accepts(text)]
    calls = [{"name": name, "arguments": arguments} for name, arguments, _ in CALLS[:count]]
    assert None not in values
    assert (calls if count > 1 else calls[0]) in [json.loads(value or "null") for value in values]


@pytest.mark.parametrize("name", sorted(ONE_BY_ONE))
def test_walks_over_calls_one_by_one_end_in_calls(name: str) -> None:
    tokenizer = Tokenizer(byte_level(chat_template=TEMPLATES[name], bos_token="<|im_start|>"))
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b"]},
            "note": {"type": "string", "title": "Note"},
            "count": {"type": ["integer", "null"]},
        },
        "required": ["kind"],
    }
    form = form_of(ToolsSpec((ToolSpec("f", json.dumps(schema)),)), Prompt((1,)), tokenizer)
    assert form.calls is not None
    found = 0
    for seed in range(20):
        text = random_text(constraint_from_spec(form.spec), random.Random(seed), tokenizer.vocabulary, most=400)
        if text is not None:
            found += 1
            call = json.loads(form.calls.value(text) or "")
            jsonschema.validate(call["arguments"], schema)
            assert set(call["arguments"]) <= set(schema["properties"])
    assert found


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a": {"type": ["string", "integer"]}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x"}}},
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"type": "object", "properties": {}, "required": ["a"]},
        {"type": "object", "patternProperties": {"a": {}}},
        {"type": "array"},
    ],
)
def test_arguments_that_could_not_be_read_back_are_written_as_json(parameters: dict[str, Any]) -> None:
    tokenizer = Tokenizer(byte_level(chat_template=TEMPLATES["llama.cpp/Qwen3-Coder"], bos_token="<|im_start|>"))
    spec = ToolsSpec((ToolSpec("f", json.dumps(parameters)),))
    assert form_of(spec, Prompt((1,)), tokenizer) == Form(spec)


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
