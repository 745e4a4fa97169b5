"""Threads and the loop."""

from __future__ import annotations

import threading

import pytest

from forktree.lang.errors import LanguageError
from forktree.runtime.executor import BodyPool, Gate, get_executor
from forktree.runtime.values import Failure, Value, combine


def test_a_gate_that_was_opened_first_lets_the_waiter_through() -> None:
    gate = Gate()
    gate.open()
    gate.open()
    assert gate.wait(0)
    assert not gate.wait(0)


def test_the_pool_never_makes_more_threads_than_its_limit() -> None:
    pool = BodyPool(max_threads=3)
    gate, done = threading.Event(), threading.Semaphore(0)

    def job() -> None:
        gate.wait(10)
        done.release()

    for _ in range(20):
        pool.submit(job)
    assert pool.num_threads == 3
    gate.set()
    for _ in range(20):
        assert done.acquire(timeout=10)


def test_a_job_that_finds_no_thread_is_run_by_the_caller() -> None:
    pool = BodyPool(max_threads=1)
    gate = threading.Event()
    pool.submit(lambda: gate.wait(10) and None)
    ran_in: list[str] = []
    pool.start_or_run(lambda: ran_in.append(threading.current_thread().name))
    assert ran_in == [threading.current_thread().name]
    gate.set()


def test_a_waiting_body_runs_a_nested_job_that_has_no_thread() -> None:
    pool = BodyPool(max_threads=1)
    order: list[str] = []
    finished = threading.Event()
    inner_done = Value()

    def nested() -> None:
        order.append("nested")
        inner_done.set(None)

    def body() -> None:
        gate = Gate()
        inner_done.on_set(gate.open)
        pool.submit_nested(nested)
        pool.help_until(lambda: inner_done.is_set, gate, None)
        pool.unpark(gate)
        order.append("body")
        finished.set()

    pool.submit(body)
    assert finished.wait(10)
    assert order == ["nested", "body"]


def test_waiting_on_the_loop_s_own_thread_is_refused() -> None:
    executor = get_executor()
    value = Value()
    caught: list[BaseException] = []
    seen = threading.Event()

    def wait() -> None:
        try:
            executor.wait(lambda: value.is_set, value.on_set, instead="await it")
        except LanguageError as error:
            caught.append(error)
        seen.set()

    executor.call(wait)
    assert seen.wait(10)
    assert "await it" in str(caught[0])


def test_a_wait_ends_when_its_time_is_over() -> None:
    value = Value()
    assert not get_executor().wait(lambda: value.is_set, value.on_set, instead="", timeout=0.01)


# Values


def test_callbacks_of_a_set_value_run_at_once() -> None:
    calls: list[int] = []
    value = Value.ready(1)
    value.on_set(lambda: calls.append(1))
    assert calls == [1]


def test_a_value_that_is_set_does_not_fail_any_more() -> None:
    value = Value.ready(1)
    value.fail(Failure(ValueError()))
    assert value.get() == 1


def test_reading_a_failed_value_marks_its_failure_as_seen() -> None:
    failure = Failure(ValueError("x"))
    value = Value()
    value.fail(failure)
    assert not failure.observed
    with pytest.raises(ValueError, match="x"):
        value.get()
    assert failure.observed


def test_a_combined_value_is_there_when_all_are_and_fails_with_the_first_in_order() -> None:
    values = [Value() for _ in range(3)]
    combined = combine(values)
    values[1].set("b")
    values[0].set("a")
    assert not combined.is_set
    values[2].set("c")
    assert combined.get() == ["a", "b", "c"]
    values = [Value(), Value()]
    combined = combine(values)
    values[1].fail(Failure(ValueError("second")))
    values[0].fail(Failure(ValueError("first")))
    with pytest.raises(ValueError, match="first"):
        combined.get()
