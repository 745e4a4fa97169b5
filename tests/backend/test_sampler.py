"""Every sampling parameter against a plain calculation by hand, and draws that know no neighbour."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.engine.messages import SampleRow, SamplerParams, TokenInfo
from forktree.backend.sampler import Sampler, adjust_logits, find_top, run_race
from forktree.lang.errors import EngineError

VOCAB = 8


def row(
    params: SamplerParams | None = None,
    *,
    position: int = 0,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    allowed: set[int] | None = None,
    ends: set[int] | None = None,
    banned: set[int] | None = None,
) -> SampleRow:
    mask = None if allowed is None else pack(allowed)
    ends, banned = frozenset(ends or ()), frozenset(banned or ())
    return SampleRow(params or SamplerParams(), position, prompt, output, mask, ends, banned)


def pack(allowed: set[int], words: int = 2) -> np.ndarray:
    mask = np.zeros(words, dtype=np.uint32)
    for token in allowed:
        mask[token // 32] |= np.uint32(1 << (token % 32))
    return mask.view(np.int32)


def draw(logits: list[float], what: SampleRow, vocab_size: int | None = None) -> TokenInfo:
    (info,) = Sampler(vocab_size=vocab_size or len(logits)).sample(torch.tensor([logits]), [(0, what)])
    return info


def draws(logits: list[float], params: SamplerParams, num: int = 3000, **rest: set[int]) -> Counter[int]:
    """How often each token comes, over `num` positions."""
    sampler = Sampler(vocab_size=len(logits))
    rows = [(0, row(params, position=position, **rest)) for position in range(num)]
    return Counter(info.token for info in sampler.sample(torch.tensor([logits]), rows))


def assert_shares(found: Counter[int], shares: dict[int, float]) -> None:
    """The counts are those of the distribution, within five standard deviations."""
    num = found.total()
    assert set(found) <= set(shares)
    for token, share in shares.items():
        assert abs(found[token] - num * share) <= 5 * math.sqrt(num * share * (1 - share)) + 1, token


def softmax(logits: list[float], temperature: float = 1.0) -> dict[int, float]:
    weights = [math.exp(x / temperature) for x in logits]
    return {i: weight / sum(weights) for i, weight in enumerate(weights)}


SPREAD = [1.0, 0.5, 2.0, -1.0, 0.0, 1.5]


def test_greedy_takes_the_likeliest_and_the_lowest_of_equals() -> None:
    assert draw([0.0, 3.0, 3.0, 1.0], row()).token == 1


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_tokens_come_as_often_as_softmax_says(temperature: float) -> None:
    assert_shares(draws(SPREAD, SamplerParams(temperature=temperature)), softmax(SPREAD, temperature))


def test_a_wide_vocabulary_is_drawn_as_softmax_says() -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(1)).tolist()
    shares = softmax(logits)
    found = draws(logits, SamplerParams(temperature=1.0), num=2000)
    likely = sorted(shares, key=shares.__getitem__)[-1000:]
    mass = sum(shares[i] for i in likely)
    assert abs(sum(found[i] for i in likely) / 2000 - mass) < 5 * math.sqrt(mass * (1 - mass) / 2000)
    assert len(found) > 1000


def test_top_k_keeps_exactly_k_and_the_lower_ids_of_equals() -> None:
    assert_shares(draws([1.0, 2.0, 1.0, 1.0], SamplerParams(temperature=1.0, top_k=2)), softmax([1.0, 2.0]))


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=300), st.integers(0, 80))
@settings(max_examples=60, deadline=None)
def test_the_top_k_are_those_of_a_stable_sort(values: list[int], k: int) -> None:
    found = find_top(np.asarray(values, dtype=np.float32), k).tolist()
    assert found == sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = [math.log(p) for p in (0.1, 0.4, 0.2, 0.3)]
    assert_shares(draws(logits, SamplerParams(temperature=1.0, top_p=0.69)), {1: 4 / 7, 3: 3 / 7})
    assert_shares(draws(logits, SamplerParams(temperature=1.0, top_p=0.71)), {1: 4 / 9, 3: 3 / 9, 2: 2 / 9})
    assert set(draws(logits, SamplerParams(temperature=1.0, top_p=0.0), num=20)) == {1}


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = [math.log(p) for p in (0.1, 0.4, 0.2, 0.3)]
    assert_shares(draws(logits, SamplerParams(temperature=1.0, min_p=0.6)), {1: 4 / 7, 3: 3 / 7})


def test_truncations_apply_in_order_k_then_p_then_min() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    params = SamplerParams(temperature=1.0, top_k=3, top_p=0.75, min_p=0.76)  # {0,1,2} → {0,1} → {0}
    assert set(draws(logits, params, num=20)) == {0}


def test_temperature_comes_before_top_p() -> None:
    logits = [math.log(p) for p in (0.6, 0.4)]
    assert set(draws(logits, SamplerParams(temperature=0.1, top_p=0.9), num=50)) == {0}  # 0.6¹⁰ : 0.4¹⁰ is 57 : 1


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplerParams(frequency_penalty=0.5), [2.0, 1.0 - 1.0, -1.0 - 0.5]),
        (SamplerParams(presence_penalty=0.5), [2.0, 1.0 - 0.5, -1.0 - 0.5]),
        (SamplerParams(repetition_penalty=2.0), [1.0, 0.5, -2.0]),
        (SamplerParams(logit_bias=((0, -3.0), (2, 4.0))), [-1.0, 1.0, 3.0]),
        (SamplerParams(repetition_penalty=2.0, frequency_penalty=0.25), [1.0, 0.5 - 0.5, -2.0 - 0.25]),
    ],
)
def test_penalties_are_those_of_the_formula(params: SamplerParams, expected: list[float]) -> None:
    """Token 0 is in the prompt, 1 twice and 2 once in the output."""
    raw = np.array([2.0, 1.0, -1.0], dtype=np.float32)
    what = row(params, prompt=(0, 0, 0), output=(1, 2, 1))
    assert adjust_logits(raw, what).tolist() == expected
    assert raw.tolist() == [2.0, 1.0, -1.0]


def greedy_run(logits: list[float], params: SamplerParams, prompt: tuple[int, ...], num: int) -> list[int]:
    output: list[int] = []
    for position in range(num):
        output.append(draw(logits, row(params, position=position, prompt=prompt, output=tuple(output))).token)
    return output


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        # a = 1.2, b = 1.1, c = 1.0; the prompt is "aaab"
        (SamplerParams(frequency_penalty=1.5), [0, 1, 2, 0, 1, 2]),
        (SamplerParams(presence_penalty=2.0), [0, 1, 2, 0, 0, 0]),
        (SamplerParams(repetition_penalty=1.3), [2, 0, 0, 0, 0, 0]),  # prompt: a 0.92, b 0.85; then c 0.77
        (SamplerParams(repetition_penalty=1.0, frequency_penalty=0.0), [0, 0, 0, 0, 0, 0]),
    ],
)
def test_the_order_of_tokens_under_penalties_is_that_worked_out_by_hand(
    params: SamplerParams, expected: list[int]
) -> None:
    assert greedy_run([1.2, 1.1, 1.0], params, (0, 0, 0, 1), 6) == expected


def test_neutral_values_change_no_bit() -> None:
    raw = np.random.default_rng(0).standard_normal(50, dtype=np.float32)
    neutral = SamplerParams(repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0, logit_bias=())
    assert adjust_logits(raw, row(neutral, prompt=(1, 2), output=(3, 3))) is raw


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_a_row_is_drawn_alike_alone_and_in_any_batch(order: list[int], seed: int) -> None:
    kinds = [
        row(SamplerParams(temperature=0.8, seed=42, num_logprobs=2), position=3),
        row(SamplerParams(temperature=1.0, seed=seed, top_p=0.9), position=9),
        row(SamplerParams(num_logprobs=1)),
        row(SamplerParams(temperature=1.5, repetition_penalty=1.4, num_logprobs=0), prompt=(1, 2), output=(3,)),
        row(SamplerParams(temperature=1.0, top_k=4), allowed={1, 3, 40}),
        row(SamplerParams(temperature=0.7, seed=1), allowed={2, 5}, ends={0}),
    ]
    logits = torch.randn(6, 60, generator=torch.Generator().manual_seed(seed))
    sampler = Sampler(vocab_size=60)
    alone = [sampler.sample(logits[i : i + 1].clone(), [(0, what)])[0] for i, what in enumerate(kinds)]
    assert sampler.sample(logits, [(i, kinds[i]) for i in order]) == [alone[i] for i in order]


def test_draws_differ_between_positions_and_seeds_and_repeat_for_equal_ones() -> None:
    def sequence(seed: int) -> list[int]:
        return [draw([0.0] * 50, row(SamplerParams(temperature=1.0, seed=seed), position=p)).token for p in range(20)]

    assert sequence(1) == sequence(1)
    assert sequence(1) != sequence(2)
    assert len(set(sequence(1))) > 10


@given(st.integers(-(2**70), 2**70), st.integers(0, 10**6), st.integers(2, 400))
@settings(max_examples=60, deadline=None)
def test_the_race_leaves_out_nobody_who_could_win(seed: int, position: int, num: int) -> None:
    """Dropping losers, one after another, never changes who wins: so nobody was overlooked."""
    rng = np.random.default_rng(num)
    ids, weights = np.arange(num), np.exp(-rng.exponential(4.0, num))
    winner = run_race(ids, weights, seed=seed, position=position)
    keep = np.flatnonzero((rng.random(num) < 0.3) | (ids == winner))
    assert keep[run_race(ids[keep], weights[keep], seed=seed, position=position)] == winner


def test_a_mask_moves_no_other_tokens_variate() -> None:
    params = SamplerParams(temperature=1.0, seed=5)
    for position in range(30):
        free = draw([0.0] * 20, row(params, position=position)).token
        masked = draw([0.0] * 20, row(params, position=position, allowed={free, 3, 4})).token
        assert masked == free


def test_nothing_outside_the_mask_is_drawn() -> None:
    assert draw([9.0, 1.0, 2.0, 8.0], row(allowed={1, 2})).token == 2
    found = draws([9.0, 1.0, 2.0, 8.0], SamplerParams(temperature=1.0), num=500, allowed={1, 2})
    assert_shares(found, {1: 1 / (1 + math.e), 2: math.e / (1 + math.e)})


def test_ids_beyond_the_vocabulary_are_never_drawn() -> None:
    logits = [0.0] * 128
    logits[110], logits[127], logits[7] = 50.0, 60.0, 1.0
    assert draw(logits, row(), vocab_size=100).token == 7
    sampled = SamplerParams(temperature=1.0, num_logprobs=3)
    for position in range(20):
        info = draw(logits, row(sampled, position=position), vocab_size=100)
        assert info.token < 100
        assert all(token < 100 for token, _ in info.top)


def test_a_mask_narrower_than_the_logits_forbids_the_rest() -> None:
    logits = [0.0] * 100
    logits[90] = 9.0
    what = SampleRow(SamplerParams(), 0, (), (), pack({5, 6}, words=1))
    assert draw(logits, what).token == 5


def test_banned_ids_are_never_drawn() -> None:
    assert draw([5.0, 4.0, 3.0], row(banned={0})).token == 1
    assert draw([5.0, 4.0, 3.0], row(allowed={0, 2}, banned={0})).token == 2


def test_all_that_would_leave_the_language_weighs_as_one_end() -> None:
    """Three tokens of 0.2 lie outside: each is lighter than the legal 0.35, together they outweigh it."""
    logits = [math.log(p) for p in (0.35, 0.2, 0.2, 0.2, 0.05)]
    ends = row(SamplerParams(num_logprobs=0), allowed={0}, ends={4})
    info = draw(logits, ends)
    assert info.token == 4
    assert info.logprob == pytest.approx(math.log(0.65), abs=1e-6)
    assert draw(logits, row(allowed={0})).token == 0
    assert_shares(draws(logits, SamplerParams(temperature=1.0), allowed={0}, ends={4}), {0: 0.35, 4: 0.65})


def test_the_end_that_comes_back_is_the_likeliest_of_them() -> None:
    assert draw([0.0, 1.0, 2.0, 9.0], row(allowed={0}, ends={1, 2})).token == 2


def test_end_ids_without_a_mask_weigh_as_one() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.3)]
    assert draw(logits, row(ends={1, 2})).token == 1
    assert draw(logits, row()).token == 0


def test_banned_ends_cannot_end_the_output() -> None:
    assert draw([0.0, 9.0, 5.0], row(allowed={0}, ends={1}, banned={1})).token == 0


def test_logprobs_are_those_before_temperature_and_mask_and_after_penalties() -> None:
    logits = [1.0, 2.0, 3.0, 0.0]
    info = draw(logits, row(SamplerParams(temperature=2.0, seed=1, num_logprobs=2), allowed={0}))
    norm = math.log(sum(math.exp(x) for x in logits))
    assert info.token == 0
    assert info.logprob == pytest.approx(1.0 - norm, abs=1e-6)
    assert [token for token, _ in info.top] == [2, 1]
    assert info.top[0][1] == pytest.approx(3.0 - norm, abs=1e-6)
    biased = draw(logits, row(SamplerParams(num_logprobs=1, logit_bias=((3, 10.0),))))
    norm = math.log(sum(math.exp(x) for x in (1.0, 2.0, 3.0, 10.0)))
    assert biased.top == ((3, pytest.approx(10.0 - norm, abs=1e-6)),)


def test_no_logprobs_come_unasked() -> None:
    assert draw(SPREAD, row()) == TokenInfo(2, None, ())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_is_an_error_that_names_it(bad: float) -> None:
    logits = torch.tensor([[0.0, 1.0], [bad, 1.0]])
    sampler = Sampler(vocab_size=2)
    with pytest.raises(EngineError, match="row 1 of the logits holds"):
        sampler.sample(logits, [(0, row()), (1, row())])
    assert sampler.sample(logits, [(0, row())])[0].token == 1


def test_a_row_with_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(EngineError, match="row 0 has no token that may be drawn"):
        draw([1.0, 2.0], row(allowed={0}, banned={0}))
    with pytest.raises(EngineError, match="row 0 has no token that may be drawn"):
        draw([1.0, 2.0], row(allowed=set()))


def test_extreme_temperatures_stay_finite() -> None:
    assert draw([0.0, 1.0, 5.0], row(SamplerParams(temperature=1e-30))).token == 2
    assert set(draws([0.0, 90.0, 5.0], SamplerParams(temperature=1e6), num=200)) == {0, 1, 2}
