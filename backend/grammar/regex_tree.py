"""A pattern as a tree over sets of code points, whatever dialect it was written in.

Assertions of one position (`^`, `$`, `\\A`, `\\Z`, `\\b`, `\\B`) are kept as what they demand of the text on
either side: it may be empty, or its nearest character lies in a set.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forktree.backend.grammar.codepoints import ANY, CodeSet, complement


@dataclass(frozen=True, slots=True)
class Before:
    """What an assertion demands of the text before it: empty (if allowed), or its last character is in `codes`."""

    empty: bool = True
    codes: CodeSet = ANY


@dataclass(frozen=True, slots=True)
class After:
    """The same of the text after it; `newline_end` also allows one newline and then the end."""

    empty: bool = True
    codes: CodeSet = ANY
    newline_end: bool = False


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    codes: CodeSet


@dataclass(frozen=True, slots=True)
class Concat:
    parts: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True)
class Union:
    options: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`low` to `high` times; `position` is where in the pattern the counts stand."""

    body: Syntax
    low: int
    high: int | None
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Assertion:
    """Holds where one of the alternatives does."""

    alternatives: tuple[tuple[Before, After], ...]


Syntax = Chars | Concat | Union | Repeat | Assertion

AT_START = Assertion(((Before(codes=()), After()),))
AT_END = Assertion(((Before(), After(codes=())),))
AT_END_OR_LAST_NEWLINE = Assertion(((Before(), After(codes=(), newline_end=True)),))


def word_boundary(word: CodeSet) -> Assertion:
    """`\\b`: a word character on exactly one side."""
    other = complement(word)
    return Assertion(((Before(False, word), After(True, other)), (Before(True, other), After(False, word))))


def no_word_boundary(word: CodeSet) -> Assertion:
    other = complement(word)
    return Assertion(((Before(False, word), After(False, word)), (Before(True, other), After(True, other))))
