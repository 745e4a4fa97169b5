"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.grammar.markup import Spec
from forktree.backend.local_generation import Ask, End, Generation, Piece
from forktree.backend.server import asked
from forktree.backend.server.choices import closing_all, merged, opened, usage_of
from forktree.backend.server.conversation import conversation_ids
from forktree.backend.server.endpoints import Endpoint
from forktree.backend.server.errors import ApiError, api_error
from forktree.backend.server.logprobs import chat_logprobs
from forktree.backend.server.schemas.chat import ChatRequest, OfferedTool
from forktree.backend.server.served import Served
from forktree.backend.server.streams import EventStream, unless_disconnected
from forktree.backend.server.tool_calls import ArgumentsGrown, CallBegun, CallPlan, CallReader, Event, Said
from forktree.lang.errors import ModelError
from forktree.runtime.protocol import Completion, TokenLogprob


def routes() -> list[Endpoint]:
    return [
        Endpoint(
            method="POST",
            path="/v1/chat/completions",
            answer=answer,
            summary="The assistant's next message",
            body=ChatRequest,
            gives={"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"]},
            streams=True,
        )
    ]


@dataclass(frozen=True, slots=True)
class _Talk:
    """One request on its way.

    Attributes:
        calls: the calls that it may make; None is none.
        head: what every answer and chunk begins with.
    """

    served: Served
    body: ChatRequest
    calls: CallPlan | None
    head: dict[str, Any]

    @property
    def num_top(self) -> int:
        return self.body.top_logprobs or 0


async def answer(served: Served, request: Request, body: ChatRequest) -> Any:
    """See `Endpoint`."""
    model = served.model_of(body.model)
    max_tokens = _check(body)
    asks, calls = await asyncio.to_thread(_asks, served, body, max_tokens)
    generations = await opened(served.backend, asks, lambda index: "messages")
    head = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion.chunk" if body.stream else "chat.completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": served.fingerprint,
    }
    talk = _Talk(served, body, calls, head)
    if body.stream:
        return EventStream(_chunks(talk, generations), generations)
    with closing_all(generations):
        return JSONResponse(await unless_disconnected(request.receive, _whole(talk, generations)))


def _check(body: ChatRequest) -> int | None:
    """The budget. Raises ApiError: fields that contradict each other."""
    asked.check_stream(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs goes with logprobs: true", param="top_logprobs")
    limits = {limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None}
    if len(limits) > 1:
        raise ApiError(400, "max_tokens and max_completion_tokens differ: send one", param="max_tokens")
    return limits.pop() if limits else None


def _asks(served: Served, body: ChatRequest, max_tokens: int | None) -> tuple[list[Ask], CallPlan | None]:
    """What the engine is to compute; takes a while, so not on the loop."""
    count = asked.num_samples(body, 1, served.settings.max_choices)
    tools = asked.offered_tools(body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sampling = asked.sampling_of(body, max_tokens=max_tokens, logprobs=logprobs)
    spec: Spec | None = asked.constraint_of(body)
    calls = asked.calls_of(body, tools, served.tokenizer)
    if calls is not None and spec is not None and calls.is_required:
        raise ApiError(400, "an output that has to be a call has no other form", param="tool_choice")
    constraint = asked.with_reasoning(body, spec if calls is None else calls.spec(spec))
    ids = _ids(served, body, tools)
    on_budget = body.on_budget or "cut"
    asks = [
        Ask(ids=ids, sampling=sampling, constraint=constraint, sample_index=index, on_budget=on_budget)
        for index in range(count)
    ]
    return asks, calls


def _ids(served: Served, body: ChatRequest, tools: Sequence[OfferedTool]) -> tuple[int, ...]:
    try:
        return conversation_ids(body.messages, tools, served.tokenizer, served.hidden)
    except ModelError as error:  # it has no template
        raise ApiError(400, str(error), param="messages", code="unsupported") from None
    except ApiError:
        raise
    except Exception as error:
        raise api_error(error, param="messages") from error


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


async def _whole(talk: _Talk, generations: Sequence[Generation]) -> dict[str, Any]:
    choices = [_Choice(CallReader(talk.calls)) for _ in generations]
    async for index, piece in merged(generations):
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
        **talk.head,
        "choices": [
            {
                "index": index,
                "message": choice.message(),
                "logprobs": _logprobs(talk, choice.tokens),
                "finish_reason": _reason(end, choice.reader),
            }
            for index, (choice, end) in enumerate(zip(choices, ends, strict=True))
        ],
        "usage": usage_of(ends, len(ends)),
    }


def _reason(end: Completion, reader: CallReader) -> str:
    return "tool_calls" if reader.num_calls and end.finish_reason == "stop" else end.finish_reason


def _logprobs(talk: _Talk, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    if not talk.body.logprobs:
        return None
    return {"content": chat_logprobs(tokens, talk.served.tokenizer, num_top=talk.num_top), "refusal": None}


# --- streams -----------------------------------------------------------------------------------------------


async def _chunks(talk: _Talk, generations: Sequence[Generation]) -> AsyncGenerator[dict[str, Any], None]:
    """Each choice begins with its role, ends with its reason; the usage comes last, if it is asked for."""
    readers = [CallReader(talk.calls) for _ in generations]
    ends: list[Completion | None] = [None] * len(generations)
    for index in range(len(generations)):
        yield _chunk(talk, index, {"role": "assistant", "content": "", "refusal": None})
    async for index, piece in merged(generations):
        if isinstance(piece, Piece):
            for chunk in _grown(talk, index, readers[index].feed(piece.text), piece):
                yield chunk
        else:
            ends[index] = piece.completion
            for chunk in _grown(talk, index, readers[index].finish(), Piece()):
                yield chunk
            yield _chunk(talk, index, {}, reason=_reason(piece.completion, readers[index]))
    if talk.body.stream_options is not None and talk.body.stream_options.include_usage:
        yield {**talk.head, "choices": [], "usage": usage_of([end for end in ends if end], len(ends))}


def _grown(talk: _Talk, index: int, events: Sequence[Event], piece: Piece) -> list[dict[str, Any]]:
    """The chunks that say what one piece added; its tokens go with the first."""
    deltas = [_delta(event) for event in events]
    if piece.reasoning:
        deltas.insert(0, {"reasoning_content": piece.reasoning})
    if piece.tokens and not deltas:
        deltas = [{}]
    return [_chunk(talk, index, delta, piece.tokens if at == 0 else ()) for at, delta in enumerate(deltas)]


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
    talk: _Talk, index: int, delta: dict[str, Any], tokens: Sequence[TokenLogprob] = (), reason: str | None = None
) -> dict[str, Any]:
    logprobs = _logprobs(talk, tokens) if tokens else None
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    return {**talk.head, "choices": [choice]}
