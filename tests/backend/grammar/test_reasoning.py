"""A bound on reasoning: it is closed in time, by the tokens of its end, and the answer follows."""

from __future__ import annotations

import random

import pytest
from grammar_walks import MERGES, TOY, legal

from forktree.backend.grammar.constraints import constraint_from_spec
from forktree.backend.grammar.healing import healed
from forktree.backend.grammar.matcher import IllegalTokenError
from forktree.backend.grammar.reasoning import ReasoningMatcher, bounded_reasoning
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.constraints import ChoicesSpec, ReasoningSpec, SchemaSpec

SIZE = 256 + len(MERGES)
BEGIN, END, EOS = SIZE, SIZE + 1, SIZE + 2
SPECIAL = Vocabulary(
    (*(bytes([b]) for b in range(256)), *MERGES, None, None, None),
    frozenset([EOS]),
    markup={BEGIN: "<think>", END: "</think>"},
)
ANSWER = ReasoningSpec(ChoicesSpec(("yes", "no")))


def matcher_of(vocabulary: Vocabulary, max_tokens: int, spec: ReasoningSpec = ANSWER) -> ReasoningMatcher:
    inner = constraint_from_spec(spec).compile(vocabulary)
    return bounded_reasoning(inner, vocabulary, "<think>", "</think>", max_tokens)


def walk(matcher: ReasoningMatcher, vocabulary: Vocabulary, seed: int) -> list[int]:
    """Random legal tokens to the end; of the reasoning's, never one that closes it by itself."""
    rng = random.Random(seed)
    taken: list[int] = []
    while not matcher.must_end():
        allowed = [token for token in legal(matcher) if token not in vocabulary.eos_ids]
        assert allowed, f"no way on after {taken}"
        open_ones = [token for token in allowed if token not in (END, ord("<"))]
        token = rng.choice(open_ones or allowed)
        matcher.advance(token)
        taken.append(token)
    return taken


def test_reasoning_is_text_then_its_end_then_the_answer() -> None:
    constraint = constraint_from_spec(ANSWER)
    assert constraint.accepts("<think>so < that</think>\n\nyes")
    assert constraint.accepts("<think></think>no")
    for text in ("yes", "<think>yes", "<think>a</think>", "<think>a</think>maybe", "<think>a</think>\n\n\nyes"):
        assert not constraint.accepts(text)
    assert constraint_from_spec(ReasoningSpec(None)).accepts("<think>a</think>\nanything </think>")


@pytest.mark.parametrize("vocabulary", [TOY, SPECIAL], ids=["text", "special tokens"])
@pytest.mark.parametrize("most", [0, 1, 4, 9])
def test_reasoning_that_goes_on_is_closed_within_its_bound(vocabulary: Vocabulary, most: int) -> None:
    for seed in range(15):
        taken = walk(matcher_of(vocabulary, most), vocabulary, seed)
        spelt = [vocabulary.token_bytes[token] or vocabulary.markup[token].encode() for token in taken]
        text = b"".join(spelt).decode()
        assert constraint_from_spec(ANSWER).accepts(text)
        inside = text.removeprefix("<think>").partition("</think>")[0]
        sizes = [len(b"".join(spelt[:count])) - len("<think>") for count in range(len(spelt) + 1)]
        count = sum(0 < size <= len(inside.encode()) for size in sizes)
        assert count <= most + 3  # the rest of a character


def test_a_special_end_is_the_only_legal_token_when_reasoning_is_over() -> None:
    matcher = matcher_of(SPECIAL, 2)
    for token in (BEGIN, ord("a"), ord("b")):
        matcher.advance(token)
    assert legal(matcher) == [END]
    with pytest.raises(IllegalTokenError):
        matcher.advance(256 + len(MERGES) + 7)
    twin = matcher.copy()
    matcher.advance(END)
    assert legal(twin) == [END]
    assert ord("y") in legal(matcher)
    matcher.rollback(2)
    assert len(legal(matcher)) > 200
    assert not matcher.is_free()
    assert not matcher.is_complete()


def test_a_character_is_finished_before_reasoning_is_closed() -> None:
    matcher = matcher_of(SPECIAL, 1)
    matcher.advance(BEGIN)
    matcher.advance(0xE9)  # the first of three bytes
    assert END not in legal(matcher)
    matcher.advance(0x81)
    assert END not in legal(matcher)
    matcher.advance(0x93)
    assert legal(matcher) == [END]


def test_reasoning_that_ends_by_itself_leaves_the_answer_alone() -> None:
    matcher = matcher_of(SPECIAL, 50)
    for token in (BEGIN, ord("a"), END, *b"\n\nye"):
        matcher.advance(token)
    assert matcher.forced() in ((), (ord("s"),))
    matcher.advance(ord("s"))
    assert matcher.must_end()


def test_a_healed_prompt_may_go_on_into_reasoning() -> None:
    spec = ReasoningSpec(SchemaSpec('{"type": "boolean"}'))
    inner = healed(b"in", constraint_from_spec(spec).compile(SPECIAL), SPECIAL)
    matcher = bounded_reasoning(inner, SPECIAL, "<think>", "</think>", 4)
    matcher.advance(256 + MERGES.index(b"in"))
    assert legal(matcher) == [BEGIN]
