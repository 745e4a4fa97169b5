"""Reads a pattern's escapes and classes: whatever stands for a set of characters, as Python's `re` has it."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import NoReturn

from forktree.backend.grammar.codepoints import (
    ASCII_DIGITS,
    ASCII_SPACE,
    ASCII_WORD,
    CodeSet,
    complement,
    ignoring_case,
    normalised,
    unicode_class,
    union,
)
from forktree.lang.errors import ConstraintError


@dataclass(frozen=True, slots=True)
class Flags:
    ascii_only: bool = False
    ignore_case: bool = False
    dot_all: bool = False
    multiline: bool = False
    verbose: bool = False


_SIMPLE_ESCAPES = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7}


class SetReader:
    """A place in a pattern. `_flags` are those in force there.

    Raises, where it reads:
        ConstraintError: bad syntax; `.pointer` is the position.
    """

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._flags = Flags()

    def _folded(self, codes: CodeSet) -> CodeSet:
        return ignoring_case(codes, ascii_only=self._flags.ascii_only) if self._flags.ignore_case else codes

    def _word(self) -> CodeSet:
        return ASCII_WORD if self._flags.ascii_only else unicode_class("w")

    def _category(self, letter: str) -> CodeSet | None:
        match letter.lower():
            case "d":
                codes = ASCII_DIGITS if self._flags.ascii_only else unicode_class("d")
            case "w":
                codes = self._word()
            case "s":
                codes = ASCII_SPACE if self._flags.ascii_only else unicode_class("s")
            case _:
                return None
        return complement(codes) if letter.isupper() else codes

    def _escaped_set(self) -> CodeSet:
        """The set after a backslash, outside or inside a class."""
        category = self._category(self._text[self._at + 1])
        if category is not None:
            self._at += 2
            return category
        code = self._escaped_code()
        return self._folded(((code, code + 1),))

    def _escaped_code(self) -> int:
        start = self._at
        letter = self._text[self._at + 1]
        self._at += 2
        if letter in _SIMPLE_ESCAPES:
            return _SIMPLE_ESCAPES[letter]
        if letter in "xuU":
            return self._checked(self._hex({"x": 2, "u": 4, "U": 8}[letter], start), start)
        if letter == "N":
            return self._named_character(start)
        if letter.isdigit() and letter.isascii():
            return self._octal(start)
        if letter.isascii() and letter.isalpha():
            self._fail(f"bad escape \\{letter}", start)
        return ord(letter)

    def _octal(self, start: int) -> int:
        end = start + 1
        while end < min(start + 4, len(self._text)) and self._text[end] in "01234567":
            end += 1
        if end == start + 1:
            self._fail(f"bad escape \\{self._text[end : end + 1]}", start)
        self._at = end
        code = int(self._text[start + 1 : end], 8)
        if code > 0o377:
            self._fail(f"octal escape \\{code:o} is above 377", start)
        return code

    def _hex(self, width: int, start: int) -> int:
        digits = self._text[self._at : self._at + width]
        if len(digits) < width or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            self._fail(f"incomplete escape {self._text[start : self._at + width]}", start)
        self._at += width
        return int(digits, 16)

    def _named_character(self, start: int) -> int:
        end = self._text.find("}", self._at)
        if not self._accept("{") or end < 0:
            self._fail("missing {name} after \\N", start)
        name = self._text[self._at : end]
        self._at = end + 1
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):
            self._fail(f"undefined character name {name!r}", start)

    def _checked(self, code: int, start: int) -> int:
        if code >= 0x110000:
            self._fail(f"U+{code:X} is no code point", start)
        return code

    def _class(self) -> CodeSet:
        start = self._at
        self._at += 1
        negated = self._accept("^")
        members: list[CodeSet] = []
        first = self._at
        while True:
            if self._at >= len(self._text):
                self._fail("unterminated character class", start)
            if self._peek() == "]" and (self._at > first or not self._keeps_first_bracket()):
                self._at += 1
                break
            members.append(self._class_item())
        codes = self._folded(union(*members))
        return complement(codes) if negated else codes

    def _keeps_first_bracket(self) -> bool:
        """A `]` that comes first is a member."""
        return True

    def _class_item(self) -> CodeSet:
        start = self._at
        low = self._class_atom()
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return low
        self._at += 1
        high = self._class_atom()
        first, last = _single(low), _single(high)
        if first is None or last is None:
            return self._bad_range(low, high, start)
        if last < first:
            self._fail(f"bad character range {self._text[start : self._at]}", start)
        return normalised([(first, last + 1)])

    def _bad_range(self, low: CodeSet, high: CodeSet, start: int) -> CodeSet:
        self._fail(f"bad character range {self._text[start : self._at]}", start)

    def _class_atom(self) -> CodeSet:
        char = self._text[self._at]
        if char != "\\":
            self._at += 1
            return ((ord(char), ord(char) + 1),)
        if self._at + 1 >= len(self._text):
            self._fail("the pattern ends in a backslash")
        if self._text[self._at + 1] == "b":
            self._at += 2
            return ((8, 9),)
        category = self._category(self._text[self._at + 1])
        if category is not None:
            self._at += 2
            return category
        code = self._escaped_code()
        return ((code, code + 1),)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _accept(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _fail(self, reason: str, position: int | None = None) -> NoReturn:
        at = self._at if position is None else position
        raise ConstraintError(f"pattern {_shown(self._text)}: {reason}", pointer=f"position {at}")


def _single(codes: CodeSet) -> int | None:
    return codes[0][0] if len(codes) == 1 and codes[0][1] == codes[0][0] + 1 else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
