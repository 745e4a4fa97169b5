"""A tool that never returns holds up its own row, and neither the others, nor Ctrl-C, nor the end of the process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

import forktree as ft
from forktree.backend.fake import Fake

ANSWER = {"call": '{"name":"look_up","arguments":{"key":"a"}}'}


@pytest.fixture
def never():
    """What the hung tools of a test wait for; they are let go at its end."""
    event = threading.Event()
    yield event
    event.set()


def calling(tool, **options):
    """A program that has one tool called, and calls it."""

    @ft.function
    def program(s, q):
        s += f"{q}" + ft.gen("call", tools=[tool])
        return s["call"](**options) if q == "hang" else q

    return program.using(backend=Fake(lambda request: ANSWER["call"]))


def hung(never: threading.Event):
    def look_up(key: str) -> str:
        """Wait for a service that is gone."""
        never.wait()
        return "late"

    return look_up


ROWS = [{"q": "a"}, {"q": "hang"}, {"q": "b"}, {"q": "c"}]


def test_a_call_with_a_timeout_ends_in_time_and_the_row_fails_alone(never) -> None:
    results = calling(hung(never), timeout=0.05).map(ROWS)
    assert [result.value for result in results if result.ok] == ["a", "b", "c"]
    assert isinstance(results[1].error, ft.TimeoutError)
    assert "tool 'look_up' has not returned within 0.05 s" in str(results[1].error)


def test_a_call_that_ends_in_time_gives_its_result_or_its_own_error(never) -> None:
    def look_up(key: str) -> str:
        if never.is_set():
            raise TimeoutError("the tool's own")
        return key.upper()

    program = calling(look_up, timeout=20)
    assert program.run("hang").ret_value == "A"
    never.set()
    with pytest.raises(TimeoutError, match="the tool's own"):
        program.run("hang")


async def test_an_asynchronous_tool_is_cancelled_when_its_time_is_over() -> None:
    is_cancelled = asyncio.Event()

    async def look_up(key: str) -> str:
        try:
            await asyncio.sleep(1000)
        finally:
            is_cancelled.set()
        return key

    call = await asyncio.to_thread(lambda: calling(look_up).run("x")["call"])
    with pytest.raises(ft.TimeoutError, match="look_up"):
        await call(timeout=0.02)
    await asyncio.wait_for(is_cancelled.wait(), 20)


def test_without_a_timeout_the_other_rows_finish(never) -> None:
    results = calling(hung(never)).imap(ROWS, ordered=False)
    assert sorted(next(results).value for _ in range(3)) == ["a", "b", "c"]
    results.close()


def test_ctrl_c_leaves_a_map_that_waits_for_a_hung_tool_with_what_is_done(never, interruptible) -> None:
    tool_hangs = threading.Event()

    def look_up(key: str) -> str:
        tool_hangs.set()
        never.wait()
        return "late"

    program = calling(look_up)
    seen: list[str] = []

    def interrupt() -> None:
        tool_hangs.wait(20)
        while len(seen) < 3:  # the other rows' results have been taken
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        seen.extend(result.value for result in program.imap(ROWS, ordered=False))
