"""Nobody starves: the oldest request ends within the steps that the scheduler's docstring states."""

from __future__ import annotations

from typing import Any

import pytest
from engine_fakes import Driver, FakeRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.lang.errors import ContextLengthError


class Crowd:
    """An engine with a queue that newer requests never let become empty."""

    def __init__(self, page_size: int, pool_tokens: int, config: dict[str, int]) -> None:
        runner = FakeRunner(num_pages=pool_tokens // page_size, page_size=page_size, max_context=24, vocab=4)
        self.one = Driver(runner, fixed_rows=1e9, **config)
        self.bound = (config["max_overtakes"] + 2) * config["max_running"] * self.one.core.max_tokens

    def submit(self, ids: list[int], max_tokens: int) -> None:
        try:
            self.one.submit(ids, max_tokens=max_tokens)
        except ContextLengthError:
            assert len(ids) > self.one.runner.num_pages * self.one.runner.page_size - 1

    def count_steps(self, draw_next: Any) -> int:
        """Until the oldest has ended; a request or two come with every step."""
        oldest = next(listener for listener in self.one.listeners if not listener.is_done)
        num_steps = 0
        while not oldest.is_done:
            if self.one.core.stats().num_waiting < 12:
                for ids, max_tokens in draw_next():
                    self.submit(ids, max_tokens)
            self.one.step()
            num_steps += 1
            assert num_steps <= self.bound, "the oldest starves"
        return num_steps


requests = st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=16), st.sampled_from([1, 2, 9]))


@settings(max_examples=25, deadline=None)
@given(
    page_size=st.sampled_from([1, 4]),
    pool_tokens=st.sampled_from([16, 20, 32]),
    config=st.fixed_dictionaries(
        {
            "max_running": st.integers(1, 5),
            "max_step_tokens": st.integers(5, 12),
            "max_overtakes": st.integers(1, 4),
            "headroom_tokens": st.sampled_from([0, 4]),
            "max_draft": st.sampled_from([0, 3]),
        }
    ),
    first=st.lists(requests, min_size=1, max_size=5),
    data=st.data(),
)
def test_the_oldest_ends_within_the_bound_whatever_comes_behind_it(page_size, pool_tokens, config, first, data):
    crowd = Crowd(page_size, pool_tokens, config)
    cycle = data.draw(st.lists(st.lists(requests, max_size=2), min_size=1, max_size=6))
    num_drawn = 0

    def draw_next() -> list[tuple[list[int], int]]:
        nonlocal num_drawn
        num_drawn += 1
        return cycle[num_drawn % len(cycle)]

    for ids, max_tokens in [*first, ([1], 1)]:
        crowd.submit(ids, max_tokens)
    for _ in range(3):
        if any(not listener.is_done for listener in crowd.one.listeners):
            crowd.count_steps(draw_next)


@pytest.mark.parametrize("max_overtakes", [1, 4])
def test_a_cold_giant_ends_although_every_newer_one_is_small_and_warm(max_overtakes):
    """It needs the whole pool, and whoever comes later continues what is running."""
    crowd = Crowd(4, 16, {"max_running": 3, "max_step_tokens": 8, "max_overtakes": max_overtakes, "headroom_tokens": 0})
    crowd.submit([1, 1, 1], 6)
    crowd.one.step()
    crowd.submit([2] * 15, 2)
    assert crowd.count_steps(lambda: [([1, 1, 1, 1], 6)]) < crowd.bound  # the first
    assert crowd.count_steps(lambda: [([1, 1, 1, 1], 6)]) < crowd.bound / 2  # and the giant
