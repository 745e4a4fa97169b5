"""Anthropic's messages: system text in a field of its own, turns that alternate, content in blocks.

A turn that the program has begun is the last message, without the blank at its end, which the service refuses: the
backend takes that blank from the beginning of the answer. Where branches begin, what is before them is marked for the
service's cache, so that the trunk is paid in full once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from forktree.backend.clients.calls import Said, calls_said, definitions_of
from forktree.backend.clients.dialects import Dialect
from forktree.backend.clients.sse import ServerEvent
from forktree.backend.clients.turns import Conversation, Part
from forktree.backend.clients.wire import CallPiece, Piece, Question, sampling_fields
from forktree.lang.errors import RoleError, UnsupportedError
from forktree.runtime.protocol import Usage

MAX_MARKS = 4
"""Most places that a request may mark for the cache."""

DEFAULT_MAX_TOKENS = 4096
"""The service wants a budget; this one where the program gives none."""

_CACHED = {"type": "ephemeral"}


class MessagesWire:
    """Turns in, the assistant's turn out."""

    path = "v1/messages"

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def body(self, question: Question) -> dict[str, Any]:
        sampling, means = question.sampling, question.means
        system, messages = messages_of(question.told)
        if not messages:
            raise UnsupportedError(
                f"{self._dialect.service} answers turns, and there is no text yet; begin with user(...)"
            )
        body: dict[str, Any] = {
            "model": question.model,
            "messages": messages,
            "max_tokens": sampling.max_tokens or DEFAULT_MAX_TOKENS,
            **sampling_fields(sampling, self._dialect),
        }
        if system:
            body["system"] = system
        if sampling.stop:
            blank = [stop for stop in sampling.stop if not stop.strip()]
            if blank:
                raise UnsupportedError(
                    f"{self._dialect.service} takes no stop string of blanks alone, such as {blank[0]!r}"
                )
            body["stop_sequences"] = list(sampling.stop)
        if question.is_stream:
            body["stream"] = True
        if means is not None and means.tools:
            body.update(_tools_body(question))
        elif question.told.tools:
            listed = [tool.get("function", tool) for text in question.told.tools for tool in json.loads(text)]
            body["tools"] = [_tool_body(tool, tool.get("description", "")) for tool in listed]
            body["tool_choice"] = {"type": "none"}
        return body

    def pieces_of_event(self, event: ServerEvent, parsed: Any) -> Iterator[Piece]:
        match parsed.get("type"):
            case "message_start":
                yield Piece(usage=_usage_of(parsed["message"].get("usage") or {}))
            case "content_block_start":
                yield from _block_pieces(parsed.get("index", 0), parsed.get("content_block") or {}, is_whole=False)
            case "content_block_delta":
                yield from _delta_pieces(parsed.get("index", 0), parsed.get("delta") or {})
            case "message_delta":
                delta = parsed.get("delta") or {}
                usage = parsed.get("usage") or {}
                yield Piece(
                    finish=delta.get("stop_reason"),
                    stop=delta.get("stop_sequence"),
                    usage=Usage(0, 0, usage.get("output_tokens") or 0),
                )

    def pieces_of_reply(self, data: Any) -> Iterator[Piece]:
        for index, block in enumerate(data.get("content") or ()):
            yield from _block_pieces(index, block, is_whole=True)
        usage = _usage_of(data.get("usage") or {})
        yield Piece(finish=data.get("stop_reason"), stop=data.get("stop_sequence"), usage=usage)


def _block_pieces(index: int, block: Mapping[str, Any], *, is_whole: bool) -> Iterator[Piece]:
    match block.get("type"):
        case "text":
            yield Piece(text=block.get("text") or "")
        case "thinking":
            yield Piece(reasoning=block.get("thinking") or "")
        case "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False) if is_whole else ""
            yield Piece(calls=(CallPiece(index, block.get("name") or "", arguments),))


def _delta_pieces(index: int, delta: Mapping[str, Any]) -> Iterator[Piece]:
    match delta.get("type"):
        case "text_delta":
            yield Piece(text=delta["text"])
        case "thinking_delta":
            yield Piece(reasoning=delta["thinking"])
        case "input_json_delta":
            yield Piece(calls=(CallPiece(index, "", delta["partial_json"]),))


def _usage_of(usage: Mapping[str, Any]) -> Usage:
    """Its input tokens are those that were neither read from the cache nor written to it."""
    read = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    return Usage((usage.get("input_tokens") or 0) + read + written, read, usage.get("output_tokens") or 0)


# Tools


def _tools_body(question: Question) -> dict[str, Any]:
    means = question.means
    assert means is not None
    told = definitions_of(question.told.tools)
    choice: dict[str, Any] = {"type": "any", "disable_parallel_tool_use": not means.is_list}
    if len(means.tools) == 1:
        choice.update(type="tool", name=means.tools[0]["name"])
    tools = [_tool_body(tool, told.get(tool["name"], tool["description"])) for tool in means.tools]
    return {"tools": tools, "tool_choice": choice}


def _tool_body(tool: Mapping[str, Any], description: str) -> dict[str, Any]:
    schema = tool.get("parameters") or {"type": "object", "properties": {}}
    return {"name": tool["name"], "description": description, "input_schema": schema}


# Messages


def messages_of(told: Conversation) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The system's blocks, and the messages: turns of one role in a row are one message of several blocks.

    Raises:
        RoleError: the system speaks after the conversation has begun.
    """
    system: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for said in calls_said(told.turns):
        if said.turn.role == "system":
            if messages:
                raise RoleError(
                    "Anthropic takes what the system says only before the first turn; write it there, or user(...)"
                )
            system += _blocks(said.turn.parts)
            continue
        role, blocks = _said_blocks(said)
        _append(messages, role, blocks)
    if told.begun:
        _append(messages, "assistant", [{"type": "text", "text": told.begun}])
    _trim_end(messages)
    _keep_marks([*system, *(block for message in messages for block in message["content"])])
    return system, messages


def _said_blocks(said: Said) -> tuple[str, list[dict[str, Any]]]:
    if said.calls:
        return "assistant", [
            {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["arguments"]}
            for call in said.calls
        ]
    if said.call_id:
        return "user", [{"type": "tool_result", "tool_use_id": said.call_id, "content": said.turn.text}]
    if said.turn.role not in ("user", "assistant"):
        raise RoleError(f"Anthropic has turns of system, user, assistant and tool, not of {said.turn.role!r}")
    return said.turn.role, _blocks(said.turn.parts)


def _append(messages: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": role, "content": blocks})


def _blocks(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    """Blocks; text of blanks alone, which the service refuses, joins the text before it."""
    blocks: list[dict[str, Any]] = []
    for part in parts:
        if part.image is None and not part.text.strip() and blocks and blocks[-1]["type"] == "text":
            blocks[-1]["text"] += part.text
        elif part.image is not None or part.text.strip():
            blocks.append(_block(part))
        if part.ends_shared and blocks:
            blocks[-1]["cache_control"] = _CACHED
    return blocks


def _block(part: Part) -> dict[str, Any]:
    if part.image is None:
        return {"type": "text", "text": part.text}
    data = base64.b64encode(part.image.data).decode("ascii")
    return {"type": "image", "source": {"type": "base64", "media_type": part.image.media_type, "data": data}}


def _trim_end(messages: list[dict[str, Any]]) -> None:
    """The last text of the assistant has no blank at its end."""
    if messages and messages[-1]["role"] == "assistant":
        last = messages[-1]["content"][-1]
        if last["type"] == "text":
            last["text"] = last["text"].rstrip()


def _keep_marks(blocks: list[dict[str, Any]]) -> None:
    """The last marks are kept, which hold all before them."""
    marked = [block for block in blocks if "cache_control" in block]
    for block in marked[:-MAX_MARKS]:
        del block["cache_control"]
