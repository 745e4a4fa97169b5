"""Code of others that raises where it is called back, and what goes on all the same."""

from __future__ import annotations

import io
import sys
import threading

import pytest

import forktree as ft
from forktree.backend.fake import Fake
from forktree.runtime.executor import get_executor


@ft.function
def program(s, q):
    s += f"{q} " + ft.gen("x")
    return s["x"]


def echo(request) -> str:
    return f"<{request.prompt.strip()}>"


ROWS = [{"q": str(number)} for number in range(6)]
VALUES = [f"<{number}>" for number in range(6)]


class GoneTerminal(io.StringIO):
    """Takes some writes, then none, as a terminal that was closed does."""

    num_left = 1

    def write(self, text: str) -> int:
        self.num_left -= 1
        if self.num_left < 0:
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(text)

    def flush(self) -> None:
        if self.num_left < 0:
            raise OSError(28, "No space left on device")


def test_a_progress_bar_whose_terminal_is_gone_costs_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", GoneTerminal())
    results = program.using(backend=Fake(echo)).map(ROWS, progress=True)
    assert [result.value for result in results] == VALUES


def test_without_a_stderr_the_bar_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert [result.value for result in program.using(backend=Fake(echo)).map(ROWS, progress=True)] == VALUES


def test_a_consumer_of_a_stream_that_raises_stops_its_own_run_alone() -> None:
    fake = Fake(echo)
    bound = program.using(backend=fake)

    def consume() -> None:
        for _ in bound.stream("a").text_iter("x"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    assert bound.run("b")["x"] == "<b>"


def test_a_row_that_raises_anything_is_that_rows_error() -> None:
    @ft.function
    def fragile(s, q):
        s += f"{q} " + ft.gen("x")
        if q == "3":
            raise SystemExit(3)
        return s["x"]

    results = fragile.using(backend=Fake(echo)).map(ROWS)
    assert [result.value for result in results if result.ok] == VALUES[:3] + VALUES[4:]
    assert isinstance(results[3].error, SystemExit)


def test_an_asynchronous_body_that_exits_ends_its_own_run_alone() -> None:
    @ft.function
    async def leaves(s):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        leaves.run(backend=Fake([]))
    assert program.run("a", backend=Fake(echo))["x"] == "<a>"


def test_a_script_that_exits_is_told_to_its_waiter_and_the_loop_goes_on() -> None:
    def leave(request) -> str:
        raise SystemExit(3)

    with pytest.raises((SystemExit, ft.BackendError)):
        program.run("a", backend=Fake(leave))
    assert program.run("a", backend=Fake(echo))["x"] == "<a>"


def test_the_executors_thread_outlives_a_callback_that_asks_it_to_end(caplog: pytest.LogCaptureFixture) -> None:
    def leave() -> None:
        raise SystemExit(3)

    executor = get_executor()
    executor.call(leave)
    after = threading.Event()
    executor.call(after.set)
    assert after.wait(20)
    assert "it goes on" in caplog.text
    assert program.run("a", backend=Fake(echo))["x"] == "<a>"


def test_rows_that_cannot_be_had_any_more_raise_what_their_iterator_raised() -> None:
    def broken():
        yield from ROWS[:2]
        raise OSError("the file of rows is gone")

    results = program.using(backend=Fake(echo)).imap(broken(), concurrency=1)
    with pytest.raises(OSError, match="the file of rows is gone"):
        list(results)
