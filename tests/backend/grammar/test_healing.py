"""Healing: the withdrawn bytes come first, in any tokens, then the constraint's own text."""

from __future__ import annotations

import pytest
from grammar_walks import TOY, legal, toy_vocabulary

from forktree.backend.grammar.constraints import Regex
from forktree.backend.grammar.healing import healed
from forktree.backend.grammar.matcher import IllegalTokenError
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.errors import ConstraintError

WORDS = toy_vocabulary([b" A", b" Ad", b" Ada", b"Ada", b" the", b"da", b"."])


def token(text: bytes) -> int:
    return WORDS.token_bytes.index(text)


def names(matcher: object) -> set[bytes | None]:
    return {WORDS.token_bytes[t] for t in legal(matcher)}  # type: ignore[arg-type]


def test_a_token_may_be_a_piece_of_the_prefix_or_go_beyond_it_legally() -> None:
    matcher = healed(b" ", Regex("[A-Z][a-z]+").compile(WORDS), WORDS)
    assert names(matcher) == {b" ", b" A", b" Ad", b" Ada"}
    matcher.advance(token(b" Ad"))
    assert not matcher.is_free()
    assert names(matcher) >= {b"a", b"da"}
    matcher.advance(token(b"a"))
    assert matcher.is_complete()


def test_the_prefix_can_be_written_in_single_bytes() -> None:
    matcher = healed(b" A", Regex("da").compile(WORDS), WORDS)
    assert names(matcher) == {b" ", b" A", b" Ad", b" Ada"}
    matcher.advance(token(b" "))
    assert not matcher.is_complete()
    assert names(matcher) == {b"A", b"Ada"}
    matcher.advance(token(b"A"))
    matcher.advance(token(b"da"))
    assert matcher.must_end()


def test_without_a_constraint_anything_follows_and_the_matcher_becomes_free() -> None:
    matcher = healed(b" ", None, WORDS)
    assert names(matcher) == {b" ", b" A", b" Ad", b" Ada", b" the"}
    assert not matcher.is_free()
    matcher.advance(token(b" the"))
    assert matcher.is_free()
    assert matcher.is_complete()
    assert not matcher.must_end()
    assert len(legal(matcher)) == WORDS.size


def test_special_and_end_tokens_are_illegal_inside_the_prefix() -> None:
    matcher = healed(b"ab", Regex("x?").compile(TOY), TOY)
    assert not set(legal(matcher)) & TOY.eos_ids
    for end in TOY.eos_ids:
        with pytest.raises(IllegalTokenError):
            matcher.advance(end)
    matcher.advance(TOY.token_bytes.index(b"ab"))
    assert set(legal(matcher)) >= TOY.eos_ids


def test_copies_and_rollback_cross_the_border_of_the_prefix() -> None:
    matcher = healed(b" ", Regex("Ada|Adb").compile(WORDS), WORDS)
    start = names(matcher)
    matcher.advance(token(b" Ad"))
    twin = matcher.copy()
    matcher.advance(token(b"a"))
    twin.advance(token(b"b"))
    assert matcher.must_end()
    assert twin.must_end()
    matcher.rollback(1)
    assert names(matcher) >= {b"a", b"b"}
    matcher.rollback(1)
    assert names(matcher) == start
    with pytest.raises(ValueError, match="cannot roll back"):
        matcher.rollback(1)


def test_a_prefix_that_no_tokens_spell_is_refused() -> None:
    with pytest.raises(ConstraintError, match="no tokens"):
        healed(b"z", None, Vocabulary((b"a", b"b"), frozenset()))


def test_an_illegal_token_changes_nothing() -> None:
    matcher = healed(b" ", Regex("Ada").compile(WORDS), WORDS)
    with pytest.raises(IllegalTokenError):
        matcher.advance(token(b" the"))
    with pytest.raises(IllegalTokenError):
        matcher.advance(token(b"x"))
    assert matcher.remaining == b" "
    matcher.advance(token(b" Ada"))
    assert matcher.must_end()
