"""A branch as chat messages."""

from __future__ import annotations

import base64
from typing import Any

from forktree.runtime import protocol


def messages_of(branch: protocol.Branch | None) -> list[dict[str, Any]]:
    """The turns in order; an open last turn is one too. Text outside turns belongs to no message.

    Content is text, or a list of parts where the turn holds an image.
    """
    messages: list[dict[str, Any]] = []
    is_open = False
    for segment in branch.segments() if branch is not None else ():
        match segment:
            case protocol.RoleBegin(role=role):
                messages.append({"role": role, "content": ""})
                is_open = True
            case protocol.RoleEnd():
                is_open = False
            case protocol.Text() | protocol.Generated() if is_open and segment.text:
                _add_text(messages[-1], segment.text)
            case protocol.Image() if is_open:
                _add_part(messages[-1], _image_part(segment))
            case _:
                pass
    return messages


def _add_text(message: dict[str, Any], text: str) -> None:
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + text
    elif content[-1]["type"] == "text":
        content[-1]["text"] += text
    else:
        content.append({"type": "text", "text": text})


def _add_part(message: dict[str, Any], part: dict[str, Any]) -> None:
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content = [{"type": "text", "text": content}] if content else []
    content.append(part)


def _image_part(image: protocol.Image) -> dict[str, Any]:
    data = base64.b64encode(image.data).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:{image.media_type};base64,{data}"}}
