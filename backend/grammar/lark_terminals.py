"""lark's terminals as terms: the text of a terminal's pattern, read as Python's `re` reads it.

A terminal with a lazy quantifier stands for its shortest matches: of its texts, those that have no shorter one of
them at their beginning (`/".*?"/` ends at the first quote). All others stand for every text that they match.
"""

from __future__ import annotations

import re
from typing import Any

from forktree.backend.grammar.lark_text import LarkGrammar
from forktree.backend.grammar.regex_syntax import parse_python
from forktree.backend.grammar.regex_terms import free_match
from forktree.backend.grammar.terms import Term, Terms
from forktree.lang.errors import ConstraintError

MAX_PATTERN = 100_000
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_CONTROLS = {"n": "\n", "f": "\f", "t": "\t", "r": "\r", "\\": "\\", '"': '"'}
# lark's way to write "up to the quote that no odd number of backslashes precedes" (`common.ESCAPED_STRING`)
_UP_TO_QUOTE = re.compile(
    r"""(?P<quote>\\?["'])(?:\(\?:)?\.\*\?\)?(?:\(\?:)?\(\?<!\\\\\)\(\\\\\\\\\)\*\?\)?(?P=quote)"""
)
_DOT_ALL = re.compile(r"\(\?[a-z]*s")
_LAZY = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<lazy>[*+?}]\?)", re.DOTALL)


class Terminals:
    """The terms of a grammar's terminals and of the literals in its rules."""

    def __init__(self, grammar: LarkGrammar, terms: Terms) -> None:
        self._trees = grammar.terminals
        self._terms = terms
        self._made: dict[str, Term] = {}

    def named(self, name: str) -> Term:
        """
        Raises:
            ConstraintError: it was only declared, or its pattern is refused; `.pointer` names the terminal.
        """
        if name not in self._made:
            tree = self._trees[name]
            where = f"terminal {name}"
            if tree is None:
                raise ConstraintError(f"{name} is only declared: give it a pattern", pointer=where)
            self._made[name] = self._term(_Pattern(where).of(tree), where)
        return self._made[name]

    def literal(self, tree: Any, where: str) -> Term:
        """A literal or a range inside a rule."""
        pattern = _Pattern(where).of(tree)
        if pattern not in self._made:
            self._made[pattern] = self._term(pattern, where)
        return self._made[pattern]

    def _term(self, pattern: str, where: str) -> Term:
        if not _DOT_ALL.search(pattern):
            pattern = _UP_TO_QUOTE.sub(_quoted, pattern)
        try:
            term = free_match(self._terms, parse_python(pattern))
        except ConstraintError as error:
            raise ConstraintError(str(error), pointer=where) from None
        except RecursionError:
            raise ConstraintError(f"the pattern {_shown(pattern)} nests too deep", pointer=where) from None
        if not any(found.group("lazy") for found in _LAZY.finditer(pattern)):
            return term
        longer = self._terms.cat(term, self._terms.repeat(self._terms.byte((1 << 256) - 1), 1, None))
        return self._terms.both((term, self._terms.without(longer)))


def _quoted(found: re.Match[str]) -> str:
    quote = found.group("quote")[-1]
    return rf"{quote}(?:[^{quote}\\\n]|\\.)*{quote}"


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 60 else pattern[:57] + "...")


class _Pattern:
    """The text of one terminal's pattern, bounded: terminals inside terminals are written out."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._length = 0

    def of(self, tree: Any) -> str:
        children = tree.children
        match tree.data:
            case "expansions":
                options = [self.of(child) for child in children]
                return options[0] if len(options) == 1 else "(?:" + "|".join(options) + ")"
            case "expansion":
                return "".join(self.of(child) for child in children)
            case "value":
                return self.of(children[0])
            case "maybe":
                return f"(?:{self.of(children[0])})?"
            case "expr":
                low, high = counts_of(children[1:], self._where)
                return f"(?:{self.of(children[0])}){{{low},{'' if high is None else high}}}"
            case "literal":
                return self._grown(literal_pattern(str(children[0]), self._where))
            case "range":
                return self._grown(self._range(*(string_value(str(child)[1:-1]) for child in children)))
            case "alias":
                raise ConstraintError("an alias (->) inside a terminal", pointer=self._where)
        raise ConstraintError(f"a terminal cannot hold a {tree.data}", pointer=self._where)

    def _grown(self, part: str) -> str:
        self._length += len(part)
        if self._length > MAX_PATTERN:
            raise ConstraintError(f"the pattern is longer than {MAX_PATTERN} characters", pointer=self._where)
        return part

    def _range(self, low: str, high: str) -> str:
        if len(low) != 1 or len(high) != 1 or low > high:
            raise ConstraintError(
                f'a range goes from one character to a higher one, not "{low}".."{high}"', pointer=self._where
            )
        return f"[\\U{ord(low):08x}-\\U{ord(high):08x}]"


def counts_of(words: list[Any], where: str) -> tuple[int, int | None]:
    """The bounds of `?`, `*`, `+`, `~n` and `~n..m`.

    Raises:
        ConstraintError: they are negative or in the wrong order.
    """
    operator = str(words[0])
    if operator != "~":
        return {"?": (0, 1), "*": (0, None), "+": (1, None)}[operator]
    low, high = int(words[1]), int(words[-1])
    if not 0 <= low <= high:
        raise ConstraintError(f"bad counts ~{low}..{high}: they must rise from 0 or more", pointer=where)
    return low, high


def literal_pattern(text: str, where: str) -> str:
    """The pattern of `"text"i` or of `/pattern/flags`.

    Raises:
        ConstraintError: it is empty, or has a flag that no automaton knows.
    """
    end = max(text.rfind('"'), text.rfind("/"))
    body, flags = text[1:end], set(text[end + 1 :]) - {"u"}
    if not body:
        raise ConstraintError(f"the literal {text} is empty: use `?` or an empty alternative", pointer=where)
    if "l" in flags:
        raise ConstraintError(f"the flag l of {text} depends on the machine's locale: drop it", pointer=where)
    pattern = re.escape(string_value(body)) if text[0] == '"' else body
    return f"(?{''.join(sorted(flags))}:{pattern})" if flags else pattern if text[0] == '"' else f"(?:{pattern})"


def string_value(body: str) -> str:
    """What stands between the quotes of a string, as lark reads it: an unknown escape keeps its backslash."""

    def value(found: re.Match[str]) -> str:
        escape = found.group(1)
        if len(escape) > 1:
            return chr(int(escape[1:], 16))
        return _CONTROLS.get(escape, "\\" + escape)

    return _ESCAPE.sub(value, body)
