"""`POST /v1/responses`: output items, whole or as they grow. Nothing is stored."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.local_generation import End, Piece
from forktree.backend.server.choices import closing_all, merged
from forktree.backend.server.endpoints import Endpoint, post
from forktree.backend.server.errors import ApiError
from forktree.backend.server.from_responses import chat_request
from forktree.backend.server.logprobs import chat_logprobs
from forktree.backend.server.presence import unless_disconnected
from forktree.backend.server.schemas.responses import ResponsesRequest
from forktree.backend.server.served import Served
from forktree.backend.server.streams import EventStream
from forktree.backend.server.talks import Talk, begin
from forktree.backend.server.tool_calls import ArgumentsGrown, CallBegun, CallReader, Said
from forktree.backend.server.wire import Wire
from forktree.runtime.protocol import Completion, TokenLogprob

Event = dict[str, Any]


def _fault(error: ApiError) -> Event:
    return {"type": "error", "code": error.code, "message": error.message, "param": error.param, "sequence_number": 0}


RESPONSES = Wire(fault=_fault, names_events=True)


def routes() -> list[Endpoint]:
    return [
        post(
            "/v1/responses",
            answer,
            ResponsesRequest,
            "The model's next output items",
            gives=("id", "object", "status", "output", "usage"),
            streams=True,
            wire=RESPONSES,
        ),
    ]


async def answer(served: Served, request: Request, body: ResponsesRequest) -> Any:
    """See `Endpoint`."""
    model = served.model_of(body.model)
    talk = await begin(served, chat_request(body))
    events = _events(served, talk, _begun(body, model))
    if body.stream:
        return EventStream(events, talk.generations, RESPONSES)
    with closing_all(talk.generations):
        return JSONResponse(await unless_disconnected(request.receive, _last(events)))


def _begun(body: ResponsesRequest, model: str) -> dict[str, Any]:
    """The response before it has any output: what was asked for, repeated."""
    given = body.model_dump(mode="json", by_alias=True, exclude_none=True, warnings=False)  # it knows no own unions
    echoed = ("instructions", "max_output_tokens", "temperature", "top_p", "user", "reasoning")
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": model,
        **{name: given.get(name) for name in echoed},
        "metadata": given.get("metadata", {}),
        "tools": given.get("tools", []),
        "tool_choice": given.get("tool_choice", "auto"),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": given.get("text", {"format": {"type": "text"}}),
        "truncation": "disabled",
        "store": False,
        "background": False,
        "previous_response_id": None,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }


async def _last(events: AsyncGenerator[Event, None]) -> dict[str, Any]:
    response: dict[str, Any] = {}
    async with aclosing(events):
        async for event in events:
            response = event.get("response", response)
    return response


async def _events(served: Served, talk: Talk, response: dict[str, Any]) -> AsyncGenerator[Event, None]:
    number = 0
    async for event in _unnumbered(served, talk, response):
        yield {"type": event["type"], "sequence_number": number, **event}
        number += 1


async def _unnumbered(served: Served, talk: Talk, response: dict[str, Any]) -> AsyncGenerator[Event, None]:
    yield {"type": "response.created", "response": response}
    yield {"type": "response.in_progress", "response": response}
    reader = CallReader(talk.calls)
    items = _Items()
    async for _, piece in merged(talk.generations):
        if isinstance(piece, Piece):
            tokens = _logprobs(served, talk, piece.tokens)
            for event in items.grow(reader.feed(piece.text), piece.reasoning, tokens):
                yield event
        if isinstance(piece, End):
            is_cut = piece.completion.finish_reason == "length"
            for event in items.grow(reader.finish(), "", []):
                yield event
            for event in items.close("incomplete" if is_cut else "completed"):
                yield event
            response = response | _ended(served, piece.completion, is_cut) | {"output": items.done}
            yield {"type": f"response.{response['status']}", "response": response}


def _ended(served: Served, end: Completion, is_cut: bool) -> dict[str, Any]:
    usage = {
        "input_tokens": end.usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": end.usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": end.usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": len(served.tokenizer.encode(end.reasoning))},
        "total_tokens": end.usage.prompt_tokens + end.usage.completion_tokens,
    }
    return {
        "status": "incomplete" if is_cut else "completed",
        "completed_at": int(time.time()),
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "usage": usage,
    }


def _logprobs(served: Served, talk: Talk, tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    if not talk.body.logprobs:
        return []
    return chat_logprobs(tokens, served.tokenizer, num_top=talk.body.top_logprobs or 0)


@dataclass(slots=True)
class _Items:
    """The output items of one response: one is open at a time.

    Attributes:
        done: those that are closed.
        item: the open one.
    """

    done: list[dict[str, Any]] = field(default_factory=list)
    item: dict[str, Any] | None = None

    def grow(self, heard: Sequence[Any], reasoning: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        if reasoning:
            yield from self._open("reasoning", {"id": _id("rs"), "type": "reasoning", "summary": [], "content": []})
            yield from self._grow_part("reasoning_text", {"type": "reasoning_text", "text": ""}, reasoning)
        for event in heard:
            match event:
                case Said(text):
                    yield from self._open("message", {"id": _id("msg"), "type": "message", "role": "assistant"})
                    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                    yield from self._grow_part("output_text", part, text, logprobs)
                    logprobs = []
                case CallBegun(_, id, name):
                    yield from self.close()
                    call = {"id": _id("fc"), "type": "function_call", "call_id": f"call_{id}", "name": name}
                    yield from self._open("function_call", {**call, "arguments": ""})
                case ArgumentsGrown(_, text):
                    assert self.item is not None
                    self.item["arguments"] += text
                    yield self._event("response.function_call_arguments.delta", delta=text)

    def close(self, status: str = "completed") -> Iterator[Event]:
        """End the open item, if there is one. A call whose arguments were cut stays, marked as incomplete."""
        if self.item is None:
            return
        item = self.item
        item["status"] = status
        if item["type"] == "function_call":
            yield self._event("response.function_call_arguments.done", arguments=item["arguments"], name=item["name"])
        for part in item.get("content", ()):
            done = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
            yield self._event(f"response.{part['type']}.done", content_index=0, text=part["text"], **done)
            yield self._event("response.content_part.done", content_index=0, part=part)
        yield {"type": "response.output_item.done", "output_index": len(self.done), "item": item}
        self.done.append(item)
        self.item = None

    def _open(self, kind: str, item: dict[str, Any]) -> Iterator[Event]:
        if self.item is not None and self.item["type"] == kind:
            return
        yield from self.close()
        self.item = {**item, "status": "in_progress"}
        if kind == "message":
            self.item["content"] = []
        yield {"type": "response.output_item.added", "output_index": len(self.done), "item": _copy(self.item)}

    def _grow_part(
        self, kind: str, empty: dict[str, Any], text: str, logprobs: list[dict[str, Any]] | None = None
    ) -> Iterator[Event]:
        assert self.item is not None
        if not self.item["content"]:
            self.item["content"].append(empty)
            yield self._event("response.content_part.added", content_index=0, part=_copy(empty))
        (part,) = self.item["content"]
        part["text"] += text
        more: dict[str, Any] = {}
        if kind == "output_text":
            part["logprobs"] += logprobs or []
            more["logprobs"] = logprobs or []
        yield self._event(f"response.{kind}.delta", content_index=0, delta=text, **more)

    def _event(self, kind: str, **data: Any) -> Event:
        assert self.item is not None
        return {"type": kind, "item_id": self.item["id"], "output_index": len(self.done), **data}


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """As it is now: it will grow."""
    return {key: list(value) if isinstance(value, list) else value for key, value in item.items()}
