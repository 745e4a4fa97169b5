"""Answers on the wire: server-sent events, and waiting that ends when the client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from forktree.backend.local_generation import Generation
from forktree.backend.server.choices import closing_all
from forktree.backend.server.errors import api_error

T = TypeVar("T")

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; it is cancelled when the client goes away.

    Raises ClientDisconnect, and what the work raises.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, watcher):
            one.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """A response of server-sent events, each an object as JSON, and `[DONE]`.

    A fault in the middle is an event with an `error`, for the status has gone out already. When the client goes away,
    or the server gives up, `chunks` and the generations behind them are closed.
    """

    def __init__(self, chunks: AsyncGenerator[dict[str, Any], None], generations: Sequence[Generation]) -> None:
        self._chunks = chunks
        self._generations = generations  # closed here: chunks that were never asked for close nothing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with closing_all(self._generations), suppress(ClientDisconnect):
            await unless_disconnected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            try:
                async for chunk in chunks:
                    await _send_event(send, json.dumps(chunk, ensure_ascii=False, separators=(",", ":")))
            except Exception as error:
                await _send_event(send, json.dumps(api_error(error).body(), ensure_ascii=False))
            await _send_event(send, "[DONE]")
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_event(send: Send, data: str) -> None:
    await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})
