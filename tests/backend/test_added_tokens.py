"""Cutting a text at the special tokens that it spells, by their spellings alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.added_tokens import AddedTokens
from forktree.backend.tokenizer import Tokenizer

PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def added(*spellings: str, **changes: bool) -> list[dict[str, object]]:
    return [{"id": id, "content": text, **PLAIN, **changes} for id, text in enumerate(spellings)]


def test_the_leftmost_is_cut_and_of_those_the_longest() -> None:
    tokens = AddedTokens.of(added("<a>", "<a><b>", "<c"), {0, 1, 2})
    assert tokens is not None
    assert tokens.cut("x<a><b>y<a>z<c") == ["x", 1, "y", 0, "z", 2]
    assert tokens.cut("<a>") == [0]
    assert tokens.cut("") == []


def test_a_token_that_is_no_markup_stays_text_and_hides_what_is_in_it() -> None:
    tokens = AddedTokens.of(added("<a>", "  <a>"), {0})
    assert tokens is not None
    assert tokens.cut("x  <a> <a>") == ["x  <a> ", 0]


@pytest.mark.parametrize("wish", ["single_word", "lstrip", "rstrip", "normalized"])
def test_a_token_that_wishes_for_more_than_its_spelling_is_left_to_the_tokenizer(wish: str) -> None:
    assert AddedTokens.of(added("<a>", **{wish: True}), {0}) is None


def test_markup_that_is_no_added_token_is_left_to_the_tokenizer() -> None:
    assert AddedTokens.of(added("<a>"), {0, 7}) is None


@pytest.fixture(scope="module")
def two(smol_tokenizer) -> tuple[Tokenizer, Tokenizer]:
    """The built-in model's tokenizer twice, the second without the short way."""
    quick, slow = Tokenizer(smol_tokenizer), Tokenizer(smol_tokenizer)
    assert quick._added is not None
    slow._added = None
    return quick, slow


@pytest.mark.model
@settings(max_examples=60)
@given(pieces=st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "<", "|", "<|im_", "end|>", "é ", "\n", "user"])))
def test_it_cuts_where_the_tokenizer_cuts(two: tuple[Tokenizer, Tokenizer], pieces: list[str]) -> None:
    quick, slow = two
    assert quick.split_markup("".join(pieces)) == slow.split_markup("".join(pieces))
