"""Calls of tools in a conversation's past: a turn that holds one, and the turns of results that answer it.

A program's calls are JSON text in a turn of the assistant, as they came. A service wants them in fields of their own,
with an id that ties each result to its call: ids are made of the call's place, the same on every run.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from forktree.backend.clients.turns import Turn
from forktree.lang.errors import UnsupportedError


class Said(NamedTuple):
    """A turn, with the calls that it holds, each with its id; or the id of the call that it answers."""

    turn: Turn
    calls: tuple[Mapping[str, Any], ...] = ()
    call_id: str = ""


def calls_said(turns: Sequence[Turn]) -> Iterator[Said]:
    """Each turn. Raises UnsupportedError: a tool's result that no call before it asked for."""
    open_ids: deque[str] = deque()
    for index, turn in enumerate(turns):
        if turn.role == "tool":
            if not open_ids:
                raise UnsupportedError(
                    f"a turn of the tool, {turn.text[:40]!r}, that answers no call; what was called stands in the "
                    "assistant's turn before it: assistant(gen(..., tools=[...]))"
                )
            yield Said(turn, (), open_ids.popleft())
            continue
        is_answered = index + 1 < len(turns) and turns[index + 1].role == "tool"
        calls = _calls_in(turn.text, index) if turn.role == "assistant" and is_answered else ()
        open_ids = deque(call["id"] for call in calls)
        yield Said(turn, calls)


def _calls_in(text: str, index: int) -> tuple[Mapping[str, Any], ...]:
    try:
        data = json.loads(text)
    except ValueError:
        return ()
    calls = data if isinstance(data, list) else [data]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return ()
    return tuple(
        {"id": f"call_{index}_{number}", "name": call["name"], "arguments": call.get("arguments") or {}}
        for number, call in enumerate(calls)
    )


def definitions_of(tools: Sequence[str]) -> dict[str, str]:
    """From a tool's name to what is told of it."""
    bodies = [tool.get("function", tool) for text in tools for tool in json.loads(text)]
    return {body["name"]: body.get("description", "") for body in bodies}


def calls_text(calls: Sequence[tuple[str, str]], *, is_list: bool) -> str:
    """Calls that a service made, as the JSON that a program's value is read from.

    Args:
        calls: names, and arguments as JSON text, which may be none.
    """
    written = [f'{{"name":{json.dumps(name)},"arguments":{arguments.strip() or "{}"}}}' for name, arguments in calls]
    return f"[{','.join(written)}]" if is_list or len(written) != 1 else written[0]
