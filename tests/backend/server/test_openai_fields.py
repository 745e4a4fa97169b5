"""Every field of OpenAI's chat, completions, embeddings and responses is honoured or refused.

The tables in docs/openai-fields.md come from here; `pytest --update-golden` writes them anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from local_fakes import fake_local, hashed
from openai.types import EmbeddingCreateParams, completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.testclient import TestClient
from toy_tokenizers import byte_level

from forktree.backend.server.app import build
from forktree.backend.server.schemas.base import Refuse
from forktree.backend.server.schemas.chat import ChatRequest
from forktree.backend.server.schemas.completions import CompletionRequest
from forktree.backend.server.schemas.embeddings import EmbeddingsRequest
from forktree.backend.server.schemas.responses import ResponsesRequest
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
EMBEDDINGS: dict[str, list[Any]] = {
    "model": ["m", "another"],
    "input": ["x", ["x", "y"], [5, 6], [[5, 6], [7]], "", [], ["x", ""]],
    "encoding_format": ["float", "base64", "int8"],
    "dimensions": [2, 0, 100_000],
    "user": ["someone"],
    "pooling": ["last", "mean", "max"],
    "priority": [3],
    "cache_salt": ["a", ""],
}
OWN_TOOL = {"type": "function", "name": "t"}
RESPONSES: dict[str, list[Any]] = {
    "model": ["m", "another"],
    "input": [
        "x",
        [TURN],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}],
        [
            {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        [{"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        [{"type": "item_reference", "id": "x"}],
        [],
    ],
    "instructions": ["x"],
    "max_output_tokens": [2, 0],
    "temperature": [0, 1.5, 3],
    "top_p": [0.5, 2],
    "include": [["message.output_text.logprobs"], ["file_search_call.results"]],
    "top_logprobs": [3, 21],
    "text": [
        {"format": {"type": "text"}},
        {"format": {"type": "json_object"}},
        {"format": {"type": "json_schema", "name": "n", "schema": {"type": "integer"}, "strict": True}},
        {"verbosity": "medium"},
        {"verbosity": "low"},
    ],
    "tools": [[OWN_TOOL], [{"type": "web_search", "name": "w"}]],
    "tool_choice": [
        "none",
        "auto",
        "required",
        OWN_TOOL,
        {"type": "allowed_tools", "mode": "auto", "tools": [OWN_TOOL]},
        {"type": "web_search"},
    ],
    "parallel_tool_calls": [True, False],
    "reasoning": [{"effort": "none"}, {"max_tokens": 4}, {"effort": "high"}, {"summary": "auto"}],
    "stream": [False, True],
    "stream_options": [{"include_obfuscation": False}, {"include_obfuscation": True}],
    "user": ["someone"],
    "metadata": [{"a": "b"}],
    "safety_identifier": ["someone"],
    "prompt_cache_key": ["k"],
    "service_tier": ["auto", "default", "priority"],
    "store": [False, True],
    "truncation": ["disabled", "auto"],
    "background": [False, True],
    "background_options": [{}],
    "previous_response_id": ["resp_1"],
    "conversation": ["conv_1"],
    "prompt": [{"id": "pmpt_1"}],
    "max_tool_calls": [2],
    "context_management": [[], [{"type": "compaction"}]],
    "moderation": [{}],
    "prompt_cache_retention": ["24h"],
    "prompt_cache_options": [{}],
    "access_programs": [{}],
    "image": [{}],
}
RESPONSES_BESIDE: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "top_logprobs": {"include": ["message.output_text.logprobs"]},
    "tool_choice": {"tools": [OWN_TOOL]},
    "parallel_tool_calls": {"tools": [OWN_TOOL]},
}
BESIDE: dict[str, dict[str, Any]] = {  # what a field goes with
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "tool_choice": {"tools": [TOOL]},
    "parallel_tool_calls": {"tools": [TOOL]},
    "max_completion_tokens": {"max_tokens": None},
}


class Route(NamedTuple):
    """What is tried on one route: values of each field, what goes with some, and what every request has."""

    model: type[BaseModel]
    params: Any
    samples: dict[str, list[Any]]
    base: dict[str, Any]
    beside: dict[str, dict[str, Any]]


ROUTES = {
    "/v1/chat/completions": Route(
        ChatRequest,
        chat_create_params.CompletionCreateParamsBase,
        SHARED | CHAT,
        {"model": "m", "max_tokens": 8, "messages": [TURN]},
        BESIDE,
    ),
    "/v1/completions": Route(
        CompletionRequest,
        completion_create_params.CompletionCreateParamsBase,
        SHARED | COMPLETIONS,
        {"model": "m", "max_tokens": 8, "prompt": "x"},
        BESIDE,
    ),
    "/v1/embeddings": Route(EmbeddingsRequest, EmbeddingCreateParams, EMBEDDINGS, {"model": "m", "input": "x"}, {}),
    "/v1/responses": Route(
        ResponsesRequest,
        ResponseCreateParamsBase,
        RESPONSES,
        {"model": "m", "max_output_tokens": 8, "input": "x"},
        RESPONSES_BESIDE,
    ),
}


@pytest.fixture(scope="module")
def small() -> Iterator[TestClient]:
    tokenizer = Tokenizer(byte_level(chat_template=THINKING))
    with fake_local(tokenizer, hashed(tokenizer), max_context=300) as local:
        yield TestClient(build(local, Settings(model_names=("m",))))


def verdict(http: TestClient, path: str, field: str, about: FieldInfo) -> str:
    """One row of a table."""
    route = ROUTES[path]
    values = route.samples[field]
    note, is_refused = about.description or "", any(isinstance(one, Refuse) for one in about.metadata)
    taken, refused, reasons = [], [], []
    for value in values:
        answer = http.post(path, json=route.base | route.beside.get(field, {}) | {field: value})
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


def rows(http: TestClient, path: str) -> list[str]:
    route = ROUTES[path]
    known = list(route.params.__annotations__)
    lines = ["| field | | taken | refused | |", "|---|---|---|---|---|"]
    for field in sorted(route.samples, key=lambda name: (name not in known and name != "stream", name)):
        lines.append(verdict(http, path, field, route.model.model_fields[field]))
    return lines


@pytest.mark.parametrize("path", ROUTES)
def test_every_field_of_the_protocol_and_of_ours_is_tried(path: str) -> None:
    route = ROUTES[path]
    assert set(route.samples) == set(route.model.model_fields)
    assert set(route.params.__annotations__) - set(route.samples) == set()


def test_the_tables_in_the_docs_are_what_the_server_answers(small: TestClient, golden: Any) -> None:
    doc = Path(__file__).parents[3] / "docs/openai-fields.md"
    parts = [line for path in ROUTES for line in (f"## `{path}`", "", *rows(small, path), "")]
    tables = "\n".join(["<!-- tables -->", "", *parts, "<!-- end -->"])
    marks = re.compile("<!-- tables -->.*<!-- end -->", re.DOTALL)
    golden(DOC, marks.sub(lambda _: tables, doc.read_text(encoding="utf-8")))
