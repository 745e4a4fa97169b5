"""Vocabularies that lack bytes, as real ones do."""

from __future__ import annotations

import random

import pytest
from grammar_walks import legal, random_text

from forktree.backend.grammar.constraints import Choices, Regex, Schema
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.errors import ConstraintError

LACKING = frozenset([0x04, 0x06, 0xC0, 0xC1, *range(0xF1, 0x100)])
TOKENS = (*(bytes([b]) for b in range(256) if b not in LACKING), b"ab", b"\xc3\xa9", b'":', None)
SOME = Vocabulary(TOKENS, frozenset([len(TOKENS) - 1]))


def names(matcher: object) -> set[bytes | None]:
    return {SOME.token_bytes[t] for t in legal(matcher)}  # type: ignore[arg-type]


def test_what_cannot_be_spelled_is_never_begun() -> None:
    assert names(Choices(["a\x04", "ab"]).compile(SOME)) == {b"a", b"ab"}
    matcher = Choices(["a\x04", "ab"]).compile(SOME)
    matcher.advance(TOKENS.index(b"a"))
    assert names(matcher) == {b"b"}
    assert names(Regex(r"(x[\x04\U00040000]|y).?").compile(SOME)) == {b"y"}


def test_nothing_that_can_be_spelled_is_an_error() -> None:
    with pytest.raises(ConstraintError, match="cannot spell"):
        Regex("\x04+").compile(SOME)


def test_strings_of_json_can_always_be_spelled() -> None:
    matcher = Schema({"const": "\x04\U00040000"}).compile(SOME)
    for byte in b'"\\u0004\\ud8c0\\udc00"':
        assert TOKENS.index(bytes([byte])) in legal(matcher)
        matcher.advance(TOKENS.index(bytes([byte])))
    assert matcher.is_complete()


def test_counts_are_still_shared_over_such_a_vocabulary() -> None:
    matcher = Regex(".{1,5000}").compile(SOME)
    matcher.advance(TOKENS.index(b"a"))
    first = matcher.mask()
    matcher.advance(TOKENS.index(b"a"))
    assert matcher.mask() is first


@pytest.mark.parametrize("seed", range(5))
def test_random_walks_never_end_dead(seed: int) -> None:
    assert random_text(Regex(r"(\w+[^a]){1,4}"), random.Random(seed), SOME, most=60) is not None
