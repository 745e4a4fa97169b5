"""Constraints as data: what `gen` was asked for, before any automaton exists.

A specification is frozen and hashable, so equal ones share one compilation, and it names no backend: the
local engine compiles it to an automaton, a service maps it to its own mechanism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from forktree.lang.errors import ConstraintError

Unit = Literal["character", "word"]
"""What a literal piece of a document is made of."""

VERBATIM = "x-forktree-verbatim"
"""The schema keyword of a string that is a literal piece: {"document": text, "unit": "character" or "word"}."""


@dataclass(frozen=True, slots=True)
class RegexSpec:
    """The whole output matches `pattern` (Python `re` syntax)."""

    pattern: str


@dataclass(frozen=True, slots=True)
class ChoicesSpec:
    """The whole output is one of `options`."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SchemaSpec:
    """The whole output is JSON text that satisfies `schema`.

    Attributes:
        schema: the schema as JSON text, keys in the order in which the output writes them.
        order: "schema" writes keys in schema order, "any" lets them come in any order.
        whitespace: "compact", "bounded", or the most blanks in a row.
        numbers: "plain" has no exponent and at most 17 fraction digits, "any" takes all of RFC 8259.
    """

    schema: str
    order: Literal["schema", "any"] = "schema"
    whitespace: Literal["compact", "bounded"] | int = "compact"
    numbers: Literal["plain", "any"] = "plain"


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """The whole output is a sentence of a lark grammar."""

    text: str
    start: str = "start"


@dataclass(frozen=True, slots=True)
class SubstringSpec:
    """The whole output is a literal piece of `text`; by "word" it begins and ends with whole words."""

    text: str
    unit: Unit = "character"


@dataclass(frozen=True, slots=True)
class TagSpec:
    """`begin`, then `content` (None: any text up to the first `end`), then `end`; both are markup."""

    begin: str
    content: ConstraintSpec | None = None
    end: str = ""


@dataclass(frozen=True, slots=True)
class TagsSpec:
    """Free text with tags in it, at least and at most so many (None: no bound).

    Attributes:
        triggers: beginnings of the tags' begins; free text holds none of them. The begins themselves where not given.
        text_after: free text may follow the last tag that `at_most` allows.
    """

    tags: tuple[TagSpec, ...]
    triggers: tuple[str, ...] = ()
    at_least: int = 0
    at_most: int | None = None
    text_after: bool = True


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that may be called: its name, and the JSON Schema of its arguments as text."""

    name: str
    parameters: str


@dataclass(frozen=True, slots=True)
class ToolsSpec:
    """Calls of tools, in the markup that the model was taught, or as JSON where it was taught none.

    As JSON a call is `{"name": …, "arguments": {…}}`, and calls are an array of those.

    Attributes:
        is_list: an array of `low` to `high` calls (None: no bound); else one call.
    """

    tools: tuple[ToolSpec, ...]
    is_list: bool = False
    low: int = 1
    high: int | None = 1


@dataclass(frozen=True, slots=True)
class ReasoningSpec:
    """Reasoning first, between `begin` and `end`, then `content` (None: free text), which alone is the value.

    Attributes:
        begin, end: markup; None is the model's own.
        max_tokens: most tokens of the reasoning; then it is closed.
    """

    content: ConstraintSpec | None = None
    begin: str | None = None
    end: str | None = None
    max_tokens: int | None = None


ConstraintSpec = (
    RegexSpec | ChoicesSpec | SchemaSpec | GrammarSpec | SubstringSpec | TagsSpec | ToolsSpec | ReasoningSpec
)

DEFAULT_REASONING = ("<think>", "</think>")
"""Markup around reasoning where neither the program nor a model's template says it."""

ALL_CONSTRAINTS = frozenset(cls.__name__ for cls in get_args(ConstraintSpec))
"""The kinds of constraint, by name: what a backend that enforces every one of them declares."""


def checked_unit(unit: Any) -> Unit:
    """Raises ConstraintError where it is not one."""
    if unit not in get_args(Unit):
        raise ConstraintError(f'unit must be "character" or "word", not {unit!r}')
    return unit  # type: ignore[no-any-return]


@runtime_checkable
class HasSpec(Protocol):
    """A constraint object (`ft.Regex(...)`, `ft.Schema(...)` …): it carries its specification."""

    @property
    def spec(self) -> ConstraintSpec: ...
