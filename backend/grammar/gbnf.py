"""GBNF, the notation of llama.cpp's grammars, written as lark's: token by token, with every character escaped."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from forktree.lang.errors import ConstraintError

MAX_GBNF = 100_000
_TOKEN = re.compile(
    r"(?P<blank>\s+|#[^\n]*)"
    r"|(?P<head>[A-Za-z0-9_][A-Za-z0-9_-]*)\s*::="
    r"|(?P<name>[A-Za-z0-9_][A-Za-z0-9_-]*)"
    r'|"(?P<text>(?:\\.|[^"\\])*)"'
    r"|\[(?P<class>\^?(?:\\.|[^\]\\])*)\]"
    r"|\{(?P<counts>\s*\d+\s*(?:,\s*\d*\s*)?)\}"
    r"|(?P<mark>[|()*+?.])",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_UNIT = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)|.", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}


def lark_from_gbnf(text: str) -> tuple[str, str]:
    """The same grammar in lark's notation, and the name of its `root`.

    Raises:
        ConstraintError: it is not GBNF; `.pointer` is the line and column.
    """
    if len(text) > MAX_GBNF:
        raise ConstraintError(f"the grammar has {len(text)} characters, the limit is {MAX_GBNF}")
    translation = _Translation(text)
    translation.run()
    if "root" not in translation.heads:
        raise ConstraintError("a GBNF grammar begins with the rule `root`, and there is none")
    return translation.written(), translation.rule("root")


@dataclass(slots=True)
class _Translation:
    """`items` are the parts of the alternatives in hand; `groups` says where each open group began in them."""

    text: str
    heads: set[str] = field(default_factory=set)
    _names: dict[str, str] = field(default_factory=dict)
    _rules: list[tuple[str, list[str]]] = field(default_factory=list)
    _groups: list[int] = field(default_factory=list)

    def run(self) -> None:
        at = 0
        while at < len(self.text):
            token = _TOKEN.match(self.text, at)
            if token is None:
                self._fail(f"{self.text[at : at + 10]!r} is not GBNF that can be honoured", at)
            self._take(token, at)
            at = token.end()
        self._close(at)

    def written(self) -> str:
        return "".join(f"{name}: {' '.join(items)}\n" for name, items in self._rules)

    def rule(self, name: str) -> str:
        """lark's rules are lower case, without dashes; numbered, so that no two names meet."""
        if name not in self._names:
            plain = re.sub(r"[^a-z0-9_]", "_", name.lower())
            self._names[name] = f"r{len(self._names)}_{plain}"
        return self._names[name]

    def _take(self, token: re.Match[str], at: int) -> None:
        if token["blank"]:
            return
        if token["head"]:
            self._close(at)
            if token["head"] in self.heads:
                self._fail(f"the rule {token['head']} is defined twice", at)
            self.heads.add(token["head"])
            self._rules.append((self.rule(token["head"]), []))
            return
        if not self._rules:
            self._fail("a grammar begins with a rule: `root ::= …`", at)
        items = self._rules[-1][1]
        match token.lastgroup:
            case "name":
                items.append(self.rule(token["name"]))
            case "text":
                items.append(f'"{_escaped(_value(token["text"]))}"' if token["text"] else "( )")
            case "class":
                items.append(self._char_class(token["class"], at))
            case "counts":
                self._quantify(token["counts"].replace(" ", ""), at)
            case _:
                self._mark(token["mark"], items, at)

    def _mark(self, mark: str, items: list[str], at: int) -> None:
        match mark:
            case "(":
                self._groups.append(len(items))
                items.append("(")
            case ")":
                if not self._groups:
                    self._fail("unbalanced parenthesis", at)
                start = self._groups.pop()
                items[start:] = [" ".join([*items[start:], ")"])]
            case "|":
                items.append("|")
            case ".":
                items.append("/./s")
            case _:
                self._quantify(mark, at)

    def _quantify(self, counts: str, at: int) -> None:
        items = self._rules[-1][1]
        if not items or items[-1] in ("|", "("):
            self._fail("nothing to repeat", at)
        body = items[-1]
        if counts in ("*", "+", "?"):
            items[-1] = f"({body}{counts})"
            return
        low, comma, high = counts.partition(",")
        if len(body) > MAX_GBNF:
            self._fail(f"written out, this is longer than {MAX_GBNF} characters", at)
        if comma and not high:
            items[-1] = f"({body}~{low} {body}*)"
        else:
            items[-1] = f"({body}~{low}..{high or low})"

    def _char_class(self, body: str, at: int) -> str:
        negated = "^" if body.startswith("^") else ""
        units = [_value(unit) for unit in _UNIT.findall(body[len(negated) :])]
        raw = _UNIT.findall(body[len(negated) :])
        if not units:
            self._fail("an empty character class", at)
        last = len(units) - 1
        parts = ["-" if raw[i] == "-" and 0 < i < last else _escaped(unit) for i, unit in enumerate(units)]
        return f"/[{negated}{''.join(parts)}]/"

    def _close(self, at: int) -> None:
        if self._groups:
            self._fail("a group is never closed", at)
        if self._rules and not self._rules[-1][1]:
            self._fail(f"the rule before it is empty: {self._rules[-1][0]}", at)

    def _fail(self, reason: str, at: int) -> NoReturn:
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        raise ConstraintError(reason, pointer=f"line {line} column {column}")


def _value(text: str) -> str:
    def value(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        return chr(int(code, 16)) if code else _CONTROLS.get(found[4], found[4])

    return _ESCAPE.sub(value, text)


def _escaped(text: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else f"\\U{ord(char):08x}" for char in text)
