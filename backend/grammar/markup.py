"""Markup: fixed text whose special-token spellings are those tokens, and the pieces that are put together with it.

A special token of a vocabulary is spelled in bytes as its text between two marks, which no text holds (`marked`). So
one automaton over bytes reaches it exactly where markup says, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from forktree.backend.grammar.alphabet import Alphabet
from forktree.backend.grammar.codepoints import ANY, CodeSet, contains, intersect, normalised
from forktree.backend.grammar.terms import Term, Terms
from forktree.backend.grammar.triggers import Symbols, Triggers
from forktree.backend.vocabulary import MARK, Vocabulary
from forktree.lang.constraints import ConstraintSpec

_SPECIAL = "\ud800"  # begins the symbol of a special token: no text has it


@dataclass(frozen=True, slots=True)
class Markup:
    """Exactly this text, in special tokens where the vocabulary has them."""

    text: str


@dataclass(frozen=True, slots=True)
class Until:
    """Text up to the first `end`, which is markup and part of it; with no `end`, any text."""

    end: str = ""


@dataclass(frozen=True, slots=True)
class Concat:
    """One after another."""

    parts: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Any of them."""

    options: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """`low` to `high` times (None: no bound), at least once, with markup between."""

    body: Spec
    separator: str = ""
    low: int = 1
    high: int | None = 1


Composite = Markup | Until | Concat | OneOf | Repeated
Spec = ConstraintSpec | Composite
Build = Callable[[Terms, Spec, "Spelling"], Term]


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a vocabulary writes: `markup` are the spellings of its special tokens, `alphabet` the bytes that it has
    where it lacks some."""

    markup: frozenset[str] = frozenset()
    alphabet: Alphabet | None = None

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Spelling:
        """That of a vocabulary that has every byte."""
        return cls(frozenset(text for token, text in vocabulary.markup.items() if token not in vocabulary.eos_ids))

    @property
    def codes(self) -> CodeSet:
        """The characters of text."""
        return ANY if self.alphabet is None else self.alphabet.codes()

    def symbols(self, text: str) -> Symbols:
        """Markup as characters and special tokens."""
        longest_first = sorted(self.markup, key=lambda one: (-len(one), one))
        pattern = f"({'|'.join(map(re.escape, longest_first))})" if longest_first else "(?!)"
        found: list[str] = []
        for part in re.split(pattern, text):
            found += [_SPECIAL + part] if part in self.markup else part
        return tuple(found)

    def written(self, terms: Terms, symbols: Symbols) -> Term:
        """Exactly these symbols; nothing where the vocabulary cannot spell one of them."""
        can = all(is_special(symbol) or contains(self.codes, ord(symbol)) for symbol in symbols)
        return terms.literal(bytes_of(symbols)) if can else terms.empty

    def plain(self, terms: Terms, triggers: Triggers, node: int) -> Term:
        """One character that leads back to node 0."""
        led = sorted(ord(symbol) for symbol in triggers.symbols(node) if not is_special(symbol))
        edges = [-1, *led, 0x110000]
        gaps = normalised([(low + 1, high) for low, high in pairwise(edges) if low + 1 < high])
        return terms.char(intersect(self.codes, gaps))


def is_special(symbol: str) -> bool:
    """Whether it is a special token, and no character."""
    return symbol.startswith(_SPECIAL)


def bytes_of(symbols: Symbols) -> bytes:
    """Symbols as a marked vocabulary spells them."""
    return b"".join(MARK + one[1:].encode() + MARK if is_special(one) else one.encode() for one in symbols)


def composite_term(terms: Terms, spec: Composite, spelling: Spelling, build: Build) -> Term:
    """The term of a composite; `build` makes those of its parts."""
    match spec:
        case Markup(text):
            return spelling.written(terms, spelling.symbols(text))
        case Until(end):
            return (
                UntilWriter(terms, spelling, end).start() if end else terms.repeat(terms.char(spelling.codes), 0, None)
            )
        case Concat(parts):
            return terms.cats([build(terms, part, spelling) for part in parts])
        case OneOf(options):
            return terms.alt([build(terms, option, spelling) for option in options])
        case Repeated(body, separator, low, high):
            one = build(terms, body, spelling)
            again = terms.cat(spelling.written(terms, spelling.symbols(separator)), one)
            return terms.cat(one, terms.repeat(again, max(low - 1, 0), None if high is None else high - 1))


class UntilWriter:
    """Text up to the first end: a node of `Triggers` is how much of the end the text ends with.

    Where the end is a special token, the text may not spell it either.
    """

    def __init__(self, arena: Terms, spelling: Spelling, end: str) -> None:
        self.terms = arena.scoped(self._resolve)
        self._spelling = spelling
        symbols = spelling.symbols(end)
        self._triggers = Triggers(list(dict.fromkeys([symbols, tuple(end)])))

    def start(self) -> Term:
        return self._from(0)

    def _from(self, node: int) -> Term:
        """Characters that begin no end are a run of their own, so that dense masks are quick."""
        reference = self.terms.ref(node)
        if node:
            return reference
        return self.terms.cat(
            self.terms.repeat(self._spelling.plain(self.terms, self._triggers, 0), 0, None), reference
        )

    def _resolve(self, key: Hashable) -> Term:
        node: Any = key
        triggers, terms = self._triggers, self.terms
        options = [] if node == 0 else [terms.cat(self._spelling.plain(terms, triggers, node), self._from(0))]
        for symbol in triggers.symbols(node):
            after = triggers.after(node, symbol)
            found = triggers.found(after)
            following = terms.epsilon if 0 in found else terms.empty if found else self._from(after)
            if not is_special(symbol) or after:
                options.append(terms.cat(self._spelling.written(terms, (symbol,)), following))
        return terms.alt(options)
