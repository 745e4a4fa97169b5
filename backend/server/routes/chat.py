"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.local_generation import End, Piece
from forktree.backend.server.choices import closing_all, merged, usage_of
from forktree.backend.server.endpoints import Endpoint, post
from forktree.backend.server.logprobs import chat_logprobs
from forktree.backend.server.presence import unless_disconnected
from forktree.backend.server.schemas.chat import ChatRequest
from forktree.backend.server.served import Served
from forktree.backend.server.streams import EventStream
from forktree.backend.server.talks import Talk, begin
from forktree.backend.server.tool_calls import ArgumentsGrown, CallBegun, CallReader, Event, Said
from forktree.runtime.protocol import Completion, TokenLogprob


def routes() -> list[Endpoint]:
    return [
        post(
            "/v1/chat/completions",
            answer,
            ChatRequest,
            "The assistant's next message",
            gives=("id", "object", "created", "model", "choices", "usage"),
            streams=True,
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Answer:
    """One request on its way; `head` is what its answer, or each chunk of it, begins with."""

    served: Served
    talk: Talk
    head: dict[str, Any]

    @property
    def body(self) -> ChatRequest:
        return self.talk.body


async def answer(served: Served, request: Request, body: ChatRequest) -> Any:
    """See `Endpoint`."""
    model = served.model_of(body.model)
    talk = await begin(served, body)
    head = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion.chunk" if body.stream else "chat.completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": served.fingerprint,
    }
    job = _Answer(served, talk, head)
    if body.stream:
        return EventStream(_chunks(job), talk.generations)
    with closing_all(talk.generations):
        return JSONResponse(await unless_disconnected(request.receive, _whole(job)))


# --- whole answers -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Choice:
    """One choice as it grows."""

    reader: CallReader
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[TokenLogprob] = field(default_factory=list)
    end: Completion | None = None

    def add(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Said(text):
                    self.content.append(text)
                case CallBegun(_, id, name):
                    self.calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": ""}})
                case ArgumentsGrown(index, text):
                    self.calls[index]["function"]["arguments"] += text

    def message(self) -> dict[str, Any]:
        content = "".join(self.content)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.calls:
            message |= {"content": content or None, "tool_calls": self.calls}
        return message | ({"reasoning_content": "".join(self.reasoning)} if self.reasoning else {})


async def _whole(job: _Answer) -> dict[str, Any]:
    choices = [_Choice(CallReader(job.talk.calls)) for _ in job.talk.generations]
    async for index, piece in merged(job.talk.generations):
        choice = choices[index]
        if isinstance(piece, End):
            choice.add(choice.reader.finish())
            choice.end = piece.completion
        else:
            choice.add(choice.reader.feed(piece.text))
            choice.reasoning += [piece.reasoning] if piece.reasoning else []
            choice.tokens += piece.tokens
    ends = [choice.end for choice in choices if choice.end is not None]
    return {
        **job.head,
        "choices": [
            {
                "index": index,
                "message": choice.message(),
                "logprobs": _logprobs(job, choice.tokens),
                "finish_reason": _reason(end, choice.reader),
            }
            for index, (choice, end) in enumerate(zip(choices, ends, strict=True))
        ],
        "usage": usage_of(ends, len(ends)),
    }


def _reason(end: Completion, reader: CallReader) -> str:
    return "tool_calls" if reader.num_calls and end.finish_reason == "stop" else end.finish_reason


def _logprobs(job: _Answer, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    if not job.body.logprobs:
        return None
    return {"content": chat_logprobs(tokens, job.served.tokenizer, num_top=job.body.top_logprobs or 0), "refusal": None}


# --- streams -----------------------------------------------------------------------------------------------


async def _chunks(job: _Answer) -> AsyncGenerator[dict[str, Any], None]:
    """Each choice begins with its role, ends with its reason; the usage comes last, if it is asked for."""
    readers = [CallReader(job.talk.calls) for _ in job.talk.generations]
    ends: list[Completion | None] = [None] * len(job.talk.generations)
    for index in range(len(job.talk.generations)):
        yield _chunk(job, index, {"role": "assistant", "content": "", "refusal": None})
    async for index, piece in merged(job.talk.generations):
        if isinstance(piece, Piece):
            for chunk in _grown(job, index, readers[index].feed(piece.text), piece):
                yield chunk
        else:
            ends[index] = piece.completion
            for chunk in _grown(job, index, readers[index].finish(), Piece()):
                yield chunk
            yield _chunk(job, index, {}, reason=_reason(piece.completion, readers[index]))
    if job.body.stream_options is not None and job.body.stream_options.include_usage:
        yield {**job.head, "choices": [], "usage": usage_of([end for end in ends if end], len(ends))}


def _grown(job: _Answer, index: int, events: Sequence[Event], piece: Piece) -> list[dict[str, Any]]:
    """The chunks that say what one piece added; its tokens go with the first."""
    deltas = [_delta(event) for event in events]
    if piece.reasoning:
        deltas.insert(0, {"reasoning_content": piece.reasoning})
    if piece.tokens and not deltas:
        deltas = [{}]
    return [_chunk(job, index, delta, piece.tokens if at == 0 else ()) for at, delta in enumerate(deltas)]


def _delta(event: Event) -> dict[str, Any]:
    match event:
        case Said(text):
            return {"content": text}
        case CallBegun(index, id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
        case ArgumentsGrown(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _chunk(
    job: _Answer, index: int, delta: dict[str, Any], tokens: Sequence[TokenLogprob] = (), reason: str | None = None
) -> dict[str, Any]:
    logprobs = _logprobs(job, tokens) if tokens else None
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    return {**job.head, "choices": [choice]}
