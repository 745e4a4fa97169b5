"""One pooled HTTP client: requests with retries up to the first byte of their answer, then the answer as it comes.

A client's connections belong to the event loop that opened them, so there is one client a loop. It is closed with
the backend, or with its loop, whichever comes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

from forktree.backend.clients.account import Account
from forktree.backend.clients.extra import httpx
from forktree.backend.clients.faults import Fault, Place, fault_of_status, fault_of_transport
from forktree.backend.clients.governor import Governor
from forktree.backend.clients.retry import Retry
from forktree.backend.clients.sse import EventReader, ServerEvent
from forktree.lang.errors import BackendError, RateLimitError, ServerError

_CLOSE_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, and of silence while an answer is awaited or read."""

    connect_s: float = 10.0
    silence_s: float = 600.0


class Answer:
    """An answer whose first byte has come.

    Attributes:
        is_stream: it is a stream of events, else one JSON text.
    """

    def __init__(
        self, transport: Transport, response: httpx.Response, first: bytes, pieces: AsyncGenerator[bytes, None]
    ) -> None:
        self._transport = transport
        self._response = response
        self._first = first
        self._pieces = pieces
        self.is_stream = response.headers.get("content-type", "").startswith("text/event-stream")

    async def events(self) -> AsyncGenerator[ServerEvent, None]:
        """The events of a stream."""
        reader = EventReader()
        async for piece in self._bytes():
            for event in reader.feed(piece):
                yield event
        for event in reader.end():
            yield event

    async def data(self) -> Any:
        """The JSON. Raises ServerError: it is none."""
        body = b"".join([piece async for piece in self._bytes()])
        return self._transport.parsed(body.decode("utf-8", "replace"))

    async def aclose(self) -> None:
        """Leave the answer; what has not come will not."""
        await self._pieces.aclose()
        await self._response.aclose()

    async def _bytes(self) -> AsyncIterator[bytes]:
        yield self._first
        try:
            async for piece in self._pieces:
                yield piece
        except httpx.HTTPError as error:
            raise self._transport.fault(error).error from error


class Transport:
    """Requests to one place.

    Args:
        headers: sent with each request, the key among them.
    """

    def __init__(
        self,
        place: Place,
        headers: Mapping[str, str],
        *,
        timeouts: Timeouts,
        retry: Retry,
        governor: Governor,
        account: Account,
        max_connections: int,
    ) -> None:
        self.place = place
        self._headers = dict(headers)
        self._timeouts = timeouts
        self._retry = retry
        self._governor = governor
        self._account = account
        self._max_connections = max_connections
        self._lock = threading.Lock()
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClient] = WeakKeyDictionary()
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def exchange(
        self, path: str, body: Mapping[str, Any] | None, num_tokens: int, used: Callable[[], int | None] = lambda: None
    ) -> AsyncIterator[Answer]:
        """Send `body` as JSON, or ask for what lies there; the answer has begun when the context is entered.

        Args:
            num_tokens: what the governor counts it with until its end; then what `used` tells, if it can.
        Raises:
            BackendError: as `faults` says, once trying again does not help.
        """
        attempt = 0
        while True:
            admission = await self._governor.admit(num_tokens)
            try:
                answer = await self._begin(path, body)
                break
            except _Failed as failed:
                self._governor.settle(admission, 0)
                await self._wait(failed.fault, attempt)
                attempt += 1
        try:
            yield answer
        finally:
            count = used()
            if count is not None:
                self._governor.settle(admission, count)
            await answer.aclose()

    async def get(self, path: str) -> Any:
        """The JSON that is served at `path`, with the same patience."""
        async with self.exchange(path, None, 0) as answer:
            return await answer.data()

    async def _begin(self, path: str, body: Mapping[str, Any] | None) -> Answer:
        client = await self._client()
        method = "GET" if body is None else "POST"
        try:
            request = client.build_request(method, self._url(path), json=body, headers=self._headers)
            response = await client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _Failed(self.fault(error)) from error
        try:
            if not response.is_success:
                content = await response.aread()
                raise _Failed(fault_of_status(self.place, response.status_code, response.headers, content))
            pieces = cast(AsyncGenerator[bytes, None], response.aiter_bytes())
            first = await anext(pieces, b"")
            return Answer(self, response, first, pieces)
        except httpx.HTTPError as error:
            await response.aclose()
            raise _Failed(self.fault(error)) from error
        except BaseException:
            await response.aclose()
            raise

    async def _wait(self, fault: Fault, attempt: int) -> None:
        """Until the request may be made again. Raises the fault's error where it may not."""
        delay = self._retry.delay(attempt, fault.retry_after, cap_s=fault.cap_s) if fault.is_passing else None
        if delay is None:
            if attempt:
                fault.error.add_note(f"tried {attempt + 1} times")
            raise fault.error
        if isinstance(fault.error, RateLimitError) and fault.retry_after is not None:
            self._governor.pause(fault.retry_after)
        self._account.note_retry()
        await asyncio.sleep(delay)

    def fault(self, error: Exception) -> Fault:
        return fault_of_transport(self.place, error, self._timeouts.silence_s)

    def parsed(self, text: str) -> Any:
        """JSON text as data. Raises ServerError: it is none."""
        try:
            return json.loads(text)
        except ValueError as error:
            shown = text if len(text) <= 120 else text[:119] + "…"
            raise ServerError(f"{self.place} sent what is not JSON: {shown!r}: {error}") from error

    def unreadable(self, data: Any) -> ServerError:
        """The error for JSON that is no answer."""
        return ServerError(
            f"{self.place} sent {str(data)[:120]!r}, which is no answer; does base_url lead to the right one?"
        )

    def _url(self, path: str) -> str:
        return path if path.startswith("http") else f"{self.place.url}/{path}"

    async def _client(self) -> httpx.AsyncClient:
        if self._is_closed:
            raise BackendError(f"the backend of {self.place} is closed")
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._clients.get(loop)
            if found is None:
                found = self._clients[loop] = _LoopClient(self._make_client())
        await found.begin()
        return found.client

    def _make_client(self) -> httpx.AsyncClient:
        timeouts = self._timeouts
        return httpx.AsyncClient(
            verify=_certificates(),
            timeout=httpx.Timeout(timeouts.silence_s, connect=timeouts.connect_s, pool=None),
            limits=httpx.Limits(max_connections=self._max_connections, max_keepalive_connections=self._max_connections),
        )

    def close(self) -> None:
        """Close every connection; whoever reads one gets an error. Closing twice is harmless."""
        self._is_closed = True
        with self._lock:
            clients = list(self._clients.items())
            self._clients.clear()
        for loop, client in clients:
            client.close_on(loop)


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The authorities that are trusted: read once, since that takes longer than a request on this machine."""
    return httpx.create_ssl_context()


class _Failed(Exception):
    """An attempt failed."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault.error))
        self.fault = fault


class _LoopClient:
    """A client that its loop closes before it ends: as an asynchronous generator that the loop winds up."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self._keeper = self._keep()
        self._has_begun = False

    async def _keep(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.client.aclose()

    async def begin(self) -> None:
        """Register with the running loop, once."""
        if not self._has_begun:
            self._has_begun = True
            await anext(self._keeper)

    def close_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close, from any thread; waits a moment for it where that cannot block the loop."""
        if loop.is_closed() or not loop.is_running():
            return
        closing = asyncio.run_coroutine_threadsafe(self._keeper.aclose(), loop)  # type: ignore[attr-defined]
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is loop:
                return
        with contextlib.suppress(Exception):
            closing.result(_CLOSE_WAIT_S)
