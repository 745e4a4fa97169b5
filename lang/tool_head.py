"""Tools as the head of a conversation tells them to the model: definitions in, for chat templates and services."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from forktree.lang.errors import LanguageError
from forktree.lang.tools import listed_tools


def definitions_of(tools: Iterable[Any]) -> str:
    """JSON text of the tools: an array of `{"type": "function", "function": {…}}`.

    Raises:
        LanguageError: no tools, two of one name, or something that is no tool.
    """
    found = listed_tools(tools, "tools()")
    names = [tool.name for tool in found]
    if not names or len(set(names)) < len(names):
        raise LanguageError(f"tools() takes at least one tool and each name once, not {names}")
    return json.dumps([tool.to_dict() for tool in found], ensure_ascii=False)


def names_of_tools(definitions: str) -> list[str]:
    """What the tools of `definitions_of` are called."""
    return [each["function"]["name"] for each in json.loads(definitions)]


def describe_tools(definitions: str) -> str:
    """The tools as text for a model whose chat template has no place for them."""
    lines = [json.dumps(each["function"], ensure_ascii=False) for each in json.loads(definitions)]
    head = 'You may call these functions by writing {"name": <function>, "arguments": {<parameter>: <value>}}:'
    return "\n".join((head, *lines))
