"""The closed set of things that a program can do, declared in one place.

What a user writes (`gen(...)`, `"text" + select(...)`), what a run records, what `trace` builds and what a
server executes are the same frozen nodes. A `Program` (program.py) is a list of operations, each a node on a
branch; the interpreter matches over `Node` and nothing else.

    Text          constant text; with markup, special-token spellings count as special tokens
    Argument      an argument of the program, known when it runs
    Variable      the value of a variable, of this branch or of another
    Gen, Select   ask the model
    RoleBegin/End a turn opens or closes
    ScopeBegin/End text between them becomes a variable
    Image         an image
    Tools         the conversation's head describes the tools that the model may call
    Assign        the program sets a variable itself
    Fork          branches begin here
    Join          variables of branches come back
    Call          another program starts, on a fresh branch
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Literal

from forktree.lang.errors import LanguageError
from forktree.lang.sampling import Sampling
from forktree.lang.types import Output

OnBudget = Literal["cut", "close"]
SelectMethod = Literal["token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"]
JoinStyle = Literal["values", "lists", "text", "values_and_text"]
Key = str | int
"""One step into a typed value: an attribute or key by name, or an index."""


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_OWN_MODULES = ("forktree.lang.", "forktree.runtime.", "forktree.backend.")
_NOT_USER = ("contextlib", "functools")


def caller_source() -> Source | None:
    """The line of the nearest frame outside forktree's own machinery."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(_OWN_MODULES) and module not in _NOT_USER:
            return Source(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None


class Expr:
    """Anything that `+` can join into a longer expression."""

    __slots__ = ()

    def __add__(self, other: object) -> Sequence:
        return Sequence((*nodes_of(self), *nodes_of(other)))

    def __radd__(self, other: object) -> Sequence:
        return Sequence((*nodes_of(other), *nodes_of(self)))

    def __format__(self, spec: str) -> str:
        """An f-string would put the description of an expression into the prompt instead of the expression."""
        where = at(caller_source())
        raise LanguageError(f"an expression does not go into an f-string: write text + gen(…) + text{where}")


@dataclass(frozen=True, slots=True)
class Text(Expr):
    """Constant text."""

    text: str
    markup: bool = False
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Argument(Expr):
    """An argument that is known when the program runs.

    Attributes:
        path: attributes and keys to follow into the value.
        conversion, format_spec: as in an f-string; "" means `str`.
    """

    name: str
    path: tuple[Key, ...] = ()
    conversion: str = ""
    format_spec: str = ""
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Variable(Expr):
    """The value of a variable of branch `branch` at this point of the program."""

    name: str
    branch: int
    path: tuple[Key, ...] = ()
    conversion: str = ""
    format_spec: str = ""
    source: Source | None = field(default=None, compare=False)


_NO_SAMPLING = Sampling()


@dataclass(frozen=True, slots=True)
class Gen(Expr):
    """The model continues the branch; the value goes to `name`, if there is one.

    Attributes:
        sampling: what the program gave; defaults are applied when it runs.
        output: the constraint and how its text becomes a value; None is free text.
    """

    name: str | None = None
    sampling: Sampling = _NO_SAMPLING
    output: Output | None = None
    on_budget: OnBudget = "cut"
    heal: bool = True
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """The likeliest of `options` is appended and goes to `name`."""

    name: str | None
    options: tuple[str, ...]
    method: SelectMethod = "token_length_normalized"
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RoleBegin(Expr):
    """A turn of `role` opens."""

    role: str
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RoleEnd(Expr):
    """The turn of `role` closes."""

    role: str
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ScopeBegin(Expr):
    """The text from here to the matching `ScopeEnd` becomes the variable `name`."""

    name: str
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ScopeEnd(Expr):
    """See `ScopeBegin`."""

    name: str
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Image(Expr):
    """An image, encoded."""

    data: bytes
    media_type: str = "image/png"
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Tools(Expr):
    """The tools that the model may call, described at the head of the conversation as its template does.

    `definitions`: JSON text, an array of objects as `Tool.to_dict` makes them.
    """

    definitions: str
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Assign:
    """The program sets `name`; `value` is a node, or plain data."""

    name: str
    value: object
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Fork:
    """Branches with these ids begin here. `on_error`: a failed branch cancels its siblings, or they go on."""

    branches: tuple[int, ...]
    on_error: Literal["cancel", "continue"] = "cancel"
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Join:
    """Variables of these branches come back.

    `style`: "values" (a list only where several branches set the name), "lists" (always lists), "text" (lists,
    and their text comes back too, in order), "values_and_text" (values, and their text).
    """

    branches: tuple[int, ...]
    style: JoinStyle = "values"
    source: Source | None = field(default=None, compare=False)

    @property
    def brings_text(self) -> bool:
        """Does the branches' text come back?"""
        return self.style in ("text", "values_and_text")

    @property
    def brings_lists(self) -> bool:
        """Does a name that one branch set come back as a list of one?"""
        return self.style in ("lists", "text")


@dataclass(frozen=True, slots=True)
class Call:
    """The program `function` starts on the fresh branch `branch`."""

    function: str
    branch: int
    source: Source | None = field(default=None, compare=False)


Node = (
    Text
    | Argument
    | Variable
    | Gen
    | Select
    | RoleBegin
    | RoleEnd
    | ScopeBegin
    | ScopeEnd
    | Image
    | Tools
    | Assign
    | Fork
    | Join
    | Call
)

Appendable = Text | Argument | Variable | Gen | Select | RoleBegin | RoleEnd | ScopeBegin | ScopeEnd | Image | Tools
"""What `s +=` takes."""


@dataclass(frozen=True, slots=True)
class Sequence(Expr):
    """Several nodes one after another: what `+` makes. It is flattened when it is appended."""

    items: tuple[Appendable, ...]


class Symbolic:
    """A value that only a run can know (symbols.py); it stands for one node."""

    __slots__ = ()

    def to_node(self) -> Argument | Variable:
        raise NotImplementedError


def nodes_of(value: object) -> tuple[Appendable, ...]:
    """The nodes that appending `value` appends.

    Raises:
        LanguageError: the value is neither text nor an expression.
    """
    match value:
        case str():
            return (Text(value),) if value else ()
        case Sequence():
            return value.items
        case (
            Text()
            | Argument()
            | Variable()
            | Gen()
            | Select()
            | RoleBegin()
            | RoleEnd()
            | ScopeBegin()
            | ScopeEnd()
            | Image()
            | Tools()
        ):
            return (value,)
        case Symbolic():
            return (value.to_node(),)
    raise LanguageError(
        f"{value!r} ({type(value).__name__}) cannot be appended to a program: append text, "
        f"gen(), select(), a role or their sum; write str(value) for other values{at(caller_source())}"
    )


def at(source: Source | None) -> str:
    """The end of a message that names the line; empty where the line is not known."""
    return "" if source is None else f" (at {source})"
