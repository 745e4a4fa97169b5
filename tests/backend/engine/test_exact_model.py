"""Warm equals cold and alone equals in a batch, bit for bit, with a real forward pass (a tiny random Llama)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_fakes import Driver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import write_tiny_model

from forktree.backend.engine.messages import Finished, SamplerParams


class Pool:
    """A loaded runner, with the faults that a driver looks for."""

    faults = ()

    def __init__(self, runner) -> None:
        self.runner = runner

    def __getattr__(self, name: str):
        return getattr(self.runner, name)


@pytest.fixture(scope="module")
def make_pool(tmp_path_factory) -> Callable[[int, int], Pool]:
    from forktree.backend.model.runner import load_runner

    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    made: dict[tuple[int, int], Pool] = {}

    def make(page_size: int, kv_tokens: int) -> Pool:
        key = (page_size, kv_tokens)
        if key not in made:
            made[key] = Pool(load_runner(folder, page_size=page_size, kv_tokens=kv_tokens, num_threads=1))
        return made[key]

    return make


def fields_of(index: int, max_tokens: int) -> dict:
    params = SamplerParams(temperature=0.8 * (index % 2), seed=index, num_logprobs=1)
    return {"max_tokens": max_tokens, "params": params, "score_from": 1 if index % 3 == 0 else None}


def answer(finished: Finished) -> tuple:
    return finished.ids, finished.tokens, finished.prompt_logprobs


def alone(pool: Pool, ids: list[int], **fields) -> tuple:
    one = Driver(pool, max_step_tokens=512, max_draft=0)
    listener = one.submit(ids, **fields)
    one.drain()
    return answer(listener.finished)


PAIRS = st.lists(
    st.tuples(st.integers(0, 40), st.lists(st.integers(0, 95), min_size=1, max_size=9), st.integers(0, 9)),
    min_size=2,
    max_size=7,
)
TRUNK = [(i * 29 + 3) % 96 for i in range(40)]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PAIRS, st.sampled_from([1, 4, 16]), st.integers(1, 60), st.integers(1, 7), st.data())
def test_any_forks_chunks_and_evictions_give_the_same_bits(make_pool, branches, page_size, num_tokens, num_run, data):
    pool = make_pool(page_size, 96)
    one = Driver(
        pool,
        max_running=num_run,
        max_step_tokens=max(num_run, num_tokens),
        headroom_tokens=0,
        max_draft=data.draw(st.sampled_from([0, 3, 8])),
        fixed_rows=data.draw(st.sampled_from([1e9, 1.0])),  # every guess is tried, or prompts wait for decodes
        max_slowdown=data.draw(st.sampled_from([1.0, 3.0])),
        min_chunk=1.0,
    )
    heard = []
    for index, (num_shared, tail, max_tokens) in enumerate(branches):
        ids, fields = TRUNK[:num_shared] + tail, fields_of(index, max_tokens)
        heard.append((one.submit(ids, **fields), ids, fields))
        for _ in range(data.draw(st.integers(0, 2))):
            one.step()
        one.core._memory.tree.evict(data.draw(st.sampled_from([0, 0, 3])))
    one.drain()
    warm = [one.submit(ids, **fields) for _, ids, fields in heard]
    one.drain()
    one.check_idle()
    cold_pool = make_pool(16, 512)
    for (first, ids, fields), again in zip(heard, warm, strict=True):
        cold = alone(cold_pool, ids, **fields)
        assert answer(first.finished) == cold
        assert answer(again.finished) == cold


def test_guesses_that_stand_and_fall_change_no_bit(make_pool):
    """The second request repeats the first, so that its output is known; the third leaves that way at once."""
    pool = make_pool(4, 512)
    one = Driver(pool, max_draft=8, fixed_rows=1e9)
    asked = []
    for tail, seed in (([5, 6], 1), ([5, 6], 1), ([5, 6], 3), ([7], 1)):
        fields = {"max_tokens": 24, "params": SamplerParams(temperature=0.8, seed=seed, num_logprobs=2)}
        asked.append((one.submit(TRUNK + tail, **fields), TRUNK + tail, fields))
        one.drain()
    stats = one.core.stats()
    assert 20 <= stats.accepted_tokens < stats.drafted_tokens
    for listener, ids, fields in asked:
        assert answer(listener.finished) == alone(make_pool(16, 512), ids, **fields)
