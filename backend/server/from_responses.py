"""Requests of the responses route written as the chat request that they mean."""

from __future__ import annotations

from typing import Any

from forktree.backend.server.bodies import checked
from forktree.backend.server.schemas.chat import ChatRequest
from forktree.backend.server.schemas.responses import (
    AllowedFunctions,
    CallItem,
    CallOutputItem,
    ChosenFunction,
    Item,
    MessageItem,
    ReasoningItem,
    ResponsesRequest,
    SaidRefusal,
    SchemaFormat,
)


def chat_request(body: ResponsesRequest) -> ChatRequest:
    """Raises ApiError: what it asks for cannot be done."""
    asked: dict[str, Any] = {
        "model": body.model,
        "messages": _messages(body),
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stream": body.stream,
        "parallel_tool_calls": body.parallel_tool_calls,
        "tools": [_tool(tool.model_dump(exclude={"type"})) for tool in body.tools or ()] or None,
        "tool_choice": _choice(body.tool_choice),
        "response_format": _format(body),
    }
    if body.include:
        asked |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    if body.reasoning is not None and body.reasoning.max_tokens is not None:
        asked["reasoning"] = {"max_tokens": body.reasoning.max_tokens}
    return checked(ChatRequest, asked)


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for item in body.input:
        _add(messages, item)
    return messages


def _add(messages: list[dict[str, Any]], item: Item) -> None:
    """Reasoning, what was said and the calls behind it are one message of the assistant's."""
    match item:
        case MessageItem(role="assistant"):
            _assistant(messages, "content")["content"] = _text(item.content)
        case MessageItem():
            messages.append({"role": item.role, "content": _text(item.content)})
        case ReasoningItem():
            thought = "".join(part.text for part in item.content or ())
            if thought:
                _assistant(messages, "reasoning_content")["reasoning_content"] = thought
        case CallItem():
            call = {"name": item.name, "arguments": item.arguments}
            calls = _assistant(messages).setdefault("tool_calls", [])
            calls.append({"id": item.call_id, "type": "function", "function": call})
        case CallOutputItem():
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})


def _assistant(messages: list[dict[str, Any]], field: str | None = None) -> dict[str, Any]:
    """The assistant's message at the end; a new one where there is none, or it has the field, or calls, already."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or (field is not None and (field in last or "tool_calls" in last)):
        last = {"role": "assistant"}
        messages.append(last)
    return last


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.refusal if isinstance(part, SaidRefusal) else part.text for part in content)


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": function}


def _choice(choice: Any) -> Any:
    match choice:
        case ChosenFunction(name=name):
            return _tool({"name": name})
        case AllowedFunctions(mode=mode, tools=tools):
            allowed = {"mode": mode, "tools": [_tool({"name": tool.name}) for tool in tools]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _format(body: ResponsesRequest) -> dict[str, Any] | None:
    form = None if body.text is None else body.text.format
    if isinstance(form, SchemaFormat):
        named = {"name": form.name, "schema": form.schema_, "strict": form.strict}
        return {"type": "json_schema", "json_schema": named}
    return None if form is None else {"type": form.type}
