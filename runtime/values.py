"""A value that is not there yet, and how threads and tasks wait for it.

`Value` is set once, by whoever computes it, and read by any thread or event loop. No locks: a waiter registers
first and looks again, the setter stores first and notifies then, so one of the two always sees the other.
Callbacks may therefore run twice and must be harmless when they do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from forktree.lang.errors import ForktreeError
from forktree.runtime.record import Meta

Callback = Callable[[], None]


class Failure:
    """Why a value will never come. Shared by all values that one error took with it.

    `observed` tells whether the program saw the error; a run whose program never did raises it at the end.
    """

    __slots__ = ("error", "observed")

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.observed = False

    def throw(self) -> Any:
        """Raise the error, and remember that it was seen."""
        self.observed = True
        raise self.error


class Feed:
    """Pieces of text in the order in which they appear. One writer, any number of readers."""

    __slots__ = ("_waiters", "is_closed", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.is_closed = False
        self._waiters: list[Callback] = []

    def push(self, text: str) -> None:
        """Add one piece."""
        if text:
            self.pieces.append(text)
            if self._waiters:
                self.wake()

    def close(self) -> None:
        """No more pieces will come."""
        self.is_closed = True
        self.wake()

    def wake(self) -> None:
        """Let every reader look again."""
        waiters, self._waiters = self._waiters, []
        for callback in waiters:
            callback()

    def on_change(self, callback: Callback) -> None:
        """Call back once, at the next change; look again after registering."""
        self._waiters.append(callback)


class Value:
    """One variable's value, pending, ready or failed.

    Attributes:
        meta: how it was made, from the moment it is ready.
        feed: the text while it is being generated, or None for values that do not stream.
    """

    __slots__ = ("_failure", "_is_set", "_parse", "_result", "_waiters", "feed", "meta")

    def __init__(self) -> None:
        self._is_set = False
        self._result: Any = None
        self._failure: Failure | None = None
        self._parse: Callable[[], Any] | None = None
        self._waiters: list[Callback] = []
        self.meta: Meta | None = None
        self.feed: Feed | None = None

    @staticmethod
    def ready(result: Any) -> Value:
        """A value that is there from the start."""
        value = Value()
        value._result = result
        value._is_set = True
        return value

    @property
    def is_set(self) -> bool:
        """Ready or failed: reading does not wait."""
        return self._is_set

    @property
    def failure(self) -> Failure | None:
        return self._failure

    def set(self, result: Any, meta: Meta | None = None) -> None:
        """The value is there."""
        self._result = result
        self.meta = meta
        self._finish()

    def set_lazily(self, parse: Callable[[], Any], meta: Meta) -> None:
        """The value is what `parse` makes, in the thread of the first reader; what it raises is the reader's."""
        self._parse = parse
        self.meta = meta
        self._finish()

    def fail(self, failure: Failure) -> None:
        """The value will never come. Does nothing when it is already there."""
        if not self._is_set:
            self._failure = failure
            self._finish()

    def _finish(self) -> None:
        self._is_set = True
        if self.feed is not None:
            self.feed.close()
        waiters, self._waiters = self._waiters, []
        for callback in waiters:
            callback()

    def on_set(self, callback: Callback) -> None:
        """Call back when the value is set; at once if it is."""
        self._waiters.append(callback)
        if self._is_set:
            callback()

    def get(self) -> Any:
        """The value of a set one. Raises its error, or what its parsing raises."""
        assert self._is_set
        if self._failure is not None:
            self._failure.throw()
        parse = self._parse  # two readers may parse at once; both get an equal value
        if parse is not None:
            self._result = parse()
            self._parse = None
        return self._result

    async def wait(self) -> None:
        """Wait on the running loop, whichever it is, until the value is set."""
        if not self._is_set:
            await wait_on_loop(self.on_set)


async def wait_on_loop(register: Callable[[Callback], None]) -> None:
    """Suspend the running task until `register`'s callback is called, from any thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    thread = threading.get_ident()

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    def notify() -> None:
        if threading.get_ident() == thread:
            finish()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(finish)

    register(notify)
    await future


def combine(values: list[Value]) -> Value:
    """The list of all their values, once all are there; the first one's error in order, if any failed."""
    combined = Value()

    def look() -> None:
        if combined.is_set or not all(value.is_set for value in values):
            return
        failures = [value.failure for value in values if value.failure is not None]
        if failures:
            combined.fail(failures[0])
        else:
            combined.set_lazily(lambda: [value.get() for value in values], Meta(samples=_metas(values)))

    if all(value.is_set for value in values):
        look()
        return combined
    for value in values:
        value.on_set(look)
    return combined


def _metas(values: list[Value]) -> tuple[Meta, ...]:
    return tuple(value.meta for value in values if value.meta is not None)


def note_line(error: BaseException, what: str) -> None:
    """Add "in …" to an error, once."""
    note = f"in {what}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def is_ours(error: BaseException) -> bool:
    """Is it one of forktree's own errors?"""
    return isinstance(error, ForktreeError)
