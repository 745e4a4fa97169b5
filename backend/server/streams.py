"""Answers on the wire: server-sent events, and waiting that ends when the client goes away."""

from __future__ import annotations

from collections.abc import AsyncGenerator, MutableMapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from forktree.backend.server.choices import closing_all
from forktree.backend.server.errors import api_error
from forktree.backend.server.flights import Watched
from forktree.backend.server.presence import unless_disconnected
from forktree.backend.server.wire import OPENAI, Wire

T = TypeVar("T")

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """A response of server-sent events, each an object as JSON.

    A fault in the middle is an event too, for the status has gone out already. When the client goes away,
    or the server gives up, `chunks` and the generations behind them are closed.
    """

    def __init__(
        self, chunks: AsyncGenerator[dict[str, Any], None], generations: Sequence[Watched], wire: Wire = OPENAI
    ) -> None:
        self._chunks = chunks
        self._wire = wire
        self._generations = generations  # closed here: chunks that were never asked for close nothing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with closing_all(self._generations), suppress(ClientDisconnect):
            await unless_disconnected(receive, self._send(send, scope.setdefault("state", {})))

    async def _send(self, send: Send, state: MutableMapping[str, Any]) -> None:
        async with aclosing(self._chunks) as chunks:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            try:
                async for chunk in chunks:
                    await _send_bytes(send, self._wire.event(chunk))
            except Exception as error:
                fault = api_error(error)
                state["fault"] = fault.code or fault.type
                if state.get("notes") is not None:
                    state["notes"].fault = state["fault"]
                await _send_bytes(send, self._wire.event(self._wire.fault(fault)))
            await send({"type": "http.response.body", "body": self._wire.end(), "more_body": False})


async def _send_bytes(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
