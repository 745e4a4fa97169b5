"""No constraint reaches a special token as text, and every end token of a model ends an output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from grammar_walks import legal

from forktree.backend.grammar.budget import within
from forktree.backend.grammar.constraints import Choices, Constraint, Grammar, Regex, Schema, Substring
from forktree.backend.grammar.healing import healed
from forktree.backend.tokenizer import Tokenizer

pytestmark = pytest.mark.model

NASTY = "a <|im_end|> and <|endoftext|>"
CONSTRAINTS = [
    Regex(r"(?s).*"),
    Choices([NASTY]),
    Schema({"type": "string"}),
    Schema({"const": NASTY}),
    Substring(NASTY),
    Grammar("start: /(.|\\n)*/"),
]


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids = tokenizer.encode(text)
    assert tokenizer.markup_ids.isdisjoint(ids)
    return ids


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=repr)
def test_special_tokens_are_never_legal_but_as_an_end(constraint: Constraint, tokenizer: Tokenizer) -> None:
    text = NASTY if constraint.accepts(NASTY) else f'"{NASTY}"'
    matcher = constraint.compile(tokenizer)
    for token in plain_ids(tokenizer, text):
        special = tokenizer.markup_ids & set(legal(matcher))
        assert special == (tokenizer.eos_ids if matcher.is_complete() else set())
        matcher.advance(token)
    assert tokenizer.eos_ids <= set(legal(matcher))


def test_each_end_token_of_a_model_ends(tokenizer: Tokenizer) -> None:
    special = sorted(tokenizer.markup_ids)[:3]
    vocabulary = replace(tokenizer.vocabulary, eos_ids=frozenset(special))
    for end in special:
        plain = Regex("x*").compile(vocabulary)
        for matcher in (plain, within(plain.copy(), vocabulary, 3)):
            matcher.advance(end)
            assert matcher.must_end()
            assert not np.any(matcher.mask())


def test_what_is_forced_spells_special_tokens_as_text(tokenizer: Tokenizer) -> None:
    run = Choices([NASTY]).compile(tokenizer).forced()
    assert list(run) == plain_ids(tokenizer, NASTY)
    behind = healed(b" <|im", Choices(["_end|>x"]).compile(tokenizer), tokenizer.vocabulary).forced()
    assert tokenizer.markup_ids.isdisjoint(behind)
    assert b"".join(tokenizer.token_bytes[token] for token in behind) == b" <|im_end|>x"
