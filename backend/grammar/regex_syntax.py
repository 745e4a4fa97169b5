"""Python `re` patterns as syntax trees over sets of code points.

Whatever cannot be a finite automaton (back-references, look-around, atomic groups, conditionals, possessive
repeats) is refused with its position. A lazy quantifier describes the same language as a greedy one.

Assertions of one position (`^`, `$`, `\\A`, `\\Z`, `\\b`, `\\B`) are kept as what they demand of the text on
either side: it may be empty, or its nearest character lies in a set.
"""

from __future__ import annotations

import sys
import unicodedata
from dataclasses import dataclass, replace
from typing import NoReturn

from forktree.backend.grammar.codepoints import (
    ANY,
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

MAX_DEPTH = 80
MAX_PATTERN = 200_000


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
    body: Syntax
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Assertion:
    """Holds where one of the alternatives does."""

    alternatives: tuple[tuple[Before, After], ...]


Syntax = Chars | Concat | Union | Repeat | Assertion

AT_START = Assertion(((Before(codes=()), After()),))
AT_END = Assertion(((Before(), After(codes=())),))
AT_END_OR_LAST_NEWLINE = Assertion(((Before(), After(codes=(), newline_end=True)),))
_NEWLINE: CodeSet = ((10, 11),)


def word_boundary(word: CodeSet) -> Assertion:
    """`\\b`: a word character on exactly one side."""
    other = complement(word)
    return Assertion(((Before(False, word), After(True, other)), (Before(True, other), After(False, word))))


def no_word_boundary(word: CodeSet) -> Assertion:
    other = complement(word)
    return Assertion(((Before(False, word), After(False, word)), (Before(True, other), After(True, other))))


@dataclass(frozen=True, slots=True)
class Flags:
    ascii_only: bool = False
    ignore_case: bool = False
    dot_all: bool = False
    multiline: bool = False
    verbose: bool = False


_FLAG_NAMES = {"a": "ascii_only", "i": "ignore_case", "s": "dot_all", "m": "multiline", "x": "verbose"}
_SIMPLE_ESCAPES = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7}


def parse_python(pattern: str) -> Syntax:
    """The syntax of a Python pattern.

    Raises:
        ConstraintError: bad syntax, or a construct that no automaton has; `.pointer` is the position.
    """
    return PythonParser(pattern).parse()


class PythonParser:
    """Recursive descent over one pattern. `_flags` are those in force at the position."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._flags = Flags()

    def parse(self) -> Syntax:
        if len(self._text) > MAX_PATTERN:
            self._fail(f"the pattern has {len(self._text)} characters, the limit is {MAX_PATTERN}", 0)
        self._read_global_flags()
        syntax = self._alternation()
        if self._at < len(self._text):
            self._fail("unbalanced parenthesis")
        return syntax

    # -- structure ------------------------------------------------------------------------------------

    def _alternation(self) -> Syntax:
        options = [self._sequence()]
        while self._accept("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Union(tuple(options))

    def _sequence(self) -> Syntax:
        parts: list[Syntax] = []
        while self._at < len(self._text) and self._peek() not in "|)":
            if self._flags.verbose and self._skip_verbose():
                continue
            start = self._at
            part = self._atom()
            if part is not None:
                parts.append(self._quantified(part, start))
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def _quantified(self, body: Syntax, start: int) -> Syntax:
        while self._flags.verbose and self._skip_verbose():
            pass
        counts = self._counts()
        if counts is None:
            return body
        if isinstance(body, Assertion) and self._text[start] != "(":
            self._fail("nothing to repeat", self._at - 1)
        low, high = counts
        if self._accept("+"):
            self._fail("possessive repeats are not supported: drop the `+`", self._at - 1)
        self._accept("?")
        if self._peek() in ("*", "+", "?") and self._peek():
            self._fail("multiple repeat")
        return Repeat(body, low, high)

    def _counts(self) -> tuple[int, int | None] | None:
        char = self._peek()
        if char and char in "*+?":
            self._at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        if char != "{":
            return None
        return self._braced_counts()

    def _braced_counts(self) -> tuple[int, int | None] | None:
        """`{m}`, `{m,}`, `{,n}`, `{m,n}`; anything else is a literal brace."""
        end = self._text.find("}", self._at)
        inside = self._text[self._at + 1 : end] if end > 0 else ""
        low, comma, high = inside.partition(",")
        if not all(part == "" or (part.isascii() and part.isdigit()) for part in (low, high)):
            return None
        if not inside or (not low and not comma) or not self._allows_counts(low, comma, high):
            return None
        start, self._at = self._at, end + 1
        least = int(low) if low else 0
        most = (int(high) if high else None) if comma else least
        if most is not None and most < least:
            self._fail(f"the repeat {{{inside}}} has its minimum above its maximum", start)
        return least, most

    def _allows_counts(self, low: str, comma: str, high: str) -> bool:
        return True

    def _atom(self) -> Syntax | None:
        char = self._text[self._at]
        match char:
            case "(":
                return self._group()
            case "[":
                return Chars(self._class())
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                self._fail("nothing to repeat")
        self._at += 1
        match char:
            case ".":
                return Chars(self._dot())
            case "^":
                return self._line_start()
            case "$":
                return self._line_end()
        return self._literal(ord(char))

    def _literal(self, code: int) -> Syntax:
        if 0xD800 <= code < 0xE000:
            self._fail("a lone surrogate can never be written", self._at - 1)
        return Chars(self._folded(((code, code + 1),)))

    def _folded(self, codes: CodeSet) -> CodeSet:
        return ignoring_case(codes, ascii_only=self._flags.ascii_only) if self._flags.ignore_case else codes

    def _dot(self) -> CodeSet:
        return ANY if self._flags.dot_all else complement(_NEWLINE)

    def _line_start(self) -> Syntax:
        return Assertion(((Before(codes=_NEWLINE), After()),)) if self._flags.multiline else AT_START

    def _line_end(self) -> Syntax:
        if self._flags.multiline:
            return Assertion(((Before(), After(codes=_NEWLINE)),))
        return AT_END_OR_LAST_NEWLINE

    # -- groups ---------------------------------------------------------------------------------------

    def _group(self) -> Syntax | None:
        start = self._at
        self._at += 1
        outer = self._flags
        if self._accept("?") and self._group_prefix(start) is None:
            return None
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"groups nest deeper than {MAX_DEPTH}", start)
        body = self._alternation()
        self._depth -= 1
        if not self._accept(")"):
            self._fail("missing ), unterminated group", start)
        self._flags = outer
        return body

    def _group_prefix(self, start: int) -> str | None:
        """Reads what follows `(?`; None when the group is a comment and over."""
        for opening, name in (
            ("<=", "look-behind"),
            ("<!", "look-behind"),
            ("=", "look-ahead"),
            ("!", "look-ahead"),
            (">", "an atomic group"),
            ("(", "a conditional"),
            ("P=", "a back-reference"),
        ):
            if self._text.startswith(opening, self._at):
                self._fail(f"{name} is not supported: no automaton decides it; rewrite the pattern without it", start)
        if self._accept("#"):
            end = self._text.find(")", self._at)
            if end < 0:
                self._fail("missing ), unterminated comment", start)
            self._at = end + 1
            return None
        if self._accept("P<"):
            return self._group_name(start)
        return self._scoped_flags(start)

    def _group_name(self, start: int) -> str:
        end = self._text.find(">", self._at)
        name = self._text[self._at : end] if end >= 0 else ""
        if not name.isidentifier():
            self._fail(f"bad group name {name!r}", start)
        self._at = end + 1
        return name

    def _scoped_flags(self, start: int) -> str:
        end = self._at
        while end < len(self._text) and (self._text[end].isalpha() or self._text[end] == "-"):
            end += 1
        letters = self._text[self._at : end]
        if self._text[end : end + 1] != ":":
            self._fail("unknown extension, or flags that are not at the start of the pattern", start)
        on, _, off = letters.partition("-")
        self._set_flags(on, value=True, start=start)
        self._set_flags(off, value=False, start=start)
        self._at = end + 1
        return letters

    def _read_global_flags(self) -> None:
        while self._text.startswith("(?", self._at):
            end = self._at + 2
            while end < len(self._text) and self._text[end].isalpha():
                end += 1
            letters = self._text[self._at + 2 : end]
            if not letters or self._text[end : end + 1] != ")":
                return
            self._set_flags(letters, value=True, start=self._at)
            self._at = end + 1

    def _set_flags(self, letters: str, *, value: bool, start: int) -> None:
        for letter in letters:
            if not value and letter in "au":
                self._fail(f"flag {letter!r} cannot be turned off", start)
            if letter == "u":
                self._flags = replace(self._flags, ascii_only=False)
            elif letter in _FLAG_NAMES:
                self._flags = replace(self._flags, **{_FLAG_NAMES[letter]: value})
            else:
                self._fail(f"flag {letter!r} is not supported: use any of a, i, m, s, u, x", start)

    def _skip_verbose(self) -> bool:
        char = self._peek()
        if char and char in " \t\n\r\f\v":
            self._at += 1
            return True
        if char == "#":
            end = self._text.find("\n", self._at)
            self._at = len(self._text) if end < 0 else end + 1
            return True
        return False

    # -- escapes and classes --------------------------------------------------------------------------

    def _escape(self) -> Syntax:
        start = self._at
        letter = self._text[self._at + 1 : self._at + 2]
        if not letter:
            self._fail("the pattern ends in a backslash", start)
        assertion = self._assertion_escape(letter)
        if assertion is not None:
            self._at += 2
            return assertion
        if letter.isascii() and letter.isdigit() and letter != "0" and not self._is_octal():
            self._fail("a back-reference is not supported: no automaton decides it", start)
        codes = self._escaped_set()
        return Chars(codes)

    def _assertion_escape(self, letter: str) -> Assertion | None:
        match letter:
            case "b":
                return word_boundary(self._word())
            case "B":
                return self._no_boundary(self._word())
            case "A":
                return AT_START
            case "Z":
                return AT_END
        return None

    def _no_boundary(self, word: CodeSet) -> Assertion:
        """Before Python 3.14, `\\B` does not hold in the empty text."""
        holds = no_word_boundary(word)
        if sys.version_info >= (3, 14):
            return holds
        other = complement(word)
        inside, _ = holds.alternatives
        return Assertion(
            (inside, (Before(False, other), After(True, other)), (Before(True, other), After(False, other)))
        )

    def _is_octal(self) -> bool:
        digits = self._text[self._at + 1 : self._at + 4]
        return len(digits) == 3 and all(digit in "01234567" for digit in digits)

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
        return int(self._text[start + 1 : end], 8)

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

    # -- text -----------------------------------------------------------------------------------------

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
