"""Waiting a bounded time for code that may never return."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from forktree.lang.errors import TimeoutError

T = TypeVar("T")


def run_for(function: Callable[[], T], seconds: float, what: str) -> T:
    """What the function returns or raises, run on a thread of its own in the caller's context.

    Raises:
        TimeoutError: it has not returned in time. It goes on, and nobody sees how it ends; its thread is a daemon, so
            that it keeps no process from ending.
    """
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name=f"forktree {what}", daemon=True).start()
    if not wait([outcome], seconds).done:
        raise TimeoutError(f"{what} has not returned within {seconds} s")
    return outcome.result()


async def await_for(function: Callable[[], Coroutine[Any, Any, T]], seconds: float, what: str) -> T:
    """What the coroutine function returns or raises; it is cancelled when the time is over.

    Raises:
        TimeoutError: it has not returned in time.
    """
    task = asyncio.ensure_future(function())
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    finally:
        task.cancel()  # harmless if it has ended
    if not done:
        raise TimeoutError(f"{what} has not returned within {seconds} s")
    return task.result()
