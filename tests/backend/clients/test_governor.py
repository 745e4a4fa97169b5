"""No minute, wherever it begins, holds more than the limits; on a clock that the test moves."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.clients.governor import WINDOW_S, Governor
from forktree.lang.errors import RateLimitError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def starts(governor: Governor, sizes: list[int]) -> list[float]:
    return [governor.reserve(size).start for size in sizes]


def test_a_burst_that_fits_goes_at_once_and_the_next_waits_a_minute() -> None:
    assert starts(Governor(2, None, Clock()), [1, 1, 1, 1, 1]) == [0, 0, 60, 60, 120]


def test_tokens_wait_until_those_of_the_last_minute_have_left() -> None:
    assert starts(Governor(None, 100, Clock()), [60, 40, 50, 60]) == [0, 0, 60, 120]


def test_without_limits_nobody_waits() -> None:
    assert starts(Governor(None, None, Clock()), [10**9] * 3) == [0, 0, 0]


def test_what_a_request_really_took_makes_room_for_the_next() -> None:
    governor = Governor(None, 100, Clock())
    first = governor.reserve(90)
    governor.settle(first, 10)
    assert governor.reserve(90).start == 0


def test_a_request_that_can_never_start_is_refused_at_once() -> None:
    with pytest.raises(RateLimitError, match=r"about 101 tokens.*tokens_per_minute=100"):
        Governor(None, 100, Clock()).reserve(101)


def test_nobody_starts_while_the_service_wants_a_pause() -> None:
    governor = Governor(None, None, Clock())
    governor.pause(3.0)
    assert starts(governor, [1, 1]) == [3, 3]


def test_one_that_gives_up_waiting_leaves_its_tokens_to_others() -> None:
    async def run() -> float:
        governor = Governor(None, 100)
        await governor.admit(100)
        waiting = asyncio.ensure_future(governor.admit(100))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        return governor._num_tokens

    assert asyncio.run(run()) == 100


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_limit_is_a_count(limit) -> None:
    with pytest.raises(ValueError, match="requests_per_minute must be a whole number"):
        Governor(limit)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 40), st.integers(1, 50)), min_size=1, max_size=30),
    st.integers(1, 5),
    st.integers(50, 120),
)
def test_every_window_keeps_both_limits(arrivals, num_requests: int, num_tokens: int) -> None:
    clock = Clock()
    governor = Governor(num_requests, num_tokens, clock)
    given: list[tuple[float, int]] = []
    for pause, size in arrivals:
        clock.now += pause
        given.append((governor.reserve(size).start, size))
    assert [start for start, _ in given] == sorted(start for start, _ in given)
    for begin, _ in given:
        window = [size for start, size in given if begin <= start < begin + WINDOW_S - 1e-6]
        assert len(window) <= num_requests
        assert sum(window) <= num_tokens
