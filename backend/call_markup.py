"""The markup in which a model writes calls of tools, as its own chat template shows it.

The template renders a conversation with a call whose name, arguments and id are marks; what stands around the marks is
the markup. A second call shows what stands between two.

    <tool_call>\\n{"name": " NAME ", "arguments":  ARGUMENTS }\\n</tool_call>
    └────── before ───────┘     └───── within ────┘         └── after ──┘    (between calls: `joint`)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from forktree.backend.chat import ChatTemplate
from forktree.backend.reasoning_markup import reasoning_markup, without_open_reasoning


class Slot(Enum):
    """What a call fills in."""

    NAME = "name"
    ARGUMENTS = "arguments"
    ID = "id"


Parts = tuple[str | Slot, ...]


@dataclass(frozen=True, slots=True)
class CallMarkup:
    """
    Attributes:
        before: what stands before the first call's first slot.
        parts: a call from its first slot to its last, with the text between.
        joint: what stands between two calls; None where the template writes one call only.
        after: what stands behind the last call's last slot, before the end of the turn.
    """

    before: str
    parts: Parts
    joint: str | None
    after: str


ID_LENGTH = 9  # letters and digits: the only form that every template takes
NAMES = re.compile(r"[A-Za-z0-9_.-]+")  # names that are written alike inside a JSON string and outside


class _Call(NamedTuple):
    """A probe: its name, arguments and id are found again wherever a template writes them."""

    name: str
    arguments: dict[str, Any]
    id: str

    def message(self, *, as_text: bool) -> dict[str, Any]:
        arguments = json.dumps(self.arguments) if as_text else self.arguments
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


_CALLS = (
    _Call("qprobe_one", {"qkey": "qvalue", "qcount": 71937}, "qprobe001"),
    _Call("qprobe_two", {"qkey": "qother"}, "qprobe002"),
)


def call_markup(chat: ChatTemplate) -> CallMarkup | None:
    """How the template writes calls; None where it writes none, or not their arguments as JSON."""
    one = rendered_calls(chat, 1)
    return None if one is None else _markup_of(one, rendered_calls(chat, 2))


def rendered_calls(chat: ChatTemplate, count: int) -> str | None:
    """What the template writes of an answer that makes the first `count` probes; None where it refuses.

    Arguments are objects, and text where objects are refused.
    """
    for as_text in (False, True):
        calls = [call.message(as_text=as_text) for call in _CALLS[:count]]
        for content in ("", None):
            text = _rendered(chat, calls, content)
            if text is not None:
                return text
    return None


def _markup_of(one: str, two: str | None) -> CallMarkup | None:
    slots = _slots(one, _CALLS[0])
    if slots is None:
        return None
    before, parts, after = _cut(one, slots)
    return CallMarkup(before, parts, None if two is None else _joint(two, before, parts, after), after)


def _rendered(chat: ChatTemplate, calls: Sequence[dict[str, Any]], content: str | None) -> str | None:
    """What the template writes of an answer that calls, behind what it opens an answer with
    and before what it closes one with; None if it refuses."""
    question = {"role": "user", "content": "qprobe question"}
    answer = {"role": "assistant", "content": content, "tool_calls": list(calls)}
    called = chat.probe([question, answer], tools=_TOOLS)
    asked = chat.probe([question], tools=_TOOLS, add_generation_prompt=True) or ""
    said = chat.probe([question, {"role": "assistant", "content": "qprobe words"}], tools=_TOOLS) or ""
    opening, found, closing = said.partition("qprobe words")
    openings = [asked, opening if found else ""]
    openings += [without_open_reasoning(opening, reasoning_markup(chat)) for opening in openings]
    known = [opening for opening in openings if opening and called is not None and called.startswith(opening)]
    if called is None or not known:
        return None
    return called[len(max(known, key=len)) :].removesuffix(closing if found else "")


def _slots(text: str, call: _Call, start: int = 0) -> list[tuple[int, int, Slot]] | None:
    """Where a call's name, arguments and perhaps id stand, in order; None unless name, then arguments, once each."""
    written = [json.dumps(call.arguments, separators=style) for style in ((", ", ": "), (",", ":"))]
    arguments = next((one for one in written if text.count(one, start) == 1), None)
    if arguments is None or text.count(call.name, start) != 1 or text.count(call.id, start) > 1:
        return None
    found = []
    for value, slot in ((call.name, Slot.NAME), (arguments, Slot.ARGUMENTS), (call.id, Slot.ID)):
        at = text.find(value, start)
        if at >= 0:
            found.append((at, at + len(value), slot))
    found.sort(key=lambda one: one[0])
    order = [slot for _, _, slot in found if slot is not Slot.ID]
    return found if order == [Slot.NAME, Slot.ARGUMENTS] else None


def _cut(text: str, slots: list[tuple[int, int, Slot]]) -> tuple[str, Parts, str]:
    parts: list[str | Slot] = []
    at = slots[0][0]
    for start, end, slot in slots:
        parts += [text[at:start], slot] if start > at else [slot]
        at = end
    return text[: slots[0][0]], tuple(parts), text[at:]


def _joint(text: str, before: str, parts: Parts, after: str) -> str | None:
    """What stands between two calls, if both are written as the one was."""
    first, second = (_slots(text, call) for call in _CALLS)
    if first is None or second is None or first[-1][1] > second[0][0]:
        return None
    own_before, own_parts, _ = _cut(text, first)
    _, other_parts, own_after = _cut(text, second)
    if (own_before, own_parts, other_parts, own_after) != (before, parts, parts, after):
        return None
    return text[first[-1][1] : second[0][0]]


_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": call.name,
            "description": "A probe.",
            "parameters": {
                "type": "object",
                "properties": {
                    "qkey": {"type": "string", "description": "A key."},
                    "qcount": {"type": "integer", "description": "A count."},
                },
                "required": ["qkey"],
            },
        },
    }
    for call in _CALLS
]


class FoundCall(NamedTuple):
    name: str
    arguments: Any


def read_calls(text: str, markup: CallMarkup, names: Sequence[str], after: str) -> list[FoundCall] | None:
    """The calls that a text in this markup makes; None where it is not whole.

    Args:
        after: the markup's, as far as it was written.
    """
    if not text.startswith(markup.before):
        return None
    found = []
    at = len(markup.before)
    for call, end in _calls(text, at, markup, names, after):
        found.append(call)
        at = end
    return found if found and text[at:] == after else None


def _calls(text: str, at: int, markup: CallMarkup, names: Sequence[str], after: str) -> Iterator[tuple[FoundCall, int]]:
    followers = tuple(one for one in (markup.joint, after) if one is not None)
    while True:
        read = _read_call(text, at, markup.parts, names, followers)
        if read is None:
            return
        yield read
        at = read[1]
        if markup.joint is None or not text.startswith(markup.joint, at):
            return
        at += len(markup.joint)


def _read_call(
    text: str, at: int, parts: Parts, names: Sequence[str], followers: tuple[str, ...]
) -> tuple[FoundCall, int] | None:
    name, arguments = "", None
    for index, part in enumerate(parts):
        match part:
            case str():
                if not text.startswith(part, at):
                    return None
                at += len(part)
            case Slot.NAME:
                following = parts[index + 1] if index + 1 < len(parts) else ""
                behind = following if isinstance(following, str) else ""
                fitting = [one for one in names if text.startswith(one + behind, at)]
                if not fitting:
                    return None
                name = max(fitting, key=len)
                at += len(name)
            case Slot.ARGUMENTS:
                try:
                    arguments, at = json.JSONDecoder().raw_decode(text, behind_blank(text, at, ("{",)))
                except ValueError:
                    return None
                following = parts[index + 1] if index + 1 < len(parts) else None
                at = behind_blank(text, at, (following,) if isinstance(following, str) else followers)
            case Slot.ID:
                at += ID_LENGTH
    return FoundCall(name, arguments), at


def behind_blank(text: str, at: int, following: tuple[str, ...]) -> int:
    """Past a blank that stands before what must follow; arguments may have one before and after."""
    is_blank = at < len(text) and text[at] in " \t\r\n" and not text.startswith(following, at)
    return at + 1 if is_blank else at
