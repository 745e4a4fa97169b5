"""Anthropic's requests written as the chat request that they mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from forktree.backend.server.bodies import checked
from forktree.backend.server.errors import ApiError
from forktree.backend.server.schemas.chat import ChatRequest
from forktree.backend.server.schemas.messages import (
    AssistantTurn,
    AutoChoice,
    CountRequest,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ThinkingOn,
    Tool,
    ToolChosen,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
)


def chat_request(body: CountRequest) -> ChatRequest:
    """Raises ApiError: what it asks for cannot be done."""
    if isinstance(body.messages[-1], AssistantTurn):
        raise ApiError(400, "the last message must be the user's: an answer cannot be begun for the model")
    asked = {"model": body.model, "messages": list(_messages(body)), **_tools(body), **_shape(body)}
    if isinstance(body, MessagesRequest):
        asked |= {
            "max_tokens": body.max_tokens,
            "stop": body.stop_sequences or None,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "stream": body.stream,
        }
    return checked(ChatRequest, asked)


def _messages(body: CountRequest) -> Iterator[dict[str, Any]]:
    if body.system is not None:
        yield {"role": "system", "content": _text(body.system)}
    for turn in body.messages:
        yield from _user(turn) if isinstance(turn, UserTurn) else _assistant(turn)


def _user(turn: UserTurn) -> Iterator[dict[str, Any]]:
    """Results of tools are messages of their own."""
    if isinstance(turn.content, str):
        yield {"role": "user", "content": turn.content}
        return
    said = []
    for block in turn.content:
        if isinstance(block, ToolResultBlock):
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}
        else:
            said.append(block)
    if said:
        yield {"role": "user", "content": _text(said)}


def _result(block: ToolResultBlock) -> str:
    text = _text(block.content or "")
    return f"Error: {text}" if block.is_error else text


def _assistant(turn: AssistantTurn) -> Iterator[dict[str, Any]]:
    blocks: Sequence[Any] = (
        [TextBlock(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content
    )
    thought = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    calls = [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    yield {
        "role": "assistant",
        "content": _text([block for block in blocks if isinstance(block, TextBlock)]),
        **({"reasoning_content": thought} if thought else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _tools(body: CountRequest) -> dict[str, Any]:
    tools = [_tool(tool) for tool in body.tools or ()]
    match body.tool_choice:
        case AutoChoice() as choice:
            mode: Any = "auto" if choice.type == "auto" else "required"
        case ToolChosen() as choice:
            mode = {"type": "function", "function": {"name": choice.name}}
        case None:
            return {"tools": tools or None}
        case _:
            return {"tools": tools or None, "tool_choice": "none"}
    is_parallel = False if choice.disable_parallel_tool_use else None
    return {"tools": tools or None, "tool_choice": mode, "parallel_tool_calls": is_parallel}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": {**function, "strict": tool.strict}}


def _shape(body: CountRequest) -> dict[str, Any]:
    """The form of the answer, and thought before it."""
    shape: dict[str, Any] = {}
    if isinstance(body.thinking, ThinkingOn):
        shape["reasoning"] = {"max_tokens": body.thinking.budget_tokens}
    if body.output_config is not None and body.output_config.format is not None:
        schema = {"name": "output", "schema": body.output_config.format.schema_}
        shape["response_format"] = {"type": "json_schema", "json_schema": schema}
    return shape
