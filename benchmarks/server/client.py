"""One client for any server that speaks OpenAI's protocol: N conversations at a time, streamed, timed.

It reads bytes and looks into them no more than it must, since it has the machine in common with the server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from forktree.benchmarks.server.servers import Serving

_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer: seconds from the request to its first text and to its end, and what it took.

    `num_cached` is None where the server does not say.
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


async def drive(server: Serving, bodies: Iterator[dict[str, Any]], *, num_clients: int, num_requests: int) -> Driven:
    """So many requests, as many at a time as there are clients; each begins one when its last has ended.

    Raises:
        RuntimeError: a request was refused, or its answer broke off.
    """
    limits = httpx.Limits(max_connections=num_clients, max_keepalive_connections=num_clients)
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=_TIMEOUT_S) as client:
        waiting = iter([next(bodies) for _ in range(num_requests)])
        timings: list[Timing] = []

        async def one() -> None:
            for body in waiting:
                timings.append(await ask(client, server, body))

        begun = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(num_clients)))
        return Driven(timings, time.perf_counter() - begun)


async def ask(client: httpx.AsyncClient, server: Serving, body: dict[str, Any]) -> Timing:
    """One conversation, streamed. Raises RuntimeError: it was refused, or broke off."""
    options = {"model": server.model, "stream": True, "stream_options": {"include_usage": True}}
    begun, first, received, num_chunks = time.perf_counter(), None, bytearray(), 0
    async with client.stream("POST", "/v1/chat/completions", json={**body, **options, **server.extra}) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{server.name} answered {answer.status_code}: {(await answer.aread())[:500]!r}")
        async for data in answer.aiter_raw():
            received += data
            if first is None and _has_text(received):
                first = time.perf_counter()
    whole = time.perf_counter()
    events = [line[6:] for line in bytes(received).split(b"\n") if line.startswith(b"data: ")]
    if first is None or not events or events[-1].strip() != b"[DONE]":
        raise RuntimeError(f"{server.name} broke off: {bytes(received[-500:])!r}")
    num_chunks = sum(_has_text(event) for event in events)
    usage = next((found for event in reversed(events[:-1]) if (found := json.loads(event).get("usage"))), None)
    if usage is None:
        return Timing(first - begun, whole - begun, num_chunks)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Timing(first - begun, whole - begun, usage["completion_tokens"], usage["prompt_tokens"], cached)


def _has_text(received: bytes | bytearray) -> bool:
    """Whether some text has come: a content that is neither null nor empty."""
    for key in (b'"content":"', b'"content": "'):
        at = received.find(key)
        while at >= 0:
            if received[at + len(key) : at + len(key) + 1] != b'"':
                return True
            at = received.find(key, at + 1)
    return False
