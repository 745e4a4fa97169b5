"""The model's own chat template, piece by piece.

A program opens and closes turns one at a time; a Jinja template renders a whole conversation. The pieces that
it writes around a turn are found by rendering conversations whose contents are marks, and looking at what
stands between the marks:

    <|im_start|>system\\n MARK0 <|im_end|>\\n<|im_start|>user\\n MARK1 <|im_end|>\\n<|im_start|>assistant\\n
    └── begin((), system) ┘     └─ end ─────┘└ begin((system,), user) ┘  └─ end ──┘└── begin(…, assistant) ──┘

A template is *stable* where the pieces do not depend on what comes later: then the text of a program equals
`apply_chat_template`. One that is not (it rewrites earlier turns, or opens a turn that is to be generated
otherwise than one that is quoted) is still usable: what was written stays, and an assistant's turn opens as
for generation. `why_unstable` says what differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from forktree.lang.errors import ForktreeError, ModelError, RoleError
from forktree.lang.tool_head import describe_tools

Roles = tuple[str, ...]

_MAX_TOOLS = 64  # remembered sets of tools
_MAX_PIECES = 4096  # remembered openings and closings of one template
_LOOKAHEAD: tuple[Roles, ...] = ((), ("user",), ("assistant",), ("user", "assistant"))


class Opening(NamedTuple):
    """What a template writes before a turn's content.

    Attributes:
        text: the template's own; for an assistant's turn what asks for generation.
        lead: blanks that it writes before a quoted content but not before a generated one. They belong to the
            content: a generation may merge them with its first token.
    """

    text: str
    lead: str = ""


class ChatTemplate:
    """The template of one tokenizer of `transformers`. Safe to use from any thread.

    Every method raises ModelError where the tokenizer has no template, and RoleError, with the template's own
    words, for an order of turns that it refuses.
    """

    def __init__(self, hf: Any, tools: str | None = None) -> None:
        """`tools`: definitions that every conversation begins with, as JSON text (`protocol.Tools`)."""
        self._hf = hf
        self._tools = tools
        self.with_tools = lru_cache(_MAX_TOOLS)(self._with_tools)
        self.begin = lru_cache(_MAX_PIECES)(self._begin)
        self.between = lru_cache(_MAX_PIECES)(self._between)
        self.end = lru_cache(_MAX_PIECES)(self._end)
        self._render_marks = lru_cache(_MAX_PIECES)(self._render_marks_anew)

    begin: Callable[[Roles, str], Opening]
    """`begin(roles, role)`: what is written to open a turn of `role` after the finished, closed turns `roles`."""

    between: Callable[[Roles, str], Opening]
    """`between(roles, role)`: the same where the last of `roles` is not closed yet, its closing included. For
    a stable template it is `end` and `begin`; another may close a turn differently when more follows."""

    end: Callable[[Roles, str], str]
    """`end(roles, role)`: what is written to close a turn of `role`."""

    with_tools: Callable[[str], ChatTemplate]
    """`with_tools(definitions)`: the same template, for conversations in which the model may call these tools."""

    def _with_tools(self, definitions: str) -> ChatTemplate:
        return ChatTemplate(self._hf, definitions)

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the template itself writes what tools there are. Where it does not, they are described as text
        in the system turn, and where it takes no system turn, in the first turn."""
        return any(_PROBE_NAME in (self.probe(messages, tools=_PROBE_TOOLS) or "") for messages in _PROBE_TALKS)

    @cached_property
    def _takes_system(self) -> bool:
        text = self.probe(_messages(("system", "user"), (_mark(0), _mark(1))))
        return text is not None and _mark(0) in text

    def probe(self, messages: list[dict[str, Any]], **options: Any) -> str | None:
        """What the template writes, or None where it refuses."""
        import jinja2

        try:
            return str(self._hf.apply_chat_template(messages, tokenize=False, **options))
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError):
            return None

    def _told(self, messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The messages and options that make the template say what tools there are."""
        if self._tools is None:
            return messages, {}
        if self.shows_tools:
            return messages, {"tools": json.loads(self._tools)}
        text = describe_tools(self._tools)
        if messages and (messages[0]["role"] == "system" or not self._takes_system):
            at_end = messages[0]["role"] == "system"
            content = messages[0]["content"]
            told = f"{content}\n\n{text}" if at_end else f"{text}\n\n{content}"
            return [{**messages[0], "content": told}, *messages[1:]], {}
        return [{"role": "system", "content": text}, *messages], {}

    @property
    def exists(self) -> bool:
        """Whether the tokenizer has a template."""
        return getattr(self._hf, "chat_template", None) is not None

    @property
    def source(self) -> str:
        """The template's own text, or of several the one for plain conversations; empty where there is none."""
        template = getattr(self._hf, "chat_template", None) or ""
        return str(template.get("default", "")) if isinstance(template, dict) else str(template)

    @property
    def is_stable(self) -> bool:
        return self.why_unstable is None

    @cached_property
    def why_unstable(self) -> str | None:
        """What makes the pieces depend on later turns, in one sentence; None for a stable template."""
        if not self.exists:
            return "there is no template"
        probes = [roles for roles in _PROBES if self._render_or_none(roles) is not None]
        if not probes:
            return "it refuses every conversation that it was tried with"
        try:
            return next((fault for roles in probes if (fault := self._find_fault(roles))), None)
        except ForktreeError as error:
            return str(error)

    def render(self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = False) -> str:
        """A whole conversation, as `apply_chat_template` writes it."""
        import jinja2

        if not self.exists:
            raise ModelError(
                "the model's tokenizer has no chat template, so it has no roles: write the prompt as plain text "
                "without system, user and assistant, use a chat model, or put chat_template.jinja in its folder."
            )
        told, options = self._told(list(messages))
        try:
            return str(
                self._hf.apply_chat_template(
                    told, tokenize=False, add_generation_prompt=add_generation_prompt, **options
                )
            )
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise RoleError(f"the model's chat template refuses the turns ({roles}): {error}") from error

    # --- pieces --------------------------------------------------------------------------------------------

    def _begin(self, roles: Roles, role: str) -> Opening:
        gap = self.between(roles, role)
        written = self.end(roles[:-1], roles[-1]) if roles else ""
        return Opening(_without_prefix(gap.text, written), gap.lead)

    def _between(self, roles: Roles, role: str) -> Opening:
        quoted = self._gap_before_content(roles, role)
        asking = self._generation_gap(roles) if role == "assistant" else None
        if asking is None:
            return Opening(quoted)
        if quoted.startswith(asking) and not quoted[len(asking) :].strip():
            return Opening(asking, quoted[len(asking) :])
        has_words = asking != self.end(roles[:-1], roles[-1])
        return Opening(asking if has_words else quoted)

    def _end(self, roles: Roles, role: str) -> str:
        """What follows the content where nothing comes after; nothing if the content waits for a later turn."""
        index = len(roles)
        text = self._render_or_none((*roles, role))
        if text is None or _mark(index) not in text:
            self._text_with_content(roles, role)  # raises what the template says
            return ""
        return text[_after(text, index) :]

    def _gap_before_content(self, roles: Roles, role: str) -> str:
        """What stands between the content before and this one, in a conversation that quotes both."""
        text = self._text_with_content(roles, role)
        before = text[: text.index(_mark(len(roles)))]
        last = len(roles) - 1
        return before[_after(before, last) :] if roles and _mark(last) in before else before

    def _generation_gap(self, roles: Roles) -> str | None:
        """What follows the last content of `roles` where an answer is asked for; None if it is refused."""
        if not roles:
            return None
        try:
            text = self._render_marks(roles, True)
        except RoleError:
            return None
        last = len(roles) - 1
        if _mark(last) not in text:
            return None
        return str(text[_after(text, last) :])

    def _text_with_content(self, roles: Roles, role: str) -> str:
        """A conversation that shows the content of the turn `role` after `roles`, the shortest that does."""
        refusal: RoleError | None = None
        for later in _LOOKAHEAD:
            try:
                text = self._render_marks((*roles, role, *later), False)
            except RoleError as error:
                refusal = refusal if later else error
                continue
            if _mark(len(roles)) in text:
                return str(text)
        if refusal is not None:
            raise refusal
        raise RoleError(
            f"the model's chat template writes nothing for a turn of {role!r} after ({', '.join(roles) or 'no turn'})"
        )

    def _generation_prompt(self, roles: Roles) -> str | None:
        """What asks for an assistant's turn after `roles`, or None if the template has no words for it."""
        if not roles:
            return None
        try:
            text = self._render_marks(roles, True)
        except RoleError:
            return None
        last = len(roles) - 1
        if _mark(last) not in text:
            return None
        gap = text[_after(text, last) :]
        written = self._end(roles[:-1], roles[-1])
        return str(gap[len(written) :]) if gap.startswith(written) else None

    def _render_or_none(self, roles: Roles) -> str | None:
        try:
            return str(self._render_marks(roles, False))
        except RoleError:
            return None

    def _render_marks_anew(self, roles: Roles, add_generation_prompt: bool) -> str:
        contents = [_mark(index) for index in range(len(roles))]
        return self.render(_messages(roles, contents), add_generation_prompt=add_generation_prompt)

    # --- stability -----------------------------------------------------------------------------------------

    def _find_fault(self, roles: Roles) -> str | None:
        """How the pieces of a conversation differ from the whole; None if they agree."""
        for contents in _CONTENTS:
            chosen = [contents[index % len(contents)] for index in range(len(roles))]
            if self._compose(roles, chosen) != self.render(_messages(roles, chosen)):
                return f"it writes ({', '.join(roles)}) otherwise as a whole than turn by turn"
        for index, role in enumerate(roles):
            if index and role == "assistant" and self._asks_otherwise(roles[:index]):
                return f"it asks for an answer after ({', '.join(roles[:index])}) otherwise than it quotes one"
        return None

    def _asks_otherwise(self, roles: Roles) -> bool:
        marks = [_mark(index) for index in range(len(roles))]
        asked = self.render(_messages(roles, marks), add_generation_prompt=True)
        written = self._compose(roles, marks)
        return asked not in (written, written + self.begin(roles, "assistant").text)

    def _compose(self, roles: Roles, contents: Sequence[str]) -> str:
        text = ""
        for index, (role, content) in enumerate(zip(roles, contents, strict=True)):
            opening = self.begin(roles[:index], role)
            text += opening.text + opening.lead + content + self.end(roles[:index], role)
        return text


_PROBE_NAME = "qprobe_tool"
_PROBE_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": _PROBE_NAME, "description": "", "parameters": {"type": "object", "properties": {}}},
    }
]
_PROBE_TALKS = [
    [{"role": "user", "content": "One word."}],
    [{"role": "system", "content": "Two words."}, {"role": "user", "content": "One word."}],
]
_PROBES: tuple[Roles, ...] = (
    ("user", "assistant"),
    ("user", "assistant", "user", "assistant"),
    ("system", "user", "assistant", "user", "assistant", "user"),
)
_CONTENTS: tuple[tuple[str, ...], ...] = (
    ("One word.", "Two words, then\n\na line.", "3"),
    ("a" * 300, "{'b': [1]}", "Grüße, 世界!"),
)


def _mark(index: int) -> str:
    """A content that no template treats as anything but a word."""
    return f"Qmark{index}Zend"


def _after(text: str, index: int) -> int:
    """Where the last occurrence of a mark ends."""
    mark = _mark(index)
    return text.rindex(mark) + len(mark)


def _messages(roles: Roles, contents: Sequence[str]) -> list[dict[str, Any]]:
    return [_message(role, content) for role, content in zip(roles, contents, strict=True)]


def _message(role: str, content: str) -> dict[str, Any]:
    if role == "tool":
        return {"role": role, "content": content, "name": "tool", "tool_call_id": "tool00000"}
    return {"role": role, "content": content}


def _without_prefix(gap: str, written: str) -> str:
    """What is left to write of `gap`; where it does not go on from what is written, all of it."""
    return gap[len(written) :] if gap.startswith(written) else gap
