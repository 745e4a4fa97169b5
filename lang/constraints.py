"""Constraints as data: what `gen` was asked for, before any automaton exists.

A specification is frozen and hashable, so equal ones share one compilation, and it names no backend: the
local engine compiles it to an automaton, a service maps it to its own mechanism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable


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
    """The whole output is a literal piece of `text`."""

    text: str


ConstraintSpec = RegexSpec | ChoicesSpec | SchemaSpec | GrammarSpec | SubstringSpec


@runtime_checkable
class HasSpec(Protocol):
    """A constraint object (`ft.Regex(...)`, `ft.Schema(...)` …): it carries its specification."""

    @property
    def spec(self) -> ConstraintSpec: ...
