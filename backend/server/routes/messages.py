"""`POST /v1/messages` and `POST /v1/messages/count_tokens`, in Anthropic's form."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.local_generation import End, Piece
from forktree.backend.server.choices import closing_all, merged
from forktree.backend.server.endpoints import Endpoint, post
from forktree.backend.server.errors import ApiError
from forktree.backend.server.from_messages import chat_request
from forktree.backend.server.presence import unless_disconnected
from forktree.backend.server.schemas.messages import CountRequest, MessagesRequest
from forktree.backend.server.served import Served
from forktree.backend.server.streams import EventStream
from forktree.backend.server.talks import Talk, begin, prompt_ids
from forktree.backend.server.tool_calls import ArgumentsGrown, CallBegun, CallReader, Said
from forktree.backend.server.tool_calls import Event as Heard
from forktree.backend.server.wire import Wire
from forktree.runtime.protocol import Completion

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}


def _error(error: ApiError) -> dict[str, Any]:
    kind = _KINDS.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
    if error.status == 429:
        kind = "rate_limit_error"
    said = error.message if error.param is None or error.param in error.message else f"{error.param}: {error.message}"
    return {"type": "error", "error": {"type": kind, "message": said}}


_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
ANTHROPIC = Wire(
    refusal=_error, fault=_error, names_events=True, error_name="AnthropicError", error_schema=_ERROR_SCHEMA
)


def routes() -> list[Endpoint]:
    return [
        post(
            "/v1/messages",
            answer,
            MessagesRequest,
            "The assistant's next message, in Anthropic's form",
            gives=("id", "type", "role", "content", "model", "stop_reason", "usage"),
            streams=True,
            wire=ANTHROPIC,
        ),
        post(
            "/v1/messages/count_tokens",
            count,
            CountRequest,
            "How many tokens a conversation takes, in Anthropic's form",
            gives=("input_tokens",),
            wire=ANTHROPIC,
        ),
    ]


async def count(served: Served, request: Request, body: CountRequest) -> JSONResponse:
    """See `Endpoint`."""
    served.model_of(body.model)
    ids = await asyncio.to_thread(prompt_ids, served, chat_request(body))
    return JSONResponse({"input_tokens": len(ids)})


async def answer(served: Served, request: Request, body: MessagesRequest) -> Any:
    """See `Endpoint`."""
    model = served.model_of(body.model)
    talk = await begin(served, chat_request(body))
    events = _events(talk, model)
    if body.stream:
        return EventStream(events, talk.generations, ANTHROPIC)
    with closing_all(talk.generations):
        return JSONResponse(await unless_disconnected(request.receive, _folded(events)))


async def _events(talk: Talk, model: str) -> AsyncGenerator[dict[str, Any], None]:
    """What a stream tells: the message's beginning, its blocks as they grow, why it ended."""
    message = {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": talk.num_prompt_tokens, "output_tokens": 0},
    }
    yield {"type": "message_start", "message": message}
    reader = CallReader(talk.calls)
    blocks = _Blocks()
    async for _, piece in merged(talk.generations):
        heard = reader.finish() if isinstance(piece, End) else reader.feed(piece.text)
        for event in blocks.grow(heard, piece.reasoning if isinstance(piece, Piece) else ""):
            yield event
        if isinstance(piece, End):
            for event in blocks.close():
                yield event
            yield _ended(piece.completion, reader.num_calls)
    yield {"type": "message_stop"}


def _ended(end: Completion, num_calls: int) -> dict[str, Any]:
    stop = end.stop if isinstance(end.stop, str) and end.finish_reason == "stop" else None
    reason = "end_turn" if stop is None else "stop_sequence"
    if end.finish_reason == "length":
        reason = "max_tokens"
    elif num_calls and stop is None:
        reason = "tool_use"
    usage = {
        "input_tokens": end.usage.prompt_tokens - end.usage.cached_tokens,
        "cache_read_input_tokens": end.usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": end.usage.completion_tokens,
    }
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": stop}, "usage": usage}


@dataclass(slots=True)
class _Blocks:
    """The blocks of one message: one is open at a time.

    Attributes:
        index: of the open one, or the next.
        kind: of the open one; "" when none is.
    """

    index: int = 0
    kind: str = ""

    def grow(self, heard: list[Heard], reasoning: str) -> Iterator[dict[str, Any]]:
        if reasoning:
            yield from self._open("thinking", {"thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": reasoning})
        for event in heard:
            match event:
                case Said(text):
                    yield from self._open("text", {"text": ""})
                    yield self._delta({"type": "text_delta", "text": text})
                case CallBegun(_, id, name):
                    yield from self.close()
                    yield from self._open("tool_use", {"id": f"toolu_{id}", "name": name, "input": {}})
                case ArgumentsGrown(_, text):
                    yield self._delta({"type": "input_json_delta", "partial_json": text})

    def close(self) -> Iterator[dict[str, Any]]:
        if self.kind:
            yield {"type": "content_block_stop", "index": self.index}
            self.kind = ""
            self.index += 1

    def _open(self, kind: str, content: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self.kind != kind:
            yield from self.close()
            self.kind = kind
            yield {"type": "content_block_start", "index": self.index, "content_block": {"type": kind, **content}}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self.index, "delta": delta}


async def _folded(events: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any]:
    """The message that a stream of events tells. A call whose arguments were cut is left out."""
    message: dict[str, Any] = {}
    arguments = ""
    async with aclosing(events):
        async for event in events:
            match event:
                case {"type": "message_start", "message": begun}:
                    message = begun
                case {"type": "content_block_start", "content_block": block}:
                    message["content"].append(block)
                    arguments = ""
                case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": text}}:
                    arguments += text
                case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
                    message["content"][-1]["text"] += text
                case {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": text}}:
                    message["content"][-1]["thinking"] += text
                case {"type": "content_block_stop"} if message["content"][-1]["type"] == "tool_use":
                    _set_arguments(message["content"], arguments)
                case {"type": "message_delta", "delta": delta, "usage": usage}:
                    message |= {**delta, "usage": usage}
    return message


def _set_arguments(blocks: list[dict[str, Any]], arguments: str) -> None:
    try:
        blocks[-1]["input"] = json.loads(arguments)
    except ValueError:
        blocks.pop()
