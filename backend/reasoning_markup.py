"""The markup in which a model reasons before it answers, as its own chat template shows it."""

from __future__ import annotations

import re
from typing import NamedTuple

from forktree.backend.chat import ChatTemplate


class ReasoningMarkup(NamedTuple):
    """What stands before and behind reasoning, without blanks around."""

    begin: str
    end: str


_KEYS = ("reasoning_content", "reasoning", "thinking")  # under which templates look for reasoning
_THOUGHT, _WORDS = "qprobe thought", "qprobe words"
_LAST_TAG = re.compile(r"(<[^<>\s]+>|\[[^\[\]\s]+\])\s*\Z")


def reasoning_markup(chat: ChatTemplate) -> ReasoningMarkup | None:
    """How the template writes reasoning; None where it shows none.

    It shows it where it quotes an answer that reasoned, or by asking for one with an open tag that it also closes.
    """
    question = {"role": "user", "content": "qprobe question"}
    asked = chat.probe([question], add_generation_prompt=True) or ""
    for key in _KEYS:
        text = chat.probe([question, {"role": "assistant", "content": _WORDS, key: _THOUGHT}]) or ""
        before, found, rest = text.partition(_THOUGHT)
        between, is_whole, _ = rest.partition(_WORDS)
        begin = _begin_of(before, asked) if found and is_whole else ""
        if begin and between.strip():
            return ReasoningMarkup(begin, between.strip())
    tag = _LAST_TAG.search(asked)
    if tag is None or f"</{tag.group(1)[1:]}" not in chat.source:
        return None
    return ReasoningMarkup(tag.group(1), f"</{tag.group(1)[1:]}")


def without_open_reasoning(opening: str, markup: ReasoningMarkup | None) -> str:
    """What opens an answer, up to the reasoning that it may open as well."""
    is_open = markup is not None and opening.rstrip().endswith(markup.begin)
    return opening[: opening.rindex(markup.begin)] if markup is not None and is_open else opening


def _begin_of(before: str, asked: str) -> str:
    """What stands between the opening of an answer and its reasoning; the opening may include it already."""
    begin = before[len(asked) :].strip() if before.startswith(asked) else ""
    found = _LAST_TAG.search(before)
    tag = found.group(1) if found else ""
    is_own = tag not in asked or asked.rstrip().endswith(tag)  # and not what opens every answer
    return begin or (tag if is_own else "")
