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


ConstraintSpec = RegexSpec | ChoicesSpec | SchemaSpec | GrammarSpec | SubstringSpec


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
