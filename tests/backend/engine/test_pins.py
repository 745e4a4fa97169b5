"""A pinned prefix stays whatever comes, what comes has room beside it, and what has not is refused at the door."""

from __future__ import annotations

import pytest
from engine_fakes import Driver, FakeRunner, run_alone
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.engine.loop import Engine
from forktree.backend.engine.messages import EngineRequest
from forktree.lang.errors import ContextLengthError, EngineError, RunCancelledError

PREFIX = [1, 2, 3, 4] * 4  # 4 pages of 4


def driver(num_pages=12, **config):
    return Driver(FakeRunner(num_pages=num_pages, page_size=4), fixed_rows=1e9, headroom_tokens=0, **config)


def pin(one, ids=PREFIX, **fields):
    """Pin and compute; returns the pin's id."""
    id = one.num_ids
    listener = one.submit(ids, is_pin=True, **fields)
    one.drain()
    assert listener.finished.reason == "length"
    return id


def cached(one, ids=PREFIX):
    return one.core.count_cached([tuple(ids)])[0]


def test_a_pinned_prefix_is_never_evicted_and_an_unpinned_one_is():
    one = driver()
    id = pin(one)
    for token in range(5, 10):
        one.submit([token] * 30, max_tokens=2)
        one.drain()
    assert cached(one) == 16
    one.core.unpin(id)
    one.submit([11] * 40, max_tokens=2)
    one.drain()
    assert cached(one) == 0
    one.check_idle()


def test_a_pin_survives_a_flush():
    one = driver()
    id = pin(one)
    one.core.flush()
    assert cached(one) == 16
    assert one.core.stats().pages_pinned == 4
    one.core.unpin(id)
    one.core.unpin(id)
    assert one.core.stats().pages_pinned == 0
    one.core.flush()
    assert one.core.stats().pages_free == 12


def test_two_pins_share_the_pages_that_they_have_in_common():
    one = driver()
    first, second = pin(one, [*PREFIX, 5, 5, 5, 5]), pin(one, [*PREFIX, 6, 6, 6, 6])
    assert one.core.stats().pages_pinned == 6
    one.core.unpin(first)
    one.core.flush()
    assert cached(one, [*PREFIX, 6, 6, 6, 6]) == 20
    assert cached(one, [*PREFIX, 5, 5, 5, 5]) == 16
    one.core.unpin(second)


def test_pins_that_would_leave_too_little_of_the_pool_are_refused():
    one = driver(num_pages=8)
    pin(one)
    with pytest.raises(EngineError, match=r"32 tokens would be pinned.*at most 24 may be"):
        one.submit([9] * 16, is_pin=True)
    one.submit([9] * 8, is_pin=True)
    one.drain()


def test_a_prefix_shorter_than_a_page_is_refused():
    one = driver()
    with pytest.raises(ValueError, match="whole pages of 4 tokens"):
        one.submit([1, 2, 3], is_pin=True)
    with pytest.raises(ValueError, match="generates nothing"):
        one.submit(PREFIX, is_pin=True, max_tokens=1)


def test_a_request_that_does_not_fit_beside_what_is_pinned_is_refused_and_one_that_begins_with_it_is_not():
    one = driver(num_pages=8)
    pin(one)
    with pytest.raises(ContextLengthError, match="pins hold 16 tokens of the pool"):
        one.submit([9] * 17, max_tokens=1)
    listener = one.submit([*PREFIX, *[9] * 15], max_tokens=9)
    one.drain()
    assert len(listener.finished.ids) == 2  # to the end of the pool
    assert listener.finished.num_cached == 16
    assert listener.finished.ids == run_alone([*PREFIX, *[9] * 15], max_tokens=2).ids


def test_a_pin_waits_for_requests_before_it_that_were_promised_its_pages():
    one = driver(num_pages=8)
    long = one.submit([9], max_tokens=30)
    one.step()
    waiting = one.submit(PREFIX, is_pin=True)
    short = one.submit([8] * 8, max_tokens=2)
    one.drain()
    assert len(long.finished.ids) == 30
    assert waiting.finished.reason == "length"
    assert short.finished.ids == run_alone([8] * 8, max_tokens=2).ids
    assert cached(one) == 16


def test_a_pin_that_fails_or_is_taken_back_before_it_is_computed_leaves_nothing_pinned():
    one = driver(num_pages=8)
    one.submit([9], max_tokens=30)
    one.step()
    waiting = one.submit(PREFIX, is_pin=True)
    one.core.unpin(1)
    assert isinstance(waiting.error, RunCancelledError)
    assert one.core.stats().pages_pinned == 0
    one.drain()


def test_a_thread_may_pin_and_unpin_while_others_are_served():
    engine = Engine(FakeRunner(num_pages=16, page_size=4))
    events = []
    id = engine.submit(EngineRequest(ids=tuple(PREFIX), on_event=events.append, is_pin=True))
    engine.flush()
    while engine.stats().num_finished == 0:
        engine.flush()
    assert engine.count_cached([tuple(PREFIX)]) == [16]
    engine.unpin(id)
    assert engine.flush() == 4
    engine.close()
    engine.unpin(id)


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("pin"), st.lists(st.integers(1, 2), min_size=2, max_size=10)),
            st.tuples(st.just("ask"), st.lists(st.integers(1, 2), min_size=1, max_size=16), st.integers(1, 12)),
            st.tuples(st.just("unpin"), st.integers(0, 5)),
            st.tuples(st.just("flush")),
            st.tuples(st.just("step")),
        ),
        max_size=20,
    )
)
def test_any_mixture_of_pins_and_requests_ends_and_changes_no_output(steps):
    one = Driver(FakeRunner(num_pages=12, page_size=2), fixed_rows=1e9, headroom_tokens=0, max_running=3)
    pins, asked = [], []
    for step in steps:
        try:
            match step:
                case ("pin", ids):
                    pins.append(one.num_ids)
                    one.submit(ids, is_pin=True)
                case ("ask", ids, max_tokens):
                    asked.append((ids, one.submit(ids, max_tokens=max_tokens)))
                case ("unpin", number) if number < len(pins):
                    one.core.unpin(pins[number])
                case ("flush",):
                    one.core.flush()
                case ("step",):
                    one.step()
        except (ContextLengthError, EngineError):
            pins = [id for id in pins if id != one.num_ids]
        one.core.check()
    one.drain()
    for ids, listener in asked:
        made = listener.finished.ids
        assert made == run_alone(ids, max_tokens=len(made)).ids
    for id in pins:
        one.core.unpin(id)
    one.check_idle()
