"""Requests in the engine: watched, timed, and stopped from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from forktree.backend.local_generation import End, Generation, Piece
from forktree.backend.server.metrics import Metrics
from forktree.backend.server.notes import Notes
from forktree.lang.errors import TimeoutError
from forktree.runtime.protocol import Usage

T = TypeVar("T")


@dataclass(slots=True)
class Ending:
    """
    Attributes:
        error: with which everything is stopped, whatever comes later too; None while the server goes on.
    """

    error: Exception | None = None


class Flight:
    """One request and its generations, from when it has its places in the engine until it has left.

    Args:
        leave: called once, when the last generation has ended.
        timeout_s: seconds until it is stopped.

    Attributes:
        tenant: whose it is.
        notes: what becomes of it is written there, if anybody reads that.
    """

    def __init__(
        self,
        metrics: Metrics,
        tenant: str,
        leave: Callable[[], None],
        timeout_s: float | None,
        notes: Notes | None = None,
    ) -> None:
        self.metrics = metrics
        self.notes = notes
        self.tenant = tenant
        self.begun = time.perf_counter()
        self._leave = leave
        self._num_live = 0
        self._generations: list[Generation] = []
        self._stopped_with: Exception | None = None
        self._carried: asyncio.Future[Any] | None = None
        self._timer = None
        if timeout_s is not None:
            error = TimeoutError(f"the answer was not complete within {timeout_s:g} s")
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self.stop, error)

    def board(self, generations: list[Generation], sample_indices: Iterable[int]) -> list[Watched]:
        """The generations, as those of this request; each is some sample of its prompt."""
        self._num_live = len(generations)
        self._generations = generations
        if self._stopped_with is not None:
            self._stop_all(self._stopped_with)
        pairs = zip(generations, sample_indices, strict=True)
        return [Watched(generation, self, is_first=index == 0) for generation, index in pairs]

    def stop(self, error: Exception) -> None:
        """Whoever reads the answer gets the error."""
        if self._stopped_with is None:
            self._stopped_with = error
            self._stop_all(error)

    def _stop_all(self, error: Exception) -> None:
        for generation in self._generations:
            generation.stop(error)
        if self._carried is not None:
            self._carried.cancel()

    async def carry(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work that is answered as a whole; it is cancelled when this is stopped, or nobody waits.

        Raises what the work raises, and what it was stopped with.
        """
        task = self._carried = asyncio.ensure_future(work)
        if self._stopped_with is not None:
            task.cancel()
        try:
            result = await task
        except asyncio.CancelledError:
            task.cancel()
            self.metrics.aborted.inc()
            if self._stopped_with is not None:
                raise self._stopped_with from None
            raise
        self.metrics.whole.observe(time.perf_counter() - self.begun)
        return result

    def ended(self) -> None:
        """One generation has ended."""
        self._num_live -= 1
        if self._num_live == 0:
            self.abandon()

    def abandon(self) -> None:
        """It has left the engine, or never came in."""
        if self._timer is not None:
            self._timer.cancel()
        self._leave()


class Watched:
    """A generation of a flight: what it experiences is observed, and its end noticed, whichever it is.

    Args:
        is_first: of its prompt's samples, so that the prompt counts with this one.
    """

    def __init__(self, generation: Generation, flight: Flight, *, is_first: bool) -> None:
        self._is_first = is_first
        self.flight = flight
        self._generation = generation
        self._is_live = True

    def close(self) -> None:
        """See `Generation`."""
        self._generation.close()
        if self._is_live:
            self._is_live = False
            self.flight.metrics.aborted.inc()
            self.flight.ended()

    async def pieces(self) -> AsyncIterator[Piece | End]:
        """See `Generation`."""
        metrics, last = self.flight.metrics, None
        async with aclosing(self._generation.pieces()) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                now = time.perf_counter()
                if last is None:
                    metrics.to_first_token.observe(now - self.flight.begun)
                    if self.flight.notes is not None:
                        self.flight.notes.take_piece()
                elif isinstance(piece, Piece):
                    metrics.between_tokens.observe(now - last)
                last = now
                if isinstance(piece, End):
                    self._end(piece, now)
                yield piece

    def _end(self, end: End, now: float) -> None:
        metrics, usage = self.flight.metrics, end.completion.usage
        metrics.whole.observe(now - self.flight.begun)
        metrics.prompt_length.observe(usage.prompt_tokens)
        metrics.output_length.observe(usage.completion_tokens)
        if self.flight.notes is not None:
            self.flight.notes.add_usage(usage if self._is_first else Usage(completion_tokens=usage.completion_tokens))
            self.flight.notes.reasons.append(end.completion.finish_reason)
        self._is_live = False
        self.flight.ended()
