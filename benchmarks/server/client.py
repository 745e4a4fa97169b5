"""One client for any server that speaks OpenAI's protocol: N conversations at a time, streamed, timed.

Client and server have the same cores, so what the client uses is missing to the server. One thread therefore reads all
connections, and looks into what has come only until its first text; the rest is read when the clock has stopped.
"""

from __future__ import annotations

import itertools
import json
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from forktree.benchmarks.server.servers import Serving

_TIMEOUT_S = 300.0
_CONTENT = (b'"content":"', b'"content": "')


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer: seconds from the request to its first text and to its end, and what it took.

    The last two are None where the server does not say.
    """

    first_s: float
    whole_s: float
    num_tokens: int
    num_prompt_tokens: int | None = None
    num_cached: int | None = None


@dataclass(frozen=True, slots=True)
class Driven:
    """What a number of clients got done, and in how many seconds."""

    timings: list[Timing]
    seconds: float


@dataclass(slots=True)
class _Flight:
    """One request on its connection."""

    connection: socket.socket
    begun: float
    first: float | None = None
    ended: float = 0.0
    received: bytearray = field(default_factory=bytearray)

    def take(self, data: bytes, now: float) -> None:
        self.received += data
        if self.first is None and _has_text(self.received):
            self.first = now


def drive(server: Serving, bodies: Iterator[dict[str, Any]], *, num_clients: int, num_requests: int) -> Driven:
    """So many requests, as many at a time as there are clients: when one has ended, the next begins.

    Raises:
        RuntimeError: a request was refused, or its answer broke off.
        TimeoutError: nothing came for five minutes.
    """
    waiting = iter([_request(server, body) for body in itertools.islice(bodies, num_requests)])
    done: list[_Flight] = []
    with selectors.DefaultSelector() as selector:

        def begin() -> None:
            request = next(waiting, None)
            if request is not None:
                flight = _sent(server, request)
                selector.register(flight.connection, selectors.EVENT_READ, flight)

        begun = time.perf_counter()
        for _ in range(num_clients):
            begin()
        while selector.get_map():
            ready = selector.select(_TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"{server.name} was silent for {_TIMEOUT_S:g} s")
            now = time.perf_counter()
            for key, _ in ready:
                flight: _Flight = key.data
                data = flight.connection.recv(1 << 16)
                if data:
                    flight.take(data, now)
                    continue
                flight.ended = now
                selector.unregister(flight.connection)
                flight.connection.close()
                done.append(flight)
                begin()
        seconds = time.perf_counter() - begun
    return Driven([_timing(server, flight) for flight in done], seconds)


def _request(server: Serving, body: dict[str, Any]) -> bytes:
    options = {"model": server.model, "stream": True, "stream_options": {"include_usage": True}}
    data = json.dumps({**body, **options, **server.extra}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def _sent(server: Serving, request: bytes) -> _Flight:
    parts = urlsplit(server.url)
    begun = time.perf_counter()
    connection = socket.create_connection((parts.hostname, parts.port), timeout=_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(request)
    return _Flight(connection, begun)


def _timing(server: Serving, flight: _Flight) -> Timing:
    head, _, body = bytes(flight.received).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{server.name} answered {head[:100]!r}: {body[:500]!r}")
    if b"transfer-encoding: chunked" in head.lower():
        body = _unchunked(body)
    events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    if flight.first is None or not events or events[-1].strip() != b"[DONE]":
        raise RuntimeError(f"{server.name} broke off: {body[-500:]!r}")
    first_s, whole_s = flight.first - flight.begun, flight.ended - flight.begun
    usage = next((found for event in reversed(events[:-1]) if (found := json.loads(event).get("usage"))), None)
    if usage is None:
        return Timing(first_s, whole_s, sum(_has_text(event) for event in events))
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Timing(first_s, whole_s, usage["completion_tokens"], usage["prompt_tokens"], cached)


def _unchunked(body: bytes) -> bytes:
    pieces, at = [], 0
    while at < len(body):
        end = body.index(b"\r\n", at)
        size = int(body[at:end].split(b";")[0], 16)
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(pieces)


def _has_text(received: bytes | bytearray) -> bool:
    """Whether some text has come: a content that is neither null nor empty."""
    for key in _CONTENT:
        at = received.find(key)
        while at >= 0:
            if received[at + len(key) : at + len(key) + 1] not in (b'"', b""):
                return True
            at = received.find(key, at + 1)
    return False
