"""A sequence's arithmetic, and what is refused at the door."""

from __future__ import annotations

import pytest

from forktree.backend.engine.messages import EngineRequest
from forktree.backend.engine.request import make_sequence
from forktree.lang.errors import ContextLengthError


def make(num_prompt: int, *, max_context: int = 100, pool_tokens: int = 100, **fields):
    request = EngineRequest(ids=tuple(range(num_prompt)), on_event=lambda event: None, **fields)
    return make_sequence(0, request, max_context=max_context, pool_tokens=pool_tokens)


def test_the_last_prompt_token_is_never_taken_from_the_cache():
    assert make(5, max_tokens=1).cacheable == 4
    assert make(1, max_tokens=1).cacheable == 0


def test_a_score_caps_the_cache_at_the_row_that_foretells_its_first_token():
    seq = make(6, score_from=3)
    assert (seq.first_score_row, seq.cacheable) == (2, 2)
    seq.prompt_logprobs += [-1.0, -1.0]
    assert (seq.first_score_row, seq.cacheable) == (4, 4)
    seq.prompt_logprobs += [-1.0]
    assert (seq.first_score_row, seq.cacheable) == (None, 5)


def test_nothing_is_scored_behind_the_last_token():
    assert make(4, score_from=4).first_score_row is None


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "limit"),
    [(10, 5, 5), (10, 90, 90), (10, 1000, 90), (99, 8, 1), (100, 0, 0)],
)
def test_an_output_ends_at_the_context(num_prompt, max_tokens, limit):
    assert make(num_prompt, max_tokens=max_tokens, pool_tokens=500).output_limit == limit


def test_an_output_ends_where_the_pool_does_and_its_last_token_needs_no_room():
    assert make(63, max_tokens=8, pool_tokens=64, max_context=256).output_limit == 2
    assert make(64, max_tokens=8, pool_tokens=64, max_context=256).output_limit == 1


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers():
    with pytest.raises(ContextLengthError, match="needs 102 tokens, and the model's context holds 100") as caught:
        make(101, max_tokens=1)
    assert (caught.value.limit, caught.value.tokens) == (100, 102)


def test_a_prompt_that_leaves_no_room_for_one_token_is_refused():
    with pytest.raises(ContextLengthError, match="needs 101 tokens"):
        make(100, max_tokens=1)


def test_a_prompt_larger_than_the_pool_is_refused_with_both_numbers():
    with pytest.raises(ContextLengthError, match="needs 65 tokens of KV cache, and the pool holds 64") as caught:
        make(65, max_tokens=1, pool_tokens=64)
    assert (caught.value.limit, caught.value.tokens) == (64, 65)


@pytest.mark.parametrize(
    ("num_prompt", "fields", "message"),
    [
        (0, {}, "ids is empty"),
        (3, {"max_tokens": -1}, "max_tokens must be at least 0, not -1"),
        (3, {"score_from": 0}, "score_from must be between 1 and the prompt's 3 tokens, not 0"),
        (3, {"score_from": 4}, "not 4"),
    ],
)
def test_bad_fields_are_named(num_prompt, fields, message):
    with pytest.raises(ValueError, match=message):
        make(num_prompt, **fields)
