"""Verbatim copies: exactly the pieces of the text, whatever the tokens."""

from __future__ import annotations

import random

import pytest
from grammar_walks import TOY, accepts_by_tokens, brute_mask, legal, random_text, tokenised, walks
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.grammar.constraints import Substring, constraint_from_spec
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.errors import ConstraintError

TEXTS = st.text(alphabet="abé道😀\n", max_size=12)


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, st.integers(0, 1000))
def test_exactly_the_pieces_of_a_text_are_legal(text: str, other: str, seed: int) -> None:
    constraint = Substring(text)
    assert constraint.accepts(other) == (other in text)
    low, high = sorted(random.Random(seed).choices(range(len(text) + 1), k=2))
    assert accepts_by_tokens(constraint, text[low:high], seed=seed)


def test_masks_are_exact_and_walks_end_in_pieces() -> None:
    document = "Shell 12.40 EUR, the foobar of 2024: naïve 道路"
    constraint = Substring(document)
    assert set(legal(constraint.compile(TOY))) == brute_mask(constraint, b"")
    for seed in range(20):
        text = random_text(constraint, random.Random(seed))
        assert text is not None
        assert text in document


def test_equal_documents_share_one_automaton() -> None:
    assert Substring("abc").automaton is constraint_from_spec(Substring("abc").spec).automaton


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ConstraintError, match="lone surrogate"):
        Substring("a\ud800")
    with pytest.raises(ConstraintError, match="must be a text"):
        Substring(b"abc")  # type: ignore[arg-type]


def test_words_that_a_vocabulary_cannot_spell_are_no_dead_ends() -> None:
    """A vocabulary of ASCII and two-byte characters: the words of other scripts stay out, whole."""
    two_bytes = [bytes([lead]) for lead in range(0xC2, 0xE0)] + [bytes([more]) for more in range(0x80, 0xC0)]
    vocabulary = Vocabulary((*(bytes([b]) for b in range(128)), *two_bytes, None), frozenset([128 + len(two_bytes)]))
    document = "Café one 道路 two three 😀x naïve\tend"
    constraint = Substring(document, unit="word")
    found = set()
    for seed in range(60):
        text = random_text(constraint, random.Random(seed), vocabulary)
        assert text is not None
        assert text in ("", *document.split()) or " " in text or "\t" in text
        assert not set(text) & set("道路😀x")
        found.add(text)
    assert {"", "naïve"} < found
    assert walks(constraint, tokenised(b"two three", vocabulary), vocabulary)
    assert walks(constraint, tokenised("naïve\tend".encode(), vocabulary), vocabulary)
    assert not walks(constraint, tokenised(b"one two", vocabulary), vocabulary)


def test_pieces_by_words_are_whole_words() -> None:
    constraint = Substring("the total  is 12.40 EUR", unit="word")
    accepted = [
        text for text in ("12.40", "total  is 12.40", "", "2.40", "12", "is ", "total is") if constraint.accepts(text)
    ]
    assert accepted == ["12.40", "total  is 12.40", ""]
    with pytest.raises(ConstraintError, match="unit must be"):
        Substring("a", unit="line")  # type: ignore[arg-type]
