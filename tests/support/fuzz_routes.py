"""Every POST route of a server, to be fuzzed: sound bodies, and what an answer must be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fuzzing import Refused, Target, dumped
from local_fakes import fake_local, hashed
from starlette.testclient import TestClient
from toy_tokenizers import byte_level

import forktree as ft
from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings
from forktree.backend.tokenizer import Tokenizer

_SAID = [{"role": "user", "content": "Hi"}]
_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
_FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1, 2]}, "strict": True}}
BODIES: dict[str, tuple[Any, ...]] = {
    "/v1/chat/completions": (
        {"model": "m", "messages": _SAID, "max_tokens": 2, "temperature": 0, "stop": ["x"], "logprobs": True},
        {"model": "m", "messages": _SAID, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}},
        {"model": "m", "messages": _SAID, "max_tokens": 9, "response_format": _FORM, "seed": 1, "n": 2},
        {"model": "m", "messages": _SAID, "max_tokens": 5, "tools": [_TOOL], "tool_choice": "auto"},
        {"model": "m", "messages": [*_SAID, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}, *_SAID]},
    ),
    "/v1/completions": (
        {"model": "m", "prompt": ["a", "b"], "max_tokens": 2, "echo": True, "logprobs": 1, "logit_bias": {"5": 1}},
        {"model": "m", "prompt": [5, 6], "max_tokens": 2, "stream": True, "top_p": 0.5, "suffix": None},
    ),
    "/v1/messages": (
        {"model": "m", "messages": _SAID, "max_tokens": 2, "system": "Be brief.", "stop_sequences": ["x"], "top_k": 3},
        {
            "model": "m",
            "messages": _SAID,
            "max_tokens": 4,
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto"},
        },
    ),
    "/v1/messages/count_tokens": ({"model": "m", "messages": _SAID, "system": [{"type": "text", "text": "s"}]},),
    "/v1/responses": (
        {"model": "m", "input": "Hi", "max_output_tokens": 16, "instructions": "Be brief.", "store": False},
        {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], "stream": True},
    ),
    "/v1/embeddings": (
        {"model": "m", "input": ["a", "b"], "dimensions": 2, "encoding_format": "base64"},
        {"model": "m", "input": [[5, 6], [7]], "pooling": "mean"},
    ),
    "/v1/score": ({"prompt": "a", "options": ["b", "c"], "unconditional": True},),
    "/generate": (
        {"text": "a", "sampling_params": {"max_new_tokens": 2, "temperature": 0, "regex": "[a-z]+"}},
        {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 1}, "return_logprob": True, "stream": False},
    ),
    "/tokenize": ({"prompt": "a b"}, {"messages": _SAID, "add_generation_prompt": True, "tools": [_TOOL]}),
    "/detokenize": ({"tokens": [5, 6, 7]},),
    "/abort": ({"request_id": "x"},),
    "/flush_cache": ({},),
}


@ft.function
def _asks(s):
    s += ft.user("Hi")
    s += ft.assistant(ft.gen("a", max_tokens=2))


def _program_body() -> dict[str, Any]:
    program = json.loads(_asks.trace().to_json())
    return {"program": program, "rows": [{}], "sampling": {"temperature": 0}}


@contextmanager
def server_targets() -> Iterator[list[Target]]:
    """Every POST route of a server over a toy tokenizer and a model of plain ints."""
    tokenizer = Tokenizer(byte_level())
    with fake_local(tokenizer, hashed(tokenizer), max_context=120) as local:
        app = build(local, Settings(model_names=("m",), max_choices=8))
        with TestClient(app) as client:
            bodies = BODIES | {"/v1/programs": (_program_body(),)}
            yield [
                Target(
                    name=f"POST {path}",
                    seeds=dumped(seeds),
                    take=_poster(client, path),
                    refusals=(Refused,),
                    is_json=True,
                )
                for path, seeds in bodies.items()
            ]


def _poster(client: TestClient, path: str) -> Callable[[bytes], None]:
    def post(data: bytes) -> None:
        answer = client.post(path, content=data, headers={"content-type": "application/json"})
        assert answer.status_code < 500, f"{answer.status_code}: {answer.text[:300]}"
        if answer.status_code >= 400:
            said = answer.json()["error"]
            assert isinstance(said["message"], str)
            assert said["message"]
            assert isinstance(said["type"], str)
            raise Refused(said["message"])

    return post
