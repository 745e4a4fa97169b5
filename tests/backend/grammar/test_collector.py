"""The garbage collector is put off while somebody is inside a pause, and left as it was."""

from __future__ import annotations

import gc
import threading

import pytest

from forktree.backend.grammar.collector import PAUSED_COLLECTOR
from forktree.backend.grammar.constraints import Regex
from forktree.lang.errors import ConstraintError


def test_pauses_nest_and_the_last_one_out_lets_the_collector_go_on() -> None:
    assert gc.isenabled()
    with PAUSED_COLLECTOR:
        with PAUSED_COLLECTOR:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with PAUSED_COLLECTOR:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_constraint_that_fails_lets_the_collector_go_on() -> None:
    with pytest.raises(ConstraintError):
        Regex("(a")
    with pytest.raises(ConstraintError):
        Regex("a(?!.*)b")
    assert gc.isenabled()


def test_pauses_of_many_threads_end_together() -> None:
    def work() -> None:
        for _ in range(200):
            with PAUSED_COLLECTOR:
                seen.add(gc.isenabled())

    seen: set[bool] = set()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {False}
    assert gc.isenabled()
