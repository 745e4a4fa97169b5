"""Python `re` patterns as syntax trees over sets of code points.

Whatever cannot be a finite automaton (back-references, look-around, atomic groups, conditionals, possessive
repeats) is refused with its position. A lazy quantifier describes the same language as a greedy one.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from forktree.backend.grammar.codepoints import ANY, CodeSet, complement
from forktree.backend.grammar.regex_sets import SetReader
from forktree.backend.grammar.regex_tree import (
    AT_END,
    AT_END_OR_LAST_NEWLINE,
    AT_START,
    After,
    Assertion,
    Before,
    Chars,
    Concat,
    Repeat,
    Syntax,
    Union,
    no_word_boundary,
    word_boundary,
)

MAX_DEPTH = 80
MAX_PATTERN = 200_000
MAX_REPEAT = 4_294_967_294  # as in `re`
_NEWLINE: CodeSet = ((10, 11),)
_FLAG_NAMES = {"a": "ascii_only", "i": "ignore_case", "s": "dot_all", "m": "multiline", "x": "verbose"}


def parse_python(pattern: str) -> Syntax:
    """The syntax of a Python pattern.

    Raises:
        ConstraintError: bad syntax, or a construct that no automaton has; `.pointer` is the position.
    """
    return PythonParser(pattern).parse()


class PythonParser(SetReader):
    """Recursive descent over one pattern."""

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self._depth = 0
        self._names: set[str] = set()

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
        while True:
            self._skip_ignored()
            if self._at >= len(self._text) or self._peek() in "|)":
                return parts[0] if len(parts) == 1 else Concat(tuple(parts))
            start = self._at
            parts.append(self._quantified(self._atom(), start))

    def _quantified(self, body: Syntax, start: int) -> Syntax:
        self._skip_ignored()
        at = self._at
        counts = self._counts()
        if counts is None:
            return body
        if isinstance(body, Assertion) and self._text[start] != "(":
            self._fail("nothing to repeat", at)
        low, high = counts
        if self._accept("+"):
            self._fail("possessive repeats are not supported: drop the `+`", self._at - 1)
        self._accept("?")
        self._skip_ignored()
        again = self._at
        if self._counts() is not None:
            self._fail("multiple repeat", again)
        return Repeat(body, low, high, at)

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
        if max(least, most or 0) > MAX_REPEAT:
            self._fail("the repetition number is too large", start)
        if most is not None and most < least:
            self._fail(f"the repeat {{{inside}}} has its minimum above its maximum", start)
        return least, most

    def _allows_counts(self, low: str, comma: str, high: str) -> bool:
        return True

    def _atom(self) -> Syntax:
        start, char = self._at, self._text[self._at]
        match char:
            case "(":
                return self._group()
            case "[":
                return Chars(self._class())
            case "\\":
                return self._escape()
            case "*" | "+" | "?" | "{" if self._counts() is not None:
                self._fail("nothing to repeat", start)
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

    def _dot(self) -> CodeSet:
        return ANY if self._flags.dot_all else complement(_NEWLINE)

    def _line_start(self) -> Syntax:
        return Assertion(((Before(codes=_NEWLINE), After()),)) if self._flags.multiline else AT_START

    def _line_end(self) -> Syntax:
        if self._flags.multiline:
            return Assertion(((Before(), After(codes=_NEWLINE)),))
        return AT_END_OR_LAST_NEWLINE

    # -- groups ---------------------------------------------------------------------------------------

    def _group(self) -> Syntax:
        start = self._at
        self._at += 1
        outer = self._flags
        if self._accept("?"):
            self._read_prefix(start)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"groups nest deeper than {MAX_DEPTH}", start)
        body = self._alternation()
        self._depth -= 1
        if not self._accept(")"):
            self._fail("missing ), unterminated group", start)
        self._flags = outer
        return body

    def _read_prefix(self, start: int) -> None:
        """Reads what follows `(?`."""
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
        if self._accept("P<"):
            self._read_name(start)
        else:
            self._read_flags(start)

    def _read_name(self, start: int) -> None:
        end = self._text.find(">", self._at)
        name = self._text[self._at : end] if end >= 0 else ""
        if not name.isidentifier():
            self._fail(f"bad group name {name!r}", start)
        if name in self._names:
            self._fail(f"the group name {name!r} is used twice", start)
        self._names.add(name)
        self._at = end + 1

    def _read_flags(self, start: int) -> None:
        end = self._at
        while end < len(self._text) and (self._text[end].isalpha() or self._text[end] == "-"):
            end += 1
        letters = self._text[self._at : end]
        if self._text[end : end + 1] != ":":
            self._fail("unknown extension, or flags that are not at the start of the pattern", start)
        on, dash, off = letters.partition("-")
        if dash and not off:
            self._fail("missing flag after the hyphen", start)
        if set(on) & set(off):
            self._fail(f"a flag of {letters!r} is turned on and off", start)
        self._set_flags(on, value=True, start=start)
        self._set_flags(off, value=False, start=start)
        self._at = end + 1

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
        if {"a", "u"} <= set(letters):
            self._fail("the flags a and u exclude each other", start)
        for letter in letters:
            if not value and letter in "au":
                self._fail(f"flag {letter!r} cannot be turned off", start)
            if letter == "u":
                self._flags = replace(self._flags, ascii_only=False)
            elif letter in _FLAG_NAMES:
                self._flags = replace(self._flags, **{_FLAG_NAMES[letter]: value})
            else:
                self._fail(f"flag {letter!r} is not supported: use any of a, i, m, s, u, x", start)

    def _skip_ignored(self) -> None:
        """Comments, and with the flag x also blanks."""
        while self._at < len(self._text):
            if self._has_comments() and self._text.startswith("(?#", self._at):
                end = self._text.find(")", self._at)
                if end < 0:
                    self._fail("missing ), unterminated comment")
                self._at = end + 1
            elif self._flags.verbose and self._peek() in " \t\n\r\f\v":
                self._at += 1
            elif self._flags.verbose and self._peek() == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end + 1
            else:
                return

    def _has_comments(self) -> bool:
        """`(?#…)` is a comment."""
        return True

    # -- escapes --------------------------------------------------------------------------------------

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
