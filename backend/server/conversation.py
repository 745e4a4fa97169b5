"""Messages as the ids that the model's own chat template makes of them.

The ids are those of `apply_chat_template`, with one difference: what spells a special token in a message stays text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from forktree.backend.server.schemas.chat import (
    AssistantMessage,
    Content,
    InstructionMessage,
    MadeCall,
    Message,
    OfferedTool,
    RefusalPart,
    ToolMessage,
)
from forktree.backend.server.served import HiddenSpellings, shown
from forktree.backend.server.tool_calls import written_as_json
from forktree.backend.tokenizer import Place, Tokenizer
from forktree.lang.errors import RoleError

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def conversation_ids(
    messages: Sequence[Message],
    tools: Sequence[OfferedTool],
    tokenizer: Tokenizer,
    hidden: HiddenSpellings,
    *,
    add_generation_prompt: bool = True,
) -> tuple[int, ...]:
    """
    Raises:
        RoleError: the template refuses the turns.
        ModelError: there is no template.
        BackendError: a text is not Unicode.
    """
    stand_ins: dict[str, str] = {}
    told = _hidden([_told(message, tokenizer) for message in messages], hidden, stand_ins)
    definitions = _hidden([definition(tool) for tool in tools], hidden, stand_ins)
    text = _rendered(told, definitions, tokenizer, add_generation_prompt)
    if any(message.role == "tool" for message in messages) and not _shows_results(told, definitions, tokenizer):
        raise RoleError("the model's chat template leaves turns of tools out: write a result as a user's turn")
    return tuple(_encoded(text, stand_ins, tokenizer))


def definition(tool: OfferedTool) -> dict[str, Any]:
    """A tool as chat templates take it."""
    function = tool.function
    parameters = NO_PARAMETERS if function.parameters is None else function.parameters
    if parameters.get("type") == "object" and "properties" not in parameters:  # templates go through them
        parameters = {**parameters, "properties": {}}
    return {
        "type": "function",
        "function": {
            "name": function.name,
            "description": function.description or "",
            "parameters": parameters,
        },
    }


def text_of(content: Content) -> str:
    """A content as one text; its parts follow each other with nothing between."""
    if isinstance(content, str):
        return content
    texts = (part.refusal if isinstance(part, RefusalPart) else getattr(part, "text", "") for part in content)
    return "".join(texts)  # a part that is no text was refused before


def _told(message: Message, tokenizer: Tokenizer) -> dict[str, Any]:
    """A message as chat templates take it."""
    match message:
        case InstructionMessage():
            told: dict[str, Any] = {"role": "system", "content": text_of(message.content)}
        case AssistantMessage():
            told = _told_answer(message, tokenizer)
        case ToolMessage():
            return {"role": "tool", "content": text_of(message.content), "tool_call_id": message.tool_call_id}
        case _:
            told = {"role": "user", "content": text_of(message.content)}
    return told if message.name is None else {**told, "name": message.name}


def _told_answer(message: AssistantMessage, tokenizer: Tokenizer) -> dict[str, Any]:
    content = text_of(message.content) if message.content is not None else message.refusal or ""
    told: dict[str, Any] = {"role": "assistant", "content": content}
    if message.reasoning_content is not None:
        told["reasoning_content"] = message.reasoning_content
    if not message.tool_calls:
        return told
    if tokenizer.call_markup is None:  # the template writes no calls: they are part of what was said
        calls = written_as_json((call.function.name, call.function.arguments) for call in message.tool_calls)
        return {**told, "content": f"{content}\n{calls}" if content else calls}
    return {**told, "tool_calls": [_told_call(call) for call in message.tool_calls]}


def _told_call(call: MadeCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        arguments = None
    is_object = isinstance(arguments, dict)
    function = {"name": call.function.name, "arguments": arguments if is_object else call.function.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _hidden(value: Any, hidden: HiddenSpellings, stand_ins: dict[str, str]) -> Any:
    """The same data with hidden spellings in every text."""
    match value:
        case str():
            return hidden.hide(value, stand_ins)
        case list():
            return [_hidden(item, hidden, stand_ins) for item in value]
        case dict():
            return {hidden.hide(key, stand_ins): _hidden(item, hidden, stand_ins) for key, item in value.items()}
    return value


def _rendered(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], tokenizer: Tokenizer, add_generation_prompt: bool
) -> str:
    """What the template writes. Arguments of calls are objects, and text where it refuses those."""
    chat = tokenizer.chat.with_tools(json.dumps(tools, ensure_ascii=False)) if tools else tokenizer.chat
    try:
        return chat.render(messages, add_generation_prompt=add_generation_prompt)
    except RoleError:
        as_text = [_with_text_arguments(message) for message in messages]
        if as_text == messages:
            raise
        return chat.render(as_text, add_generation_prompt=add_generation_prompt)


def _shows_results(messages: list[dict[str, Any]], tools: list[dict[str, Any]], tokenizer: Tokenizer) -> bool:
    """Whether the template writes what a tool gave back."""
    mark = "Qresult"
    marked = [{**message, "content": mark} if message["role"] == "tool" else message for message in messages]
    return mark in _rendered(marked, tools, tokenizer, False)


def _with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    calls = []
    for call in message.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": written}})
    return {**message, "tool_calls": calls} if calls else message


def _encoded(text: str, stand_ins: dict[str, str], tokenizer: Tokenizer) -> list[int]:
    """The template's special tokens, and plain text between them."""
    ids: list[int] = []
    place = Place.START
    for item in tokenizer.split_markup(text):
        if isinstance(item, int):
            ids.append(item)
            place = Place.AFTER_SPECIAL
        else:
            ids += tokenizer.encode_run(shown(item, stand_ins), place).ids
            place = Place.INSIDE
    return ids
