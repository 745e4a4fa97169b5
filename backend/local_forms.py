"""How an output is written where that is not how its value reads: reasoning before it, calls in the model's markup.

What a program asks for (`ReasoningSpec`, `ToolsSpec`) becomes what this model's template shows (`form_of`); what the
model then writes becomes reasoning, text and value again (`AnswerText`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from forktree.backend.call_markup import ID_LENGTH, NAMES, CallMarkup, FoundCall, Slot, read_calls
from forktree.backend.call_parameters import ParameterMarkup, call_spec, parameters_of, read_parameter_calls
from forktree.backend.grammar.markup import Concat, Markup, OneOf, Repeated, Spec
from forktree.backend.grammar.specs import MAX_BLANK_LINES, reasoning_parts
from forktree.backend.render import Prompt
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.constraints import (
    DEFAULT_REASONING,
    ChoicesSpec,
    ReasoningSpec,
    RegexSpec,
    SchemaSpec,
    TagsSpec,
    ToolSpec,
    ToolsSpec,
)
from forktree.lang.errors import UnsupportedError

_TAIL = 64  # tokens of a prompt that are looked at for the begin of reasoning


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls in markup.

    Attributes:
        read: the calls that a text makes; None where it is not whole.
        is_list: the value is a list.
    """

    read: Callable[[str], list[FoundCall] | None]
    is_list: bool

    def value(self, text: str) -> str | None:
        """The calls as JSON; None where they are not whole."""
        found = self.read(text)
        if found is None:
            return None
        calls = [{"name": call.name, "arguments": call.arguments} for call in found]
        return json.dumps(calls if self.is_list else calls[0], ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Form:
    """
    Attributes:
        spec: what the whole output satisfies; None is free text.
        begin, end: the markup of the reasoning that it begins with; `end` is empty where there is none, `begin` where
            the prompt has it.
        max_reasoning: most tokens of the reasoning.
        calls: how the calls that it makes are written, where that is markup.
        shows_special: it may hold special tokens as markup, which are part of its text.
    """

    spec: Spec | None
    begin: str = ""
    end: str = ""
    max_reasoning: int | None = None
    calls: Calls | None = None
    shows_special: bool = False


def form_of(spec: Any, prompt: Prompt, tokenizer: Tokenizer) -> Form:
    """How this model writes what is asked for.

    Raises:
        UnsupportedError: reasoning is asked for, and the template shows none.
    """
    match spec:
        case ToolsSpec():
            return _calls_form(spec, tokenizer)
        case TagsSpec() | Concat() | OneOf():
            return Form(spec, shows_special=True)
        case ReasoningSpec():
            return _reasoning_form(spec, prompt, tokenizer)
    return Form(spec)


def _reasoning_form(spec: ReasoningSpec, prompt: Prompt, tokenizer: Tokenizer) -> Form:
    own = tokenizer.reasoning_markup
    if own is None and (spec.begin is None or spec.end is None):
        raise UnsupportedError(
            "this model's chat template shows no reasoning: drop reasoning=, or say its markup, "
            f"ft.Reasoning{DEFAULT_REASONING}"
        )
    begin = spec.begin if spec.begin is not None else own.begin if own else ""
    end = spec.end if spec.end is not None else own.end if own else ""
    inner = form_of(spec.content, prompt, tokenizer)
    written = b"".join(tokenizer.token_bytes[id] for id in prompt.ids[-_TAIL:]) + prompt.prefix
    is_open = written.rstrip().endswith(begin.encode())
    whole = reasoning_parts(ReasoningSpec(None, begin, end), inner.spec, is_open=is_open)
    return replace(
        inner,
        spec=whole,
        begin="" if is_open else begin,
        end=end,
        max_reasoning=spec.max_tokens,
        shows_special=True,
    )


class WrittenCalls(NamedTuple):
    """Calls as a markup writes them: `begin`, then `calls`, then `after`; `read` takes all three."""

    begin: str
    calls: Repeated
    after: str
    read: Callable[[str], list[FoundCall] | None]


def written_calls(spec: ToolsSpec, markup: CallMarkup | ParameterMarkup, tokenizer: Tokenizer) -> WrittenCalls | None:
    """How a markup writes the calls; None where it cannot write them exactly."""
    takes_many = spec.high is None or spec.high > 1
    if (takes_many and markup.joint is None) or not all(NAMES.fullmatch(tool.name) for tool in spec.tools):
        return None
    after = _before_end(markup.after, tokenizer)
    read: Callable[[str], list[FoundCall] | None]
    if isinstance(markup, CallMarkup):
        calls = [_call(markup, tool) for tool in spec.tools]
        read = partial(read_calls, markup=markup, names=[tool.name for tool in spec.tools], after=after)
    else:
        known = {tool.name: parameters_of(tool, markup) for tool in spec.tools}
        tools = {name: found for name, found in known.items() if found is not None}
        if len(tools) < len(known):
            return None
        calls = [call_spec(tool, tools[tool.name], markup) for tool in spec.tools]
        read = partial(read_parameter_calls, markup=markup, tools=tools, after=after)
    repeated = Repeated(OneOf(tuple(calls)), markup.joint or "", spec.low, spec.high)
    return WrittenCalls(markup.before, repeated, after, read)


def _calls_form(spec: ToolsSpec, tokenizer: Tokenizer) -> Form:
    """In the template's markup, where it shows one in which these calls can be written exactly."""
    markup = tokenizer.call_markup
    written = None if markup is None else written_calls(spec, markup, tokenizer)
    if written is None:
        return Form(spec)
    whole = Concat((Markup(written.begin), written.calls, Markup(written.after)))
    return Form(whole, calls=Calls(written.read, spec.is_list), shows_special=True)


def _call(markup: CallMarkup, tool: ToolSpec) -> Concat:
    return Concat(tuple(_written(part, tool) for part in markup.parts))


def _written(part: str | Slot, tool: ToolSpec) -> Spec:
    match part:
        case Slot.NAME:
            return ChoicesSpec((tool.name,))
        case Slot.ARGUMENTS:
            return SchemaSpec(tool.parameters, whitespace=1)
        case Slot.ID:
            return RegexSpec(f"[a-zA-Z0-9]{{{ID_LENGTH}}}")
    return Markup(part)


def _before_end(text: str, tokenizer: Tokenizer) -> str:
    """Markup up to the first token that ends a sequence: the model writes that to end its turn."""
    ends = [tokenizer.token_bytes[id].decode() for id in tokenizer.eos_ids]
    return text[: min((text.find(end) for end in ends if end and end in text), default=len(text))]


class AnswerText:
    """The text of one output as it comes: its reasoning apart, and what follows it. Not shared between threads."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._is_reasoning = bool(form.end)
        self._blanks = MAX_BLANK_LINES if form.end else 0  # lines between reasoning and answer that may still come
        self._held = ""
        self._pieces: list[str] = []
        self.whole = ""
        self.reasoning = ""

    @property
    def text(self) -> str:
        """What follows the reasoning."""
        return "".join(self._pieces)

    @property
    def thought(self) -> str:
        """The reasoning as far as it is known: without what may turn out to be its end. It only grows."""
        if not self._is_reasoning:
            return self.reasoning
        begin, end = self._form.begin, self._form.end
        if begin.startswith(self._held):
            return ""
        text = self._held.removeprefix(begin).lstrip("\n")
        num_held = next((n for n in range(min(len(text), len(end) - 1), 0, -1) if end.startswith(text[-n:])), 0)
        return text[: len(text) - num_held].rstrip("\n")

    def feed(self, piece: str) -> str:
        """Take more of the output; what it adds to the text."""
        self.whole += piece
        if self._is_reasoning:
            self._held += piece
            thought, end, piece = self._held.partition(self._form.end)
            self.reasoning = thought.removeprefix(self._form.begin).strip("\n")
            if not end:
                return ""
            self._is_reasoning = False
        while piece.startswith("\n") and self._blanks:
            piece, self._blanks = piece[1:], self._blanks - 1
        if piece:
            self._blanks = 0
            self._pieces.append(piece)
        return piece

    def value(self) -> str | None:
        """The value as JSON, where the text is markup."""
        return None if self._form.calls is None else self._form.calls.value(self.text)
