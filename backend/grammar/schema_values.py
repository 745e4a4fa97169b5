"""JSON values as data and all their spellings: two texts mean one value when each is a spelling of the other's.

value     ("text", str) · ("number", Decimal) · ("word", "true" | "false" | "null")
          ("array", values) · ("object", members sorted by name)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from forktree.backend.grammar.number_sets import Numbers
from forktree.backend.grammar.terms import Term, Terms

Value = tuple[str, Any]


def value_of(data: bytes) -> Value:
    """The value that a JSON text means."""
    return _value(json.loads(data, parse_float=Decimal, parse_int=Decimal))


def _value(data: Any) -> Value:
    if data is None or isinstance(data, bool):
        return ("word", json.dumps(data))
    if isinstance(data, Decimal):
        return ("number", data)
    if isinstance(data, str):
        return ("text", data)
    if isinstance(data, list):
        return ("array", tuple(map(_value, data)))
    return ("object", tuple(sorted((name, _value(one)) for name, one in data.items())))


class ValueSpeller:
    """Terms of every way to write a value: blanks, escapes, spellings of numbers, the members in any order."""

    def __init__(
        self, terms: Terms, blanks: Term, escaped_char: Callable[[str], Term], numbers: Callable[[Numbers], Term]
    ) -> None:
        self._terms = terms
        self._blanks = blanks
        self._escaped_char = escaped_char
        self._numbers = numbers

    def spelled(self, value: Value) -> Term:
        kind, what = value
        match kind:
            case "text":
                return self._text(what)
            case "number":
                return self._numbers(Numbers(low=what, high=what))
            case "array":
                return self._between("[", [self.spelled(one) for one in what], "]")
            case "object":
                return self._terms.cat(self._terms.literal("{"), self._members(what, is_first=True))
        return self._terms.literal(what)

    def _text(self, text: str) -> Term:
        quote = self._terms.literal('"')
        return self._terms.cats([quote, *map(self._escaped_char, text), quote])

    def _between(self, first: str, parts: list[Term], last: str) -> Term:
        literal, blanks = self._terms.literal, self._blanks
        found = [literal(first), blanks]
        for at, part in enumerate(parts):
            found += [blanks, literal(","), blanks, part] if at else [part]
        return self._terms.cats([*found, blanks, literal(last)] if parts else [*found, literal(last)])

    def _members(self, left: tuple[tuple[str, Value], ...], *, is_first: bool) -> Term:
        return self._terms.ref(("members", left, is_first))

    def members(self, left: tuple[tuple[str, Value], ...], is_first: bool) -> Term:
        """What may follow while these members are left: one of them, or the end."""
        literal, blanks = self._terms.literal, self._blanks
        if not left:
            return self._terms.cat(blanks, literal("}"))
        start = [blanks] if is_first else [blanks, literal(","), blanks]
        options = []
        for at, (name, value) in enumerate(left):
            rest = self._members(left[:at] + left[at + 1 :], is_first=False)
            pair = [self._text(name), blanks, literal(":"), blanks, self.spelled(value)]
            options.append(self._terms.cats([*start, *pair, rest]))
        return self._terms.alt(options)
