"""Every parser of what somebody else wrote: where it is, sound inputs for it, and what it may refuse them with."""

from __future__ import annotations

import json
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import numpy as np
from fuzzing import Target, dumped

import forktree as ft
from forktree.backend.cache.disk import DiskTier, prune, verify
from forktree.backend.clients.http import Transport
from forktree.backend.model.config import read_config
from forktree.backend.model.gguf_file import convert_gguf
from forktree.backend.model.weights import open_weights
from forktree.runtime.journal import Journal, JournalFile, restored_names
from forktree.runtime.stored import restore, restore_branch

# --- constraints --------------------------------------------------------------------------------------------------

SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]},
    {"type": "array", "items": {"enum": ["x", 1, None]}, "minItems": 1, "maxItems": 3, "uniqueItems": True},
    {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
    {"type": "string", "pattern": "^a+$", "maxLength": 5},
    {"anyOf": [{"type": "number", "multipleOf": 0.5}, {"const": [True]}], "not": {"const": 1}},
    {"$schema": "http://json-schema.org/draft-07/schema#", "if": {"type": "null"}, "then": True, "else": False},
    {"type": "object", "patternProperties": {"^k": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "string", "format": "date", "description": "a day"},
)
PATTERNS = (
    r"(a|b)+c{2,3}",
    r"[^\W\d_]*\.x?",
    r"(?i:ab)(?=c)c",
    r"\p{L}\u00e9[a-\x7f]",
    r"(?P<n>a)(?:b|)*$",
    r"^\d{1,40}\b",
)
GRAMMARS = (
    'start: item ("," item)*\nitem: /[a-z]+/ | "(" start ")"\n',
    'start: (A | B)~2..3\nA: "a"i\nB: /b{1,3}/x\n%import common.WS\n%ignore WS\n',
    '?start: sum\n?sum: NUMBER | sum "+" NUMBER -> add\n%import common.NUMBER\n',
    'root ::= "a" | [b-d]+ root?\n',
)


def _schema(data: bytes) -> None:
    ft.Schema(_text(data)).accepts("[1]")


def _pattern(data: bytes) -> None:
    ft.Regex(_text(data)).accepts("abab")


def _grammar(data: bytes) -> None:
    ft.Grammar(_text(data)).accepts("a")


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


# --- models -------------------------------------------------------------------------------------------------------


def _gguf_seed() -> bytes:
    from gguf import GGUFWriter

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "tiny.gguf"
        writer = GGUFWriter(str(path), "llama")
        writer.add_context_length(16)
        writer.add_embedding_length(8)
        writer.add_block_count(1)
        writer.add_feed_forward_length(8)
        writer.add_head_count(2)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_vocab_size(4)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["<end>", "a", "b", "ab"])
        writer.add_token_types([3, 1, 1, 1])
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(0)
        for name_, shape in {"token_embd": (4, 8), "output_norm": (8,), "blk.0.attn_q": (8, 8)}.items():
            writer.add_tensor(f"{name_}.weight", np.ones(shape, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def _gguf(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path, folder = Path(name) / "model.gguf", Path(name) / "out"
        path.write_bytes(data)
        folder.mkdir()
        convert_gguf(path, folder)


def _safetensors_seed() -> bytes:
    from safetensors.numpy import save

    return save({"a": np.ones((2, 3), np.float32), "b.weight": np.zeros(4, np.float16)}, {"format": "pt"})


def _safetensors(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name, "model.safetensors").write_bytes(data)
        with open_weights(Path(name)) as weights:
            weights.take("a", 2, 3)
            weights.take("b.weight", 4)
            weights.finish()


CONFIG = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 48,
    "intermediate_size": 88,
    "max_position_embeddings": 512,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "vocab_size": 131,
    "eos_token_id": [2],
}


def _config(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name, "config.json").write_bytes(data)
        Path(name, "generation_config.json").write_bytes(data)
        read_config(Path(name))


# --- what forktree itself wrote -------------------------------------------------------------------------------------


@ft.function
def _program(s, word):
    s += ft.system("Be brief.") + ft.user(word)
    s += ft.assistant("It is " + ft.gen("a", regex="[a-z]+", max_tokens=3) + ft.select("b", ["x", "y"]))
    left, right = s.fork(2)
    left += ft.gen("c", schema={"type": "integer"}, temperature=0.5)
    right += ft.gen("d", stop=["\n"])
    s.join(left, right)
    return s["a"], {"b": s["b"]}


def _read_program(data: bytes) -> None:
    program = ft.Program.from_json(_text(data))
    str(program)
    ft.Program.from_json(program.to_json())


STORED = (
    '{"a":{"$tuple":[1,{"$float":"nan"}]},"b":{"$date":"2024-03-01"},"c":{"$bytes":"aGk="}}',
    '{"$dict":[[{"$decimal":"1.5"},{"$set":[1,2]}]]}',
    '{"v":{"value":"x","meta":{"$class":"forktree.runtime.record:Meta","data":{}}}}',
    '[["Text","hi",false],["Generated","x",{"$tuple":[1,2]},0],["ForkMark"]]',
)


def _read_stored(data: bytes) -> None:
    """Each part of a journal's row, as resuming reads it."""
    text = _text(data)
    for read in (restore, restored_names, restore_branch):
        try:
            read(text)
        except ft.ForktreeError:
            if read is restore:
                raise


def _journal_seed() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "map.db"
        file = JournalFile(Journal(path), {"body": "1"}, [{"x": 1}, {"x": 2}])
        file._db.execute("PRAGMA journal_mode=DELETE")
        file.close()
        with closing(sqlite3.connect(path)) as db:
            db.execute("INSERT INTO rows VALUES (0, '00', '1', '{}', '[]')")
            db.commit()
        return path.read_bytes()


def _journal(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "map.db"
        path.write_bytes(data)
        file = JournalFile(Journal(path, on_change="keep"), {"body": "1"}, [{"x": 1}, {"x": 2}])
        try:
            file.find(0, {"x": 1})
        finally:
            file.close()


def _replay_seeds() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run.jsonl"
        with ft.Replay(path, ft.Fake(["x", "y", "7", "z"])) as recording:
            _said.run(backend=recording, seed=1)
        return (path.read_bytes(),)


@ft.function
def _said(s):
    s += ft.user("Hi") + ft.assistant(ft.gen("a", max_tokens=3))
    return s["a"]


def _replay(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run.jsonl"
        path.write_bytes(data)
        _said.run(backend=ft.Replay(path), seed=1)


_ADDRESS = bytes(range(16))


def _tier_seed() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        tier = DiskTier(name, "m", limit_bytes=1 << 20)
        tier.write(_ADDRESS, b"keys and values")
        return tier.path_of(_ADDRESS).read_bytes()


def _tier(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        tier = DiskTier(name, "m", limit_bytes=1 << 20)
        tier.write(_ADDRESS, b"other")
        tier.path_of(_ADDRESS).write_bytes(data)
        faults = verify(Path(name))
        found = tier.read(_ADDRESS)
        assert found in (None, b"keys and values"), "a page that nobody wrote"
        assert found is None or not faults
        prune(Path(name), 0)


# --- other people's servers ---------------------------------------------------------------------------------------

_USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
_TOP = [
    {"token": "7", "logprob": -0.1, "bytes": [55], "top_logprobs": [{"token": "7", "logprob": -0.1, "bytes": [55]}]}
]
OPENAI_STREAM = (
    [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": "7"}, "logprobs": {"content": _TOP}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": _USAGE},
    ],
    [{"choices": [{"index": 0, "delta": {"content": "a", "reasoning_content": "b"}, "finish_reason": "length"}]}],
    [{"error": {"message": "overloaded", "type": "server_error", "code": "rate_limit_exceeded"}}],
)
OPENAI_WHOLE = (
    {
        "choices": [{"message": {"role": "assistant", "content": '{"answer": 7}'}, "finish_reason": "stop"}],
        "usage": _USAGE,
        "model": "m",
    },
    {
        "choices": [
            {
                "message": {"content": None, "tool_calls": [{"id": "c", "function": {"name": "n", "arguments": "{}"}}]},
                "finish_reason": "tool_calls",
            }
        ]
    },
)
OPENAI_FAULT = (
    {"error": {"message": "maximum context length is 8 tokens, requested 9", "code": "context_length_exceeded"}},
    {"error": {"message": "no such model", "type": "invalid_request_error", "code": "model_not_found", "n_ctx": 8}},
    [{"error": {"message": "quota"}}],
)
ANTHROPIC_STREAM = (
    [
        {"type": "message_start", "message": {"usage": {"input_tokens": 2, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "7"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ],
    [{"type": "error", "error": {"type": "overloaded_error", "message": "later"}}],
)
ANTHROPIC_WHOLE = (
    {
        "type": "message",
        "content": [{"type": "text", "text": '{"answer": 7}'}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 2, "cache_read_input_tokens": 1, "output_tokens": 2},
    },
    {"type": "message", "content": [{"type": "tool_use", "id": "t", "name": "answer", "input": {"a": 1}}]},
)


@ft.function
def _asks(s, **options):
    s += ft.user("Hi") + ft.assistant(ft.gen("a", **options))
    return s["a"]


def _client(make: Callable[[], Any], status: int, *, is_stream: bool, **options: Any) -> Callable[[bytes], None]:
    """One question to a service whose answer is the input."""

    def take(data: bytes) -> None:
        content, kind = data, "application/json"
        if is_stream:
            content, kind = _as_events(data), "text/event-stream"

        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(status, headers={"content-type": kind}, content=content)

        def make_client(self: Transport) -> httpx.AsyncClient:
            return httpx.AsyncClient(transport=httpx.MockTransport(answer))

        with patch.object(Transport, "_make_client", make_client), make() as backend:
            _asks.run(**options, backend=backend)

    return take


def _as_events(data: bytes) -> bytes:
    """A JSON array as the events of a stream; anything else as the bytes of one."""
    try:
        events = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(events, list):
        events = [events]
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def _openai() -> ft.OpenAI:
    return ft.OpenAI("m", base_url="http://fuzz.test/v1", api_key="k", dialect="openai", retries=0)


def _anthropic() -> ft.Anthropic:
    return ft.Anthropic("m", base_url="http://fuzz.test", api_key="k", retries=0)


def client_targets() -> Iterator[Target]:
    integer = {"schema": {"type": "integer"}}
    cases: list[tuple[str, tuple[Any, ...], Callable[[], Any], int, bool, dict[str, Any]]] = [
        ("OpenAI stream", OPENAI_STREAM, _openai, 200, True, {"logprobs": 1}),
        ("OpenAI answer", OPENAI_WHOLE, _openai, 200, False, integer),
        ("OpenAI error", OPENAI_FAULT, _openai, 400, False, {}),
        ("Anthropic stream", ANTHROPIC_STREAM, _anthropic, 200, True, {"max_tokens": 5}),
        ("Anthropic answer", ANTHROPIC_WHOLE, _anthropic, 200, False, {"max_tokens": 5, **integer}),
    ]
    for name, seeds, make, status, is_stream, options in cases:
        take = _client(make, status, is_stream=is_stream, **options)
        yield Target(name=name, seeds=dumped(seeds), take=take, is_json=True)


# --- all ------------------------------------------------------------------------------------------------------------


def parser_targets() -> list[Target]:
    """Every target but the server's."""
    texts = {name: tuple(each.encode() for each in given) for name, given in (("re", PATTERNS), ("lark", GRAMMARS))}
    pieces = (b"(", b")", b"{9,99}", b"[^", b"|", b"\\p{", b"\\u", b"(?", b"*+", b"\\1", b"$", b"]{0}")
    rules = (b"~9..99", b"start", b"%import common.", b"/(/", b"->", b'""', b"%ignore ", b": ", b"{", b"?")
    huge = struct.pack("<Q", 1 << 60)
    program = _program.trace(word=ft.SYMBOLIC).to_json().encode()
    return [
        Target(name="JSON Schema", seeds=dumped(SCHEMAS), take=_schema, is_json=True),
        Target(name="regex", seeds=texts["re"], take=_pattern, words=pieces),
        Target(name="lark", seeds=texts["lark"], take=_grammar, words=rules),
        Target(name="GGUF", seeds=(_gguf_seed(),), take=_gguf, words=(huge, b"GGUF")),
        Target(name="safetensors", seeds=(_safetensors_seed(),), take=_safetensors, words=(huge, b'{"a":')),
        Target(name="config.json", seeds=dumped((CONFIG,)), take=_config, is_json=True),
        Target(name="IR JSON", seeds=(program,), take=_read_program, is_json=True),
        Target(name="stored values", seeds=tuple(map(str.encode, STORED)), take=_read_stored, is_json=True),
        Target(name="journal", seeds=(_journal_seed(),), take=_journal),
        Target(name="recording", seeds=_replay_seeds(), take=_replay),
        Target(name="tier file", seeds=(_tier_seed(),), take=_tier),
        *client_targets(),
    ]
