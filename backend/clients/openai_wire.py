"""OpenAI's interface: `chat/completions` for turns and `completions` for plain text, as each dialect speaks it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from forktree.backend.clients.asks import ANSWER, Means
from forktree.backend.clients.calls import calls_said, definitions_of
from forktree.backend.clients.dialects import Dialect
from forktree.backend.clients.sse import ServerEvent
from forktree.backend.clients.turns import Conversation, Part, Turn
from forktree.backend.clients.wire import CallPiece, Piece, Question, plain_text, sampling_fields
from forktree.lang.errors import UnsupportedError
from forktree.runtime.protocol import TokenLogprob, Usage

NO_ID = -1
"""The id of a token whose service tells none."""


DEFAULT_MAX_TOKENS = 512
"""Of plain text without a budget; the route's own default is 16, which would cut nearly all of it."""


class ChatWire:
    """Turns in, the assistant's turn out."""

    path = "chat/completions"

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def body(self, question: Question) -> dict[str, Any]:
        messages = messages_of(question.told, self._dialect)
        if not messages:
            raise UnsupportedError(
                f"{self._dialect.service} answers turns, and there is no text yet; begin with user(...)"
            )
        body = {"model": question.model, "messages": messages, **_common(question, self._dialect)}
        if question.told.begun:
            body.update(self._dialect.continues or {})
        sampling = question.sampling
        if sampling.logprobs is not None:
            body["logprobs"] = True
            body["top_logprobs"] = _checked_top(sampling.logprobs, self._dialect)
        body.update(_tools_body(question))
        return body

    def pieces_of_event(self, event: ServerEvent, parsed: Any) -> Iterator[Piece]:
        yield from self._pieces(parsed, "delta")

    def pieces_of_reply(self, data: Any) -> Iterator[Piece]:
        yield from self._pieces(data, "message")

    def _pieces(self, data: Any, part: str) -> Iterator[Piece]:
        for choice in data.get("choices") or ():
            message = choice.get(part) or {}
            yield Piece(
                text=message.get("content") or "",
                reasoning="".join(message.get(name) or "" for name in self._dialect.reasoning[:1])
                or "".join(message.get(name) or "" for name in self._dialect.reasoning[1:]),
                calls=tuple(_calls(message.get("tool_calls") or ())),
                logprobs=tuple(_chat_logprobs((choice.get("logprobs") or {}).get("content") or ())),
                finish=choice.get("finish_reason"),
                stop=choice.get("stop_reason", choice.get("matched_stop")),
                refusal=message.get("refusal") or "",
            )
        if data.get("usage"):
            yield Piece(usage=usage_of(data["usage"]))


class TextWire:
    """Plain text in, its continuation out."""

    path = "completions"

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def body(self, question: Question) -> dict[str, Any]:
        if question.told.plain is None:
            raise UnsupportedError(
                f"{self._dialect.service}'s completions route continues plain text, and there are turns; drop "
                'api="completions", or the roles'
            )
        prompt = plain_text(question, self._dialect.service)
        body = {"model": question.model, "prompt": prompt, **_common(question, self._dialect)}
        body["max_tokens"] = body.pop(self._dialect.budget, DEFAULT_MAX_TOKENS)
        if question.sampling.logprobs is not None:
            body["logprobs"] = _checked_top(question.sampling.logprobs, self._dialect)
        return body

    def pieces_of_event(self, event: ServerEvent, parsed: Any) -> Iterator[Piece]:
        yield from self.pieces_of_reply(parsed)

    def pieces_of_reply(self, data: Any) -> Iterator[Piece]:
        for choice in data.get("choices") or ():
            yield Piece(
                text=choice.get("text") or "",
                logprobs=tuple(_text_logprobs(choice.get("logprobs") or {})),
                finish=choice.get("finish_reason"),
                stop=choice.get("stop_reason", choice.get("matched_stop")),
            )
        if data.get("usage"):
            yield Piece(usage=usage_of(data["usage"]))


def _common(question: Question, dialect: Dialect) -> dict[str, Any]:
    """What both routes take."""
    sampling = question.sampling
    fields = sampling_fields(sampling, dialect)
    if sampling.max_tokens is not None:
        fields[dialect.budget] = sampling.max_tokens
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if question.is_stream:
        fields["stream"] = True
        if dialect.streams_usage:
            fields["stream_options"] = {"include_usage": True}
    if question.closes:
        fields["on_budget"] = "close"
    means = question.means
    if means is not None:
        fields.update(means.fields)
        if means.schema is not None:
            fields["response_format"] = _form_of(means, dialect)
    return fields


def _form_of(means: Means, dialect: Dialect) -> dict[str, Any]:
    if dialect.schema == "json_mode":
        return {"type": "json_object", "schema": means.schema}
    return {"type": "json_schema", "json_schema": {"name": ANSWER, "schema": means.schema, "strict": means.is_strict}}


def _tools_body(question: Question) -> dict[str, Any]:
    means = question.means
    if means is not None and means.tools:
        told = definitions_of(question.told.tools)
        described = [{**tool, "description": told.get(tool["name"], tool["description"])} for tool in means.tools]
        body: dict[str, Any] = {"tools": [{"type": "function", "function": tool} for tool in described]}
        body["tool_choice"] = _choice_of(means)
        body["parallel_tool_calls"] = means.is_list
        return body
    if question.told.tools:
        listed = [tool for text in question.told.tools for tool in json.loads(text)]
        return {"tools": listed, "tool_choice": "none"}  # what may be called is said where it is called
    return {}


def _choice_of(means: Means) -> Any:
    if len(means.tools) == 1:
        return {"type": "function", "function": {"name": means.tools[0]["name"]}}
    return "required"


def _checked_top(count: int, dialect: Dialect) -> int:
    if count > dialect.max_top_logprobs:
        raise UnsupportedError(f"{dialect.service} gives at most {dialect.max_top_logprobs} alternatives, not {count}")
    return count


# Messages


def messages_of(told: Conversation, dialect: Dialect) -> list[dict[str, Any]]:
    """The turns as messages; calls of tools, and their results, in the fields that the interface has for them.

    Raises:
        UnsupportedError: a turn has begun and the service cannot go on with it, or a turn cannot be said.
    """
    messages = [
        message for said in calls_said(told.turns) for message in _messages_of_turn(said.turn, said.calls, said.call_id)
    ]
    if told.begun:
        if dialect.continues is None:
            raise UnsupportedError(
                f"{dialect.service} cannot go on with a turn of the assistant that has begun ({told.begun[:40]!r}); "
                "begin the turn with the generation, and ask in the user's turn for what stands before it, or make the "
                f'backend with begun_turns="tell"{dialect.begun_elsewhere}'
            )
        messages.append({"role": "assistant", "content": told.begun, **dialect.continues_mark})
    return messages


def _messages_of_turn(turn: Turn, calls: tuple[Mapping[str, Any], ...], call_id: str) -> Iterator[dict[str, Any]]:
    if calls:
        yield {"role": "assistant", "content": None, "tool_calls": [_call_message(call) for call in calls]}
    elif turn.role == "tool":
        yield {"role": "tool", "tool_call_id": call_id, "content": turn.text}
    else:
        yield {"role": turn.role, "content": _content(turn.parts)}


def _call_message(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments}}


def _content(parts: Iterable[Part]) -> Any:
    parts = list(parts)
    if all(part.image is None for part in parts):
        return "".join(part.text for part in parts)
    return [_content_part(part) for part in parts]


def _content_part(part: Part) -> dict[str, Any]:
    if part.image is None:
        return {"type": "text", "text": part.text}
    data = base64.b64encode(part.image.data).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:{part.image.media_type};base64,{data}"}}


# Answers


def _calls(calls: Iterable[Mapping[str, Any]]) -> Iterator[CallPiece]:
    for position, call in enumerate(calls):
        function = call.get("function") or {}
        arguments = function.get("arguments") or ""
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        yield CallPiece(call.get("index", position), function.get("name") or "", text)


def _chat_logprobs(entries: Iterable[Mapping[str, Any]]) -> Iterator[TokenLogprob]:
    for entry in entries:
        top = entry.get("top_logprobs") or ()
        yield TokenLogprob(
            _id_of(entry),
            _text_of(entry),
            entry["logprob"],
            tuple((_id_of(each), each["logprob"]) for each in top),
            tuple(_text_of(each) for each in top),
        )


def _id_of(entry: Mapping[str, Any]) -> int:
    found = entry.get("token_id", entry.get("id"))
    return found if isinstance(found, int) else NO_ID


def _text_of(entry: Mapping[str, Any]) -> str:
    given = entry.get("bytes")
    return bytes(given).decode("utf-8", "replace") if given else entry["token"]


def _text_logprobs(data: Mapping[str, Any]) -> Iterator[TokenLogprob]:
    if data.get("content") is not None:  # llama.cpp gives the chat's form here too
        yield from _chat_logprobs(data["content"])
        return
    tokens, logprobs = data.get("tokens") or (), data.get("token_logprobs") or ()
    tops = data.get("top_logprobs") or [None] * len(tokens)
    for token, logprob, top in zip(tokens, logprobs, tops, strict=False):
        likeliest = tuple((top or {}).items())
        values = tuple((NO_ID, value) for _, value in likeliest)
        yield TokenLogprob(
            NO_ID, token, 0.0 if logprob is None else logprob, values, tuple(text for text, _ in likeliest)
        )


def usage_of(usage: Mapping[str, Any]) -> Usage:
    """Counts, with the cached ones from where the dialects put them."""
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0
    return Usage(usage.get("prompt_tokens") or 0, cached, usage.get("completion_tokens") or 0)
