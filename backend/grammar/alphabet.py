"""Vocabularies that lack bytes: a constraint cut down to what their tokens can spell.

Real byte-level vocabularies lack a few: control characters and the first bytes of rare scripts. Where every byte
that occurs in a token is also a token of its own, tokens can spell exactly the texts over those bytes. So a
language of plain characters loses the characters that cannot be spelled. JSON needs no cut: every string in it can
be spelled in ASCII. Any other vocabulary is checked token by token (`reach`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.codepoints import CodeSet, intersect, normalised
from forktree.backend.grammar.terms import Kind, Term, Terms
from forktree.backend.grammar.work import COMPILE_STEPS
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.errors import ConstraintError

_CONTINUATIONS = frozenset(range(0x80, 0xC0))
_LEADS = frozenset(range(0xC2, 0xF5))
_TEXT_BYTES = frozenset(range(0x80)) | _CONTINUATIONS | _LEADS
_JSON_BYTES = frozenset(range(0x20, 0x7F)) | _CONTINUATIONS


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The bytes that occur in tokens; `is_spelled`: each of them is a token, and so is every continuation byte."""

    byte_set: frozenset[int]
    is_spelled: bool

    def spells(self, automaton: Automaton) -> bool:
        """Whether tokens can finish whatever the automaton can, as it is."""
        if not self.is_spelled:
            return False
        is_json = automaton.respelled is None and _has_references(automaton.start)
        return self.byte_set >= (_JSON_BYTES if is_json else _TEXT_BYTES)

    def cut(self, automaton: Automaton) -> Automaton | None:
        """The automaton over the texts that can be spelled; None where it has to be checked token by token.

        Raises:
            ConstraintError: none can.
        """
        if not self.is_spelled:
            return None
        if automaton.respelled is not None:
            return automaton.respelled(self)
        if _has_references(automaton.start):
            return None
        terms = Terms()
        with terms.work.limited(COMPILE_STEPS):
            start = cut_term(terms, self, automaton.start)
            return Automaton(terms, start, refusal="this tokenizer's tokens cannot spell any legal output")

    def codes(self) -> CodeSet:
        """The characters whose bytes are all there."""
        ranges = [(byte, byte + 1) for byte in self.byte_set if byte < 0x80]
        for lead in self.byte_set & _LEADS:
            more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
            size = 64**more
            low = (lead & (0x3F >> more)) * size
            ranges.append((max(low, {1: 0x80, 2: 0x800, 3: 0x10000}[more]), min(low + size, 0x110000)))
        return normalised(ranges)


@lru_cache(maxsize=8)
def alphabet_of(vocabulary: Vocabulary) -> Alphabet:
    """The alphabet of a vocabulary's tokens."""
    used: set[int] = set()
    single: set[int] = set()
    for token, data in enumerate(vocabulary.token_bytes):
        if data and token not in vocabulary.markup:
            used.update(data)
            if len(data) == 1:
                single.update(data)
    return Alphabet(frozenset(used), used <= single and single >= _CONTINUATIONS)


def cut_term(terms: Terms, alphabet: Alphabet, term: Term) -> Term:
    """A term without references, in the arena `terms`, cut down to the texts that an alphabet spells."""
    return _Cut(terms, alphabet.codes(), alphabet.byte_set).of(term)


def _has_references(term: Term) -> bool:
    """Whether the term is JSON's or a grammar's: only there do references occur."""
    seen = {term}
    pending = [term]
    while pending:
        one = pending.pop()
        if one.kind is Kind.REF:
            return True
        for part in one.args:
            if isinstance(part, Term) and part not in seen:
                seen.add(part)
                pending.append(part)
    return False


class _Cut:
    """Rebuilds a term in another arena without the characters that cannot be spelled."""

    def __init__(self, terms: Terms, codes: CodeSet, byte_set: frozenset[int]) -> None:
        self._terms = terms
        self._codes = codes
        self._bytes = byte_set
        self._memo: dict[Term, Term] = {}

    def of(self, term: Term) -> Term:
        found = self._memo.get(term)
        if found is None:
            found = self._memo[term] = self._made(term)
        return found

    def _made(self, term: Term) -> Term:
        terms = self._terms
        match term.kind:
            case Kind.EMPTY:
                return terms.empty
            case Kind.EPSILON:
                return terms.epsilon
            case Kind.ATOM:
                return self._atom(term)
            case Kind.CAT:
                return self._spine(term)
            case Kind.ALT:
                return terms.alt(map(self.of, term.args))
            case Kind.AND:
                return terms.both(map(self.of, term.args))
            case Kind.NOT:
                return terms.without(self.of(term.args[0]))
            case Kind.REPEAT:
                body, low, high = term.args
                return terms.repeat(self.of(body), low, high)
            case Kind.MACHINE:
                return terms.machine(*term.args)
        raise ConstraintError(f"cannot cut a {term.kind.name} down to a vocabulary")

    def _spine(self, term: Term) -> Term:
        heads = []
        while term.kind is Kind.CAT:
            heads.append(self.of(term.args[0]))
            term = term.args[1]
        return self._terms.cats([*heads, self.of(term)])

    def _atom(self, term: Term) -> Term:
        match term.args[0]:
            case ("start", writing, codes):
                return self._terms.char(intersect(codes, self._codes), writing)
            case ("text", bytes(data)) if not self._bytes >= set(data):
                return self._terms.empty
            case ("byte", int(mask)):
                return self._terms.byte(mask & sum(1 << byte for byte in self._bytes))
        return self._terms.atom(term.args[0])
