"""ECMA-262 patterns with the `u` flag, as JSON Schema's `pattern` and `patternProperties` have them.

Differences from Python's syntax: `\\d` and `\\w` are ASCII and `\\s` is Unicode white space; `.` stops at four line
terminators; `$` is the very end; there are no flags; `[]` is empty; `\\u{…}`, `\\cX` and `\\p{…}` exist. An
escaped punctuation mark that the `u` flag would forbid (`\\-`, `\\_`, `\\@` …) is taken as itself: no other reading
exists, and published schemas are full of them.
"""

from __future__ import annotations

from forktree.backend.grammar.codepoints import (
    ASCII_DIGITS,
    ASCII_WORD,
    ECMA_SPACE,
    CodeSet,
    complement,
    union,
)
from forktree.backend.grammar.regex_properties import property_set
from forktree.backend.grammar.regex_syntax import PythonParser
from forktree.backend.grammar.regex_tree import AT_END, AT_START, Assertion, Syntax, no_word_boundary, word_boundary

_LINE_ENDS: CodeSet = ((10, 11), (13, 14), (0x2028, 0x202A))
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}


def parse_ecma(pattern: str) -> Syntax:
    """The syntax of an ECMA-262 pattern.

    Raises:
        ConstraintError: bad syntax, or a construct that no automaton has; `.pointer` is the position.
    """
    return EcmaParser(pattern).parse()


class EcmaParser(PythonParser):
    """The Python parser with ECMA's escapes, classes and groups."""

    def _read_global_flags(self) -> None:
        return

    def _dot(self) -> CodeSet:
        return complement(_LINE_ENDS)

    def _line_start(self) -> Syntax:
        return AT_START

    def _line_end(self) -> Syntax:
        return AT_END

    def _allows_counts(self, low: str, comma: str, high: str) -> bool:
        return bool(low)

    def _has_comments(self) -> bool:
        return False

    def _read_prefix(self, start: int) -> None:
        if self._text.startswith("<", self._at) and self._text[self._at + 1 : self._at + 2] not in ("=", "!"):
            self._at += 1
            self._read_name(start)
        elif self._peek() in ("=", "!", "<", ">"):
            super()._read_prefix(start)
        elif not self._accept(":"):
            self._fail("unknown group: ECMA-262 has (?:…), (?<name>…) and look-around", start)

    def _assertion_escape(self, letter: str) -> Assertion | None:
        match letter:
            case "b":
                return word_boundary(ASCII_WORD)
            case "B":
                return no_word_boundary(ASCII_WORD)
        return None

    def _is_octal(self) -> bool:
        return False

    def _keeps_first_bracket(self) -> bool:
        return False

    def _bad_range(self, low: CodeSet, high: CodeSet, start: int) -> CodeSet:
        return union(low, high, ((0x2D, 0x2E),))  # a class at either side: the hyphen is itself

    def _category(self, letter: str) -> CodeSet | None:
        match letter:
            case "d" | "D":
                codes = ASCII_DIGITS
            case "w" | "W":
                codes = ASCII_WORD
            case "s" | "S":
                codes = ECMA_SPACE
            case "p" | "P":
                codes = self._property()
            case _:
                return None
        return complement(codes) if letter.isupper() else codes

    def _property(self) -> CodeSet:
        """`\\p{…}`; leaves the position so that the caller's step of two lands behind it."""
        start = self._at
        end = self._text.find("}", start)
        if self._text[start + 2 : start + 3] != "{" or end < 0:
            self._fail("expected {…} after \\p", start)
        name = self._text[start + 3 : end]
        codes = property_set(name)
        if codes is None:
            self._fail(f"unknown Unicode property {name!r}: general categories, ASCII and Any are known", start)
        self._at = end - 1
        return codes

    def _escaped_code(self) -> int:
        start = self._at
        letter = self._text[start + 1]
        self._at += 2
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "0" and not self._peek().isdigit():
            return 0
        if letter == "x":
            return self._hex(2, start)
        if letter == "u":
            return self._unicode_escape(start)
        if letter == "c" and self._peek().isascii() and self._peek().isalpha():
            self._at += 1
            return ord(self._text[self._at - 1]) % 32
        if letter.isascii() and letter.isalnum():
            self._fail(f"bad escape \\{letter}: ECMA-262 gives it no meaning", start)
        return ord(letter)

    def _unicode_escape(self, start: int) -> int:
        if self._accept("{"):
            end = self._text.find("}", self._at)
            if end < 0:
                self._fail("unterminated \\u{…}", start)
            code = self._hex(end - self._at, start) if end > self._at else self._fail("empty \\u{}", start)
            self._at = end + 1
            return self._checked(code, start)
        code = self._hex(4, start)
        if 0xD800 <= code < 0xDC00 and self._text.startswith("\\u", self._at):
            at = self._at
            self._at += 2
            low = self._hex(4, start)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00)
            self._at = at
        return code
