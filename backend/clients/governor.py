"""Staying under a service's limits: so many requests and so many tokens in any minute.

A sliding log: the start of each request of the last minute is kept, and a new one starts at the first moment at which
no minute holds more than the limits. So the limits hold for every window of a minute, wherever it begins, while a burst
that fits goes out at once. Starts are given in the order in which they are asked for; nobody overtakes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from forktree.lang.errors import RateLimitError

WINDOW_S = 60.0


@dataclass(slots=True)
class Admission:
    """One admitted request: when it starts, and the tokens that it is counted with."""

    start: float
    num_tokens: int
    is_logged: bool = False


class Governor:
    """Gives starts. Safe in several threads; `None` is no limit."""

    def __init__(
        self,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("requests_per_minute", requests_per_minute), ("tokens_per_minute", tokens_per_minute)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        self._max_requests = requests_per_minute
        self._max_tokens = tokens_per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._log: deque[Admission] = deque()  # in the order of their starts
        self._num_tokens = 0  # of all in the log
        self._not_before = 0.0

    async def admit(self, num_tokens: int) -> Admission:
        """Wait for this request's turn.

        Raises:
            RateLimitError: it alone is over the limit of tokens.
        """
        admission = self.reserve(num_tokens)
        try:
            while (left := admission.start - self._clock()) > 0:
                await asyncio.sleep(left)
        except asyncio.CancelledError:
            self.settle(admission, 0)
            raise
        return admission

    def reserve(self, num_tokens: int) -> Admission:
        """The first start that the limits allow, taken for this request."""
        if self._max_tokens is not None and num_tokens > self._max_tokens:
            raise RateLimitError(
                f"a request of about {num_tokens} tokens, its max_tokens among them, can never start under "
                f"tokens_per_minute={self._max_tokens}; lower max_tokens, shorten the prompt or raise the limit"
            )
        with self._lock:
            now = self._clock()
            self._forget(now - WINDOW_S)
            admission = Admission(self._first_start(now, num_tokens), num_tokens)
            if self._max_requests is not None or self._max_tokens is not None:
                self._log.append(admission)
                admission.is_logged = True
                self._num_tokens += num_tokens
            self._not_before = max(self._not_before, admission.start)
            return admission

    def settle(self, admission: Admission, num_tokens: int) -> None:
        """The request is done, and this is what it really took."""
        with self._lock:
            if admission.is_logged:
                self._num_tokens += num_tokens - admission.num_tokens
            admission.num_tokens = num_tokens

    def pause(self, seconds: float) -> None:
        """The service has asked for a wait: nobody starts before it is over."""
        with self._lock:
            self._not_before = max(self._not_before, self._clock() + seconds)

    def _first_start(self, now: float, num_tokens: int) -> float:
        start = max(now, self._not_before)
        num_requests, num_held = len(self._log), self._num_tokens
        for oldest in self._log:
            if start - oldest.start < WINDOW_S and not self._fits(num_requests + 1, num_held + num_tokens):
                start = max(start, oldest.start + WINDOW_S)
            elif start - oldest.start < WINDOW_S:
                break
            num_requests -= 1
            num_held -= oldest.num_tokens
        return start

    def _fits(self, num_requests: int, num_tokens: int) -> bool:
        return (self._max_requests is None or num_requests <= self._max_requests) and (
            self._max_tokens is None or num_tokens <= self._max_tokens
        )

    def _forget(self, before: float) -> None:
        while self._log and self._log[0].start <= before:
            gone = self._log.popleft()
            gone.is_logged = False
            self._num_tokens -= gone.num_tokens
