"""Calls of tools: what the model may write, and reading it back as it comes.

A model writes calls in the markup of its template, or where that shows none, as one JSON object a line:

    {"name": "get_weather", "arguments": {"city": "Oslo"}}
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from forktree.backend.call_markup import ID_LENGTH, CallMarkup, Slot
from forktree.backend.call_parameters import ParameterMarkup
from forktree.backend.grammar.markup import Concat, Markup, OneOf, Spec
from forktree.backend.local_forms import WrittenCalls, written_calls
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.constraints import TagSpec, TagsSpec, ToolSpec, ToolsSpec

JSON_CALLS = CallMarkup('{"name": "', (Slot.NAME, '", "arguments": ', Slot.ARGUMENTS), '}\n{"name": "', "}")

_ALPHABET = string.ascii_letters + string.digits
_BLANKS = " \t\r\n"


def written_as_json(calls: Iterable[tuple[str, str]]) -> str:
    """Calls, as (name, arguments), in the form for models whose template has none."""
    return "\n".join(f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}' for name, arguments in calls)


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Calls that an output may make, or must.

    Attributes:
        names: of the tools.
        markup: how calls are written.
        written: the same for these tools.
        is_required: the output is nothing else.
    """

    names: tuple[str, ...]
    markup: CallMarkup | ParameterMarkup
    written: WrittenCalls
    is_required: bool

    def spec(self, content: Spec | None) -> Spec:
        """What the output satisfies: `content` (None is free text), or calls."""
        begin, calls, after, _ = self.written
        whole = Concat((Markup(begin), calls, Markup(after)))
        if self.is_required:
            return whole
        if content is not None:
            return OneOf((content, whole))
        tag = TagSpec(begin, calls, after)  # type: ignore[arg-type]  # composed, so not in the user's grammar
        return Concat((TagsSpec((tag,), at_most=1, text_after=False),))


def plan_calls(tools: Sequence[ToolSpec], tokenizer: Tokenizer, *, is_required: bool, is_parallel: bool) -> CallPlan:
    """How this model calls these tools."""
    high = None if is_parallel else 1
    own = tokenizer.call_markup
    candidates = [(own, high), (own, 1)] if own is not None else []
    for markup, most in (*candidates, (JSON_CALLS, high)):
        written = written_calls(ToolsSpec(tuple(tools), high=most), markup, tokenizer)
        if written is not None:
            return CallPlan(tuple(tool.name for tool in tools), markup, written, is_required)
    raise AssertionError("JSON writes every call of a tool whose name is letters, digits, _ and -")


@dataclass(frozen=True, slots=True)
class Said:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """Call number `index` begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsGrown:
    """More JSON text of the arguments of call number `index`."""

    index: int
    text: str


Event = Said | CallBegun | ArgumentsGrown


class CallReader:
    """Reads one output as it comes. Text that may become a call's beginning is held back until it is known.

    The constraint wrote the output, so what begins as a call goes on as one, unless it was cut.
    """

    def __init__(self, plan: CallPlan | None) -> None:
        self._plan = plan
        self._text = ""  # not read yet
        self._is_calling = False
        self._calls: _JsonCalls | None = None
        self.num_calls = 0

    def feed(self, text: str) -> list[Event]:
        """Take more of the output; what it says for certain."""
        if self._plan is None:
            return [Said(text)] if text else []
        self._text += text
        events: list[Event] = []
        if not self._is_calling:
            events += self._say(self._plan)
        if self._is_calling and self._calls is not None:
            events += self._calls.feed(self._take())
            self.num_calls = self._calls.num_calls
        return events

    def finish(self) -> list[Event]:
        """The output has ended: what was held back."""
        plan = self._plan
        if plan is None or self._calls is not None:
            return []
        if not self._is_calling:
            rest = self._take()
            return [Said(rest)] if rest else []
        whole = plan.written.begin + self._take()
        found = plan.written.read(whole)
        if found is None:  # cut: its arguments stand one by one and cannot be shown half
            return []
        events: list[Event] = []
        for index, call in enumerate(found):
            events.append(CallBegun(index, new_call_id(), call.name))
            events.append(ArgumentsGrown(index, json.dumps(call.arguments, ensure_ascii=False)))
        self.num_calls = len(found)
        return events

    def _say(self, plan: CallPlan) -> list[Event]:
        begin = plan.written.begin
        said, found, rest = self._text.partition(begin)
        if found:
            self._is_calling, self._text = True, rest
            if isinstance(plan.markup, CallMarkup):
                self._calls = _JsonCalls(plan.markup, plan.names)
        else:
            held = _overlap(self._text, begin)
            said, self._text = self._text[: len(self._text) - held], self._text[len(self._text) - held :]
        return [Said(said)] if said else []

    def _take(self) -> str:
        text, self._text = self._text, ""
        return text


class _JsonCalls:
    """Reads calls whose arguments are JSON, from behind the first one's beginning."""

    def __init__(self, markup: CallMarkup, names: Sequence[str]) -> None:
        self._markup = markup
        self._names = names
        self._text = ""
        self._at = 0  # the part that is read
        self._arguments = _ObjectEnd()
        self.num_calls = 0

    def feed(self, text: str) -> Iterator[Event]:
        self._text += text
        while self._text:
            parts = self._markup.parts
            if self._at == len(parts):
                if self._markup.joint is None or not self._skip(self._markup.joint):
                    return
                self._at, self._arguments = 0, _ObjectEnd()
                continue
            match parts[self._at]:
                case str() as fixed:
                    if not self._skip(fixed):
                        return
                    self._at += 1
                case Slot.NAME:
                    name = self._name(parts[self._at + 1])
                    if name is None:
                        return
                    self._text = self._text[len(name) :]
                    self._at += 1
                    self.num_calls += 1
                    yield CallBegun(self.num_calls - 1, new_call_id(), name)
                case Slot.ID:
                    if len(self._text) < ID_LENGTH:
                        return
                    self._text = self._text[ID_LENGTH:]
                    self._at += 1
                case Slot.ARGUMENTS:
                    taken = self._arguments.take(self._text)
                    grown = self._text[:taken] if self._arguments.has_begun else ""
                    self._text = self._text[taken:]
                    if grown := grown.lstrip(_BLANKS) if not self._arguments.was_open else grown:
                        yield ArgumentsGrown(self.num_calls - 1, grown)
                    if not self._arguments.is_over:
                        return
                    self._at += 1

    def _skip(self, fixed: str) -> bool:
        """Read fixed text, and a blank before it that is not its own; False where more has to come."""
        for lead in ("", *_BLANKS):
            if self._text.startswith(lead + fixed):
                self._text = self._text[len(lead) + len(fixed) :]
                return True
        return False

    def _name(self, following: str | Slot) -> str | None:
        behind = following if isinstance(following, str) else ""
        return next((name for name in self._names if self._text.startswith(name + behind)), None)


class _ObjectEnd:
    """Finds where a JSON object ends, in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_text = False
        self._is_escaped = False
        self.has_begun = False
        self.was_open = False  # before the piece that was taken last
        self.is_over = False

    def take(self, text: str) -> int:
        """How many characters of the text belong to the object, and blanks before it."""
        self.was_open = self.has_begun
        for index, char in enumerate(text):
            if self._is_text:
                self._is_text = self._is_escaped or char != '"'
                self._is_escaped = char == "\\" and not self._is_escaped
            elif char == '"':
                self._is_text = True
            elif char in "{[":
                self._depth += 1
                self.has_begun = True
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_over = True
                    return index + 1
        return len(text)


def new_call_id() -> str:
    """In the form that every chat template takes back."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(ID_LENGTH))


def _overlap(text: str, begin: str) -> int:
    """How many characters of the text's end are a beginning of `begin`."""
    return next((n for n in range(min(len(text), len(begin) - 1), 0, -1) if begin.startswith(text[-n:])), 0)
