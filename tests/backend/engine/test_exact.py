"""Cache, batch, chunks, pages, evictions and preemptions change nothing but time."""

from __future__ import annotations

import itertools

import pytest
from engine_fakes import Driver, FakeRunner, Listener, run_alone
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.engine.messages import Finished, SamplerParams

PAGE_SIZES = st.sampled_from([1, 2, 4, 16])


def answer(finished: Finished) -> tuple:
    return finished.ids, finished.tokens, finished.prompt_logprobs, finished.reason


# --- a prompt again, with every length around a page's border ------------------------------------------------


@pytest.mark.parametrize("num_prompt", [1, 3, 4, 5, 8, 9, 16, 17])
def test_a_repeat_an_extension_and_a_repeat_after_eviction_equal_the_cold_run(num_prompt):
    ids = [7 * i % 11 + 1 for i in range(num_prompt)]
    fields = {"max_tokens": 6, "score_from": 1}
    cold, cold_longer = run_alone(ids, **fields), run_alone([*ids, 5, 5], **fields)
    one = Driver(FakeRunner(num_pages=24, page_size=4))
    for step in ("cold", "repeat", "evicted", "repeat"):
        if step == "evicted":
            one.core._memory.tree.evict(4)
        listener = one.submit(ids, **fields)
        one.drain()
        assert answer(listener.finished) == answer(cold)
        assert len(listener.finished.prompt_logprobs) == num_prompt - 1
    longer = one.submit([*ids, 5, 5], **fields)
    one.drain()
    assert answer(longer.finished) == answer(cold_longer)


def test_a_full_hit_computes_the_last_prompt_token_alone():
    one = Driver(FakeRunner())
    ids = [1, 2, 3, 4, 5, 6, 7, 8]
    first = one.submit(ids, max_tokens=1)
    one.drain()
    second = one.submit(ids, max_tokens=1)
    one.drain()
    assert second.finished.num_cached == 7
    assert second.finished.ids == first.finished.ids
    assert one.core.stats().prefill_tokens == 9


def test_the_order_of_a_batch_does_not_matter():
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 9], [4, 4], [1, 2, 3, 4, 5, 6, 7]]
    alone = [answer(run_alone(ids, max_tokens=5)) for ids in prompts]
    for order in itertools.permutations(range(4)):
        one = Driver(FakeRunner(num_pages=20, page_size=4), max_step_tokens=6)
        listeners = {i: one.submit(prompts[i], max_tokens=5) for i in order}
        one.drain()
        assert [answer(listeners[i].finished) for i in range(4)] == alone


def test_generated_tokens_are_found_by_the_next_turn():
    one = Driver(FakeRunner())
    first = one.submit([1, 2, 3], max_tokens=6)
    one.drain()
    turn = [1, 2, 3, *first.finished.ids, 9]
    second = one.submit(turn, max_tokens=2)
    one.drain()
    assert second.finished.num_cached == 8  # the sixth token was drawn, but never computed
    assert answer(second.finished) == answer(run_alone(turn, max_tokens=2))


def test_a_prompt_alone_is_computed_and_cached():
    one = Driver(FakeRunner())
    hint = one.submit([1, 2, 3, 4, 5])
    one.drain()
    assert (hint.finished.ids, hint.finished.reason) == ((), "length")
    later = one.submit([1, 2, 3, 4, 5, 6], max_tokens=1)
    one.drain()
    assert later.finished.num_cached == 5


# --- seeds -------------------------------------------------------------------------------------------------


def seeded(seed: int) -> dict:
    return {"max_tokens": 16, "params": SamplerParams(temperature=0.8, seed=seed)}


def test_a_seed_holds_with_every_neighbour_in_every_order():
    ids = [3, 1, 4]
    alone = run_alone(ids, **seeded(42)).ids
    neighbour_sets = [
        [],
        [([3, 1, 4], seeded(1))],
        [([3, 1], seeded(7)), ([2], seeded(99)), ([3, 1, 4, 1], {"max_tokens": 9})],
        [([i + 1] * 30, seeded(i)) for i in range(3)],
    ]
    for neighbours in neighbour_sets:
        for order in itertools.permutations([(ids, seeded(42)), *neighbours]):
            one = Driver(FakeRunner(num_pages=40, page_size=4))
            listeners = [(fields, one.submit(prompt, **fields)) for prompt, fields in order]
            one.drain()
            assert next(heard for fields, heard in listeners if fields == seeded(42)).finished.ids == alone


def test_samples_of_one_prompt_differ_by_their_seeds_and_share_the_prompt():
    one = Driver(FakeRunner(num_pages=60))
    listeners = [one.submit([1, 2, 3, 4, 5, 6], **seeded(seed)) for seed in range(3)]
    one.drain()
    outputs = [listener.finished.ids for listener in listeners]
    assert len(set(outputs)) == 3
    assert outputs == [run_alone([1, 2, 3, 4, 5, 6], **seeded(seed)).ids for seed in range(3)]
    assert one.core.stats().prefill_tokens == 6 + 2


# --- anything at once --------------------------------------------------------------------------------------

PROMPTS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 2), min_size=1, max_size=22),  # two tokens: prefixes are shared all the time
        st.integers(0, 7),
        st.sampled_from([0.0, 1.0]),
        st.booleans(),
    ),
    min_size=1,
    max_size=9,
)


def fields_of(max_tokens: int, temperature: float, is_scored: bool, seed: int) -> dict:
    params = SamplerParams(temperature=temperature, seed=seed)
    return {"max_tokens": max_tokens, "params": params, "score_from": 1 if is_scored else None}


@settings(max_examples=150, deadline=None)
@given(PROMPTS, PAGE_SIZES, st.integers(1, 40), st.integers(28, 70), st.integers(1, 6), st.data())
def test_every_request_gets_what_it_gets_alone(prompts, page_size, num_tokens, pool_tokens, max_running, data):
    runner = FakeRunner(num_pages=-(-pool_tokens // page_size), page_size=page_size)
    config = {"max_step_tokens": max(num_tokens, max_running), "max_running": max_running, "headroom_tokens": 0}
    one = Driver(runner, **config)
    waves: list[tuple[Listener, Finished]] = []
    for seed, (ids, max_tokens, temperature, is_scored) in enumerate(prompts):
        fields = fields_of(max_tokens, temperature, is_scored, seed)
        waves.append((one.submit(ids, **fields), run_alone(ids, **fields)))
        for _ in range(data.draw(st.integers(0, 3))):
            one.step()
    one.drain()
    one.check_idle()
    for listener, alone in waves:
        assert answer(listener.finished) == answer(alone)


# --- nothing is computed twice -------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_cold_burst_of_few_shot_requests_computes_each_distinct_token_once(page_size):
    head = [i % 37 for i in range(600)]
    subjects = [[50 + s] + [(s * 31 + i) % 37 for i in range(20 + 3 * s)] for s in range(8)]
    prompts = [
        head + subjects[q % 8] + [60 + q % 16] + [(q * 17 + i) % 37 for i in range(9 + q % 5)] for q in range(64)
    ]
    num_distinct = len({tuple(p[:size]) for p in prompts for size in range(1, len(p) + 1)})
    runner = FakeRunner(num_pages=4800 // page_size, page_size=page_size, vocab=3)
    one = Driver(runner)
    listeners = [one.submit(ids, max_tokens=2) for ids in prompts]
    one.drain()
    one.check_idle()
    num_repeats = len(prompts) - len({tuple(p) for p in prompts})  # a full hit computes its last token again
    assert one.core.stats().prefill_tokens == num_distinct + num_repeats <= 1.02 * num_distinct
    for q in (0, 9, 63):
        assert answer(listeners[q].finished) == answer(
            run_alone(prompts[q], FakeRunner(400, 16, vocab=3), max_tokens=2)
        )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=12), min_size=1, max_size=14), PAGE_SIZES)
def test_any_burst_computes_each_distinct_token_once(prompts, page_size):
    one = Driver(FakeRunner(num_pages=400 // page_size, page_size=page_size, vocab=3), max_step_tokens=64)
    for ids in prompts:
        one.submit(ids, max_tokens=1)
    one.drain()
    distinct = {tuple(p[:size]) for p in prompts for size in range(1, len(p) + 1)}
    stats = one.core.stats()
    # A prompt that another begins with is a full hit, and its last token is computed once more.
    assert len(distinct) <= stats.prefill_tokens <= len(distinct) + len(prompts) - 1
    assert stats.prefill_tokens + stats.cached_tokens == sum(map(len, prompts))
