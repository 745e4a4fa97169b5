"""A branch as a conversation: what services take in the place of tokens.

    segments                                     conversation
    ────────────────────────────────────────────────────────────────────────────────────────
    RoleBegin("user") Text Image RoleEnd         a turn
    RoleBegin("assistant") Text … (open)         the turn that the model goes on with: `begun`
    Text outside of turns, and nothing else      `plain` text, for services that continue text
    Tools                                        definitions that are sent beside the turns
    ForkMark                                     what is before it is shared: the part `ends_shared`

Blank text between turns is dropped (a chat template writes its own), and so are turns without text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from forktree.lang.errors import RoleError, UnsupportedError
from forktree.runtime import protocol

Loose = Literal["refuse", "user"]
Begun = Literal["refuse", "tell"]


@dataclass(frozen=True, slots=True)
class Part:
    """Text, or an image, of a turn.

    Attributes:
        ends_shared: branches begin behind it, so that a service may keep what it computed up to here.
    """

    text: str = ""
    image: protocol.Image | None = None
    ends_shared: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one role."""

    role: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a model is told.

    Attributes:
        turns: closed ones, the oldest first.
        begun: what the model's own turn already says; "" where it begins.
        plain: text to continue, where there are no turns; None where there are.
        tools: definitions as JSON texts, each an array.
    """

    turns: tuple[Turn, ...] = ()
    begun: str = ""
    plain: str | None = None
    tools: tuple[str, ...] = ()

    def with_turns(self, *turns: Turn) -> Conversation:
        """The same with more turns at its end."""
        return replace(self, turns=(*self.turns, *turns))


def told_begun(told: Conversation) -> Conversation:
    """For a service that cannot go on with a turn that has begun: the system tells what stands there already."""
    words = (
        "Your next turn begins with the text between the marks, which is written already:\n"
        f"<<<{told.begun.rstrip()}>>>\nGo on right behind it, and do not write it again."
    )
    return replace(told, turns=(*told.turns, text_turn("system", words)), begun="")


def text_turn(role: str, text: str) -> Turn:
    return Turn(role, (Part(text),))


def conversation_of(branch: protocol.Branch | None, loose: Loose) -> Conversation:
    """The conversation of a branch, for a generation that follows it.

    Args:
        loose: what becomes of text outside of turns where there are turns too: refused, or said by the user, and
            what the model made there is its own turn.
    Raises:
        UnsupportedError: text stands outside of turns, or the generation inside a turn that is not the model's.
        RoleError: turns inside turns.
    """
    reader = _Reader()
    for segment in [] if branch is None else branch.segments():
        reader.take(segment)
    if not reader.has_roles and loose == "refuse":
        return Conversation(plain=reader.loose_text(), tools=tuple(reader.tools))
    return reader.conversation(loose)


@dataclass(slots=True)
class _Stretch:
    """A turn that is being read; role None is text outside of turns, of the program or of the model."""

    role: str | None
    is_made: bool = False
    parts: list[Part] = field(default_factory=list)


class _Reader:
    """Takes segments in order."""

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []
        self._is_open = False
        self.tools: list[str] = []
        self.has_roles = False

    def take(self, segment: protocol.Segment) -> None:
        match segment:
            case protocol.RoleBegin(role):
                if self._is_open:
                    raise RoleError(
                        f"a turn of {role!r} opens inside a turn of {self._stretches[-1].role!r}; close that first"
                    )
                self._stretches.append(_Stretch(role))
                self._is_open = self.has_roles = True
            case protocol.RoleEnd():
                self._is_open = False
            case protocol.Text(text):
                self._add(Part(text), is_made=False)
            case protocol.Generated(text):
                self._add(Part(text), is_made=True)
            case protocol.Image():
                self._add(Part(image=segment), is_made=False)
            case protocol.Tools(definitions):
                self.tools.append(definitions)
            case protocol.ForkMark():
                self._mark_shared()

    def _add(self, part: Part, *, is_made: bool) -> None:
        if not self._is_open:
            last = self._stretches[-1] if self._stretches else None
            if last is None or last.role is not None or last.is_made != is_made:
                self._stretches.append(_Stretch(None, is_made))
        parts = self._stretches[-1].parts
        if part.image is None and parts and parts[-1].image is None and not parts[-1].ends_shared:
            parts[-1] = Part(parts[-1].text + part.text)
        else:
            parts.append(part)

    def _mark_shared(self) -> None:
        if self._stretches and self._stretches[-1].parts:
            parts = self._stretches[-1].parts
            parts[-1] = replace(parts[-1], ends_shared=True)

    def loose_text(self) -> str:
        """All text, where there are no turns. Raises UnsupportedError: there is an image."""
        parts = [part for stretch in self._stretches for part in stretch.parts]
        if any(part.image is not None for part in parts):
            raise UnsupportedError("an image outside of a turn; write user(image(...))")
        return "".join(part.text for part in parts)

    def conversation(self, loose: Loose) -> Conversation:
        stretches = [stretch for stretch in self._stretches if not _is_blank(stretch)]
        begun = self._begun(loose)
        if self._is_open and stretches and stretches[-1] is self._stretches[-1]:
            stretches.pop()
        turns = tuple(Turn(_role_of(stretch, loose), _worth_saying(stretch.parts)) for stretch in stretches)
        return Conversation(turns, begun, None, tuple(self.tools))

    def _begun(self, loose: Loose) -> str:
        if not self._is_open:
            if loose == "refuse":
                raise UnsupportedError(
                    "a generation outside of a turn: a chat service writes turns of the assistant alone; "
                    "write assistant(gen(...))"
                )
            return ""
        last = self._stretches[-1]
        if last.role != "assistant":
            raise UnsupportedError(
                f"a generation inside a turn of {last.role!r}: a chat service writes turns of the assistant alone; "
                "close the turn first and write assistant(gen(...))"
            )
        if any(part.image is not None for part in last.parts):
            raise UnsupportedError("an image in a turn of the assistant; write user(image(...))")
        return "".join(part.text for part in last.parts)


def _is_blank(stretch: _Stretch) -> bool:
    """Nothing that a service would take."""
    return not any(part.image is not None or part.text.strip() for part in stretch.parts)


def _worth_saying(parts: list[Part]) -> tuple[Part, ...]:
    return tuple(part for part in parts if part.image is not None or part.text)


def _role_of(stretch: _Stretch, loose: Loose) -> str:
    if stretch.role is not None:
        return stretch.role
    if loose == "refuse":
        text = "".join(part.text for part in stretch.parts)
        raise UnsupportedError(
            f"text outside of turns beside turns: {text.strip()[:40]!r}; a chat service has turns alone: write "
            'user(...), or make the backend with text_outside_turns="user"'
        )
    return "assistant" if stretch.is_made else "user"
