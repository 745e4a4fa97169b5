"""Requests that nearly fit, can never fit, or wait behind such: everyone ends, in bounded steps."""

from __future__ import annotations

import itertools

import pytest
from engine_fakes import Driver, FakeRunner, Listener, run_alone

from forktree.lang.errors import ContextLengthError

# A pool of 64 tokens in pages of 4, a context of 256.
REQUESTS = [(63, 8), (64, 1), (200, 1), (40, 60), (5, 4), (300, 1)]
ENDINGS = [2, 1, ContextLengthError, 25, 4, ContextLengthError]  # tokens generated, or why it was refused


def submit_all(one: Driver, order: tuple[int, ...]) -> dict[int, Listener]:
    heard = {}
    for i in order:
        num_prompt, max_tokens = REQUESTS[i]
        if ENDINGS[i] is ContextLengthError:
            with pytest.raises(ContextLengthError, match=r"needs (200|301) tokens.*holds (64|256)"):
                one.submit(range(1, num_prompt + 1), max_tokens=max_tokens)
        else:
            heard[i] = one.submit([i + 1] * num_prompt, max_tokens=max_tokens)
    return heard


def tight_pool() -> Driver:
    return Driver(FakeRunner(num_pages=16, page_size=4, max_context=256, vocab=5), max_step_tokens=32, max_running=8)


def run_until_idle(one: Driver) -> None:
    """Step to the end; something must be computed in every step."""
    num_computed = -1
    while one.step():
        stats = one.core.stats()
        assert stats.prefill_tokens + stats.decode_tokens > num_computed
        num_computed = stats.prefill_tokens + stats.decode_tokens
        assert stats.num_steps < 200


@pytest.mark.parametrize("first", range(6))
def test_everyone_ends_in_every_order(first):
    for order in itertools.permutations(range(6)):
        if order[0] != first:
            continue
        one = tight_pool()
        heard = submit_all(one, order)
        run_until_idle(one)
        for i, listener in heard.items():
            assert len(listener.finished.ids) == ENDINGS[i]
            assert listener.finished.reason == "length"
        one.check_idle()


@pytest.mark.parametrize("cancelled", [0, 1, 3])
def test_the_small_one_ends_after_any_other_is_cancelled_at_any_step(cancelled):
    for order in itertools.permutations([0, 1, 3, 4]):
        for step in (0, 1, 2, 3, 5, 8, 13):
            one = tight_pool()
            heard = submit_all(one, order)
            for _ in range(step):
                one.step()
            one.core.cancel(order.index(cancelled))
            run_until_idle(one)
            for i in set(heard) - {cancelled}:
                assert len(heard[i].finished.ids) == ENDINGS[i]
            one.check_idle()


def test_a_request_that_fills_the_pool_takes_over_the_page_that_it_shares_a_piece_of():
    one = Driver(FakeRunner(num_pages=4, page_size=4))
    one.submit(range(1, 16), max_tokens=0)
    one.drain()
    ids = [*range(1, 15), 20, 21]
    listener = one.submit(ids, max_tokens=1)
    one.drain()
    assert listener.finished.num_cached == 14
    assert listener.finished.ids == run_alone(ids, max_tokens=1).ids
    one.check_idle()


def test_many_requests_in_a_tiny_pool_all_end():
    one = Driver(FakeRunner(num_pages=10, page_size=1, vocab=3), max_step_tokens=16, max_running=16, headroom_tokens=0)
    heard = [one.submit([1 + i % 3] * (1 + i % 5), max_tokens=6) for i in range(40)]
    one.drain()
    assert all(len(listener.finished.ids) == 6 for listener in heard)
    assert one.core.stats().num_preemptions > 0
    one.check_idle()
