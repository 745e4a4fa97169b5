"""Reading text as it is made.

One variable: its pieces as the model writes them; a selected option, or a value that the program set, is one
piece. The whole branch: everything that `text()` will hold, in order. An iteration ends with the program's real
error if there is one, and with UndefinedVariableError when the program ended without setting the name.

With meta data each piece comes with what is known so far; how the variable was made is known at its end, so that
comes last, with an empty piece.

Outside the program (`stream`), leaving an iteration early cancels the run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from forktree.runtime.record import Meta
from forktree.runtime.values import Feed, Value, wait_on_loop

if TYPE_CHECKING:
    from forktree.runtime.state import State


class _Reader:
    """Where a reader stands in a feed; what both faces share."""

    def __init__(self, feed: Feed, is_over: Callable[[], bool]) -> None:
        self._feed = feed
        self._is_over = is_over
        self._position = 0

    def take(self) -> str | None:
        """The next piece that is there."""
        if self._position == len(self._feed.pieces):
            return None
        self._position += 1
        return self._feed.pieces[self._position - 1]

    def has_news(self) -> bool:
        return self._position < len(self._feed.pieces) or self._is_over()

    def on_news(self, callback: Callable[[], None]) -> None:
        """Call back once there is news; a change that brings none is waited out."""

        def look() -> None:
            if self.has_news():
                callback()
                return
            self._feed.on_change(look)
            if self.has_news():
                callback()

        look()


def iterate(state: State, var: str | None) -> Iterator[str]:
    """See the module."""
    executor = state._run.executor
    state._release()
    is_whole = False
    try:
        reader = _branch_reader(state) if var is None else None
        value: Value | None = None
        if var is not None:
            value = state._find(var, None)
            reader = _value_reader(value)
        elif prefix := _trunk_text(state):
            yield prefix
        if reader is not None:
            while True:
                executor.wait(reader.has_news, reader.on_news, instead="use text_async_iter")
                piece = reader.take()
                if piece is None:
                    break
                yield piece
        elif value is not None:
            yield from _single(state, value, state._wait)
        is_whole = True
    finally:
        if state._is_outside and not is_whole:
            state._run.cancel()
    _finish(state, value)


async def iterate_with_meta(state: State, var: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """See the module."""
    value = await _bind_async(state, var)
    text = ""
    async with aclosing(iterate_async(state, var, value)) as pieces:
        async for piece in pieces:
            text += piece
            yield piece, Meta(text=text, is_complete=False).to_dict()
    yield "", (value.meta or Meta(text=text)).to_dict()


async def _bind_async(state: State, var: str) -> Value:
    """The variable's value, once its name is bound; outside, giving up on the wait cancels the run."""
    try:
        while (value := state._bound(var)) is None:
            await wait_on_loop(state._register_name(var))
    except BaseException:
        if state._is_outside:
            state._run.cancel()
        raise
    return value


async def iterate_async(state: State, var: str | None, value: Value | None = None) -> AsyncGenerator[str, None]:
    """See the module. `value` is the variable's, where the caller has it already."""
    state._release()
    is_whole = False
    try:
        reader = _branch_reader(state) if var is None else None
        if var is not None:
            value = value or await _bind_async(state, var)
            reader = _value_reader(value)
        elif prefix := await _trunk_text_async(state):
            yield prefix
        if reader is not None:
            while True:
                if not reader.has_news():
                    await wait_on_loop(reader.on_news)
                    continue
                piece = reader.take()
                if piece is None:
                    break
                yield piece
        elif value is not None:
            await value.wait()
            yield _shown(value)
        is_whole = True
    finally:
        if state._is_outside and not is_whole:
            state._run.cancel()
    _finish(state, value)


def _branch_reader(state: State) -> _Reader:
    """Outside, the branch is over when the run is; inside, when nothing is pending on it."""
    cursor, run = state._cursor, state._run
    if state._is_outside:
        return _Reader(cursor.feed, lambda: run.is_settled)
    return _Reader(cursor.feed, lambda: cursor.is_idle)


def _value_reader(value: Value) -> _Reader | None:
    if value.feed is None:
        return None
    feed = value.feed
    return _Reader(feed, lambda: feed.is_closed)


def _trunk_text(state: State) -> str:
    """What a forked branch begins with."""
    base = state._cursor.trunk
    if base is None:
        return ""
    state._wait(base, "use text_async_iter", None)
    branch = base.get()
    return "" if branch is None else str(branch.text())


async def _trunk_text_async(state: State) -> str:
    base = state._cursor.trunk
    if base is None:
        return ""
    await base.wait()
    branch = base.get()
    return "" if branch is None else str(branch.text())


def _single(state: State, value: Value, wait: Callable[[Value, str, float | None], bool]) -> Iterator[str]:
    wait(value, "use text_async_iter", None)
    yield _shown(value)


def _shown(value: Value) -> str:
    result = value.get()
    return result if isinstance(result, str) else str(result)


def _finish(state: State, value: Value | None) -> None:
    """Raise what went wrong, once every piece was read."""
    if value is not None:
        if value.failure is not None:
            value.failure.throw()
    elif state._is_outside:
        state._run.raise_unhandled()
    elif state._cursor.failure is not None:
        state._cursor.failure.throw()
