"""Every field of OpenAI's chat and completions is honoured or refused.

The tables in docs/openai-fields.md come from here; `pytest --update-golden` writes them anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_fakes import fake_local, hashed
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.testclient import TestClient
from toy_tokenizers import byte_level

from forktree.backend.server.app import build
from forktree.backend.server.schemas.base import Refuse
from forktree.backend.server.schemas.chat import ChatRequest
from forktree.backend.server.schemas.completions import CompletionRequest
from forktree.backend.server.settings import Settings
from forktree.backend.tokenizer import Tokenizer

DOC = "../../docs/openai-fields.md"  # from tests/golden
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "t"}}
TURN = {"role": "user", "content": "x"}

SHARED: dict[str, list[Any]] = {
    "model": ["m", "another"],
    "frequency_penalty": [0.5, 3],
    "presence_penalty": [0.5, 3],
    "logit_bias": [{"7": -100}, {"7": 101}],
    "n": [2, 0],
    "seed": [3],
    "stop": ["a", ["a", "b"], "", [""]],
    "stream": [False, True],
    "stream_options": [{"include_usage": True}, {"include_usage": True, "include_obfuscation": True}],
    "temperature": [0, 1.5, 3],
    "top_p": [0.5, 2],
    "user": ["someone"],
    "top_k": [5],
    "min_p": [0.1],
    "repetition_penalty": [1.2],
    "min_tokens": [2],
    "ignore_eos": [True],
    "stop_token_ids": [[5]],
    "regex": ["[ab]{3}", "("],
    "grammar": ['start: "a"', "start: nothing"],
    "choices": [["yes", "no"], []],
    "priority": [3],
    "cache_salt": ["a", ""],
    "on_budget": ["close", "never"],
}
CHAT: dict[str, list[Any]] = {
    "messages": [
        [{"role": "system", "content": "x"}, TURN],
        [{"role": "developer", "content": "x"}, TURN],
        [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        [TURN, {"role": "assistant", "content": "x"}, TURN],
        [TURN, {"role": "tool", "tool_call_id": "c", "content": "x"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "function", "name": "t", "content": "x"}],
    ],
    "max_tokens": [2, 0],
    "max_completion_tokens": [2],
    "logprobs": [True],
    "top_logprobs": [3, 21],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}, "strict": True}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "thing"}}},
    ],
    "tools": [[TOOL], [{"type": "custom", "custom": {"name": "t"}}]],
    "tool_choice": [
        "none",
        "auto",
        "required",
        TOOL,
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}},
        {"type": "custom", "custom": {"name": "t"}},
    ],
    "parallel_tool_calls": [True, False],
    "metadata": [{"a": "b"}],
    "safety_identifier": ["someone"],
    "prompt_cache_key": ["k"],
    "service_tier": ["auto", "default", "priority"],
    "store": [False, True],
    "modalities": [["text"], ["text", "audio"]],
    "reasoning_effort": ["none", "high"],
    "verbosity": ["medium", "low"],
    "prediction": [{"type": "content", "content": "x"}],
    "audio": [{"voice": "alloy", "format": "wav"}],
    "web_search_options": [{}],
    "functions": [[{"name": "t"}]],
    "function_call": ["auto"],
    "moderation": [{}],
    "prompt_cache_retention": ["24h"],
    "prompt_cache_options": [{}],
    "reasoning": [{}],
}
COMPLETIONS: dict[str, list[Any]] = {
    "prompt": ["x", ["x", "y"], [5, 6], [[5, 6], [7]], []],
    "max_tokens": [2],
    "best_of": [2, 0],
    "echo": [True],
    "logprobs": [2, 21],
    "suffix": ["x"],
    "markup": [True],
}
BESIDE: dict[str, dict[str, Any]] = {  # what a field goes with
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "tool_choice": {"tools": [TOOL]},
    "parallel_tool_calls": {"tools": [TOOL]},
    "max_completion_tokens": {"max_tokens": None},
}


@pytest.fixture(scope="module")
def small() -> Iterator[TestClient]:
    tokenizer = Tokenizer(byte_level(chat_template=THINKING))
    with fake_local(tokenizer, hashed(tokenizer), max_context=300) as local:
        yield TestClient(build(local, Settings(model_names=("m",))))


def verdict(http: TestClient, path: str, base: dict[str, Any], field: str, about: FieldInfo, values: list[Any]) -> str:
    """One row of a table."""
    note, is_refused = about.description or "", any(isinstance(one, Refuse) for one in about.metadata)
    taken, refused, reasons = [], [], []
    for value in values:
        answer = http.post(path, json=base | BESIDE.get(field, {}) | {field: value})
        if answer.status_code == 200:
            taken.append(value)
        else:
            error = answer.json()["error"]
            assert answer.status_code in (400, 404), (field, value, error)
            assert field in (error["param"] or ""), (field, value, error)
            refused.append(value)
            reasons.append(error["message"].removeprefix(f"{field}: ").partition(", not ")[0])
    kind = "refused" if not taken else "no effect" if "changes nothing" in note else "honoured"
    if taken and is_refused:
        kind = "refused, but for"
    said = note or ("; ".join(dict.fromkeys(reasons)) if not taken else "")
    return f"| `{field}` | {kind} | {shown(taken)} | {shown(refused)} | {said} |".replace("  |", " |")


def shown(values: list[Any]) -> str:
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    return " ".join(f"`{text}`" for text in texts).replace("|", "\\|")


def rows(http: TestClient, path: str, model: type[BaseModel], samples: dict[str, list[Any]], params: Any) -> list[str]:
    base = {"model": "m", "max_tokens": 8}
    base |= {"messages": [TURN]} if model is ChatRequest else {"prompt": "x"}
    known = list(params.CompletionCreateParamsBase.__annotations__)
    lines = ["| field | | taken | refused | |", "|---|---|---|---|---|"]
    for field in sorted(samples, key=lambda name: (name not in known and name != "stream", name)):
        lines.append(verdict(http, path, base, field, model.model_fields[field], samples[field]))
    return lines


@pytest.mark.parametrize(
    ("model", "samples", "params"),
    [
        (ChatRequest, SHARED | CHAT, chat_create_params),
        (CompletionRequest, SHARED | COMPLETIONS, completion_create_params),
    ],
)
def test_every_field_of_the_protocol_and_of_ours_is_tried(model: type[BaseModel], samples: Any, params: Any) -> None:
    assert set(samples) == set(model.model_fields)
    assert set(params.CompletionCreateParamsBase.__annotations__) - set(samples) == set()


def test_the_tables_in_the_docs_are_what_the_server_answers(small: TestClient, golden: Any) -> None:
    path = Path(__file__).parents[3] / "docs/openai-fields.md"
    parts = []
    for route, model, samples, params in (
        ("/v1/chat/completions", ChatRequest, SHARED | CHAT, chat_create_params),
        ("/v1/completions", CompletionRequest, SHARED | COMPLETIONS, completion_create_params),
    ):
        parts += [f"## `{route}`", "", *rows(small, route, model, samples, params), ""]
    tables = "\n".join(["<!-- tables -->", "", *parts, "<!-- end -->"])
    marks = re.compile("<!-- tables -->.*<!-- end -->", re.DOTALL)
    golden(DOC, marks.sub(lambda _: tables, path.read_text(encoding="utf-8")))
