"""The interpreter's switch interval: short while somebody holds it so, then what it was."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forktree.backend.engine.switching import SHORT_S, SwitchInterval, switch_interval, wake_promptly


@pytest.fixture(autouse=True)
def five_milliseconds():
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def now() -> float:
    return sys.getswitchinterval()


def test_the_last_holder_puts_back_what_the_first_found():
    interval = SwitchInterval()
    interval.shorten()
    interval.shorten()
    assert now() == pytest.approx(SHORT_S)
    interval.restore()
    assert now() == pytest.approx(SHORT_S)
    interval.restore()
    assert now() == pytest.approx(0.005)


def test_a_shorter_interval_is_left_alone():
    sys.setswitchinterval(1e-6)
    interval = SwitchInterval()
    interval.shorten()
    assert now() == pytest.approx(1e-6)
    interval.restore()
    assert now() == pytest.approx(1e-6)


def test_what_the_user_sets_meanwhile_stays():
    interval = SwitchInterval()
    interval.shorten()
    sys.setswitchinterval(0.002)
    interval.restore()
    assert now() == pytest.approx(0.002)


def test_it_can_be_held_again():
    interval = SwitchInterval()
    for _ in range(2):
        interval.shorten()
        assert now() == pytest.approx(SHORT_S)
        interval.restore()
        assert now() == pytest.approx(0.005)


def test_a_forked_child_has_what_was_there_before():
    interval = SwitchInterval()
    interval.forget()
    assert now() == pytest.approx(0.005)
    interval.shorten()
    interval.forget()
    assert now() == pytest.approx(0.005)


def test_the_process_has_one():
    assert switch_interval() is switch_interval()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="timer slack is Linux's")
def test_a_thread_that_wants_exact_timers_has_them():
    def slack() -> int:
        wake_promptly()
        return int(Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text())

    if not Path("/proc/self/timerslack_ns").exists():
        pytest.skip("this system does not tell")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(slack).result() == 1
