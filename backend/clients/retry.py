"""When and after how long a failed request is made again.

A request is made again only when nothing of its answer has come: what was streamed was billed, and half an answer
cannot be taken back. Waits double from one attempt to the next, with jitter, so that clients that failed together do
not come back together ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015). A service that says how long to
wait is obeyed.
"""

from __future__ import annotations

import email.utils
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

RETRIED_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently.

    Attributes:
        attempts: how often a request is made again after it failed.
        base_s: the wait before the first time; it doubles up to `cap_s`.
        patience_s: the longest wait that a service may ask for; one that asks for more gets no further request.
    """

    attempts: int = 4
    base_s: float = 0.5
    cap_s: float = 20.0
    patience_s: float = 120.0

    def delay(
        self,
        attempt: int,
        retry_after: float | None,
        draw: Callable[[], float] = random.random,
        cap_s: float | None = None,
    ) -> float | None:
        """Seconds to wait after failed attempt number `attempt` (from 0); None is to give up.

        Args:
            retry_after: the wait that the service asked for, if it did.
            draw: a number in [0, 1).
            cap_s: of this wait, in the place of the usual one.
        """
        if attempt >= self.attempts or (retry_after is not None and retry_after > self.patience_s):
            return None
        backoff = min(self.cap_s if cap_s is None else cap_s, self.base_s * float(2**attempt))
        if retry_after is not None:
            return retry_after + min(1.0, 0.1 * retry_after) * draw()
        return backoff * (0.5 + 0.5 * draw())


def retry_after_of(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """The wait that a service asks for, in seconds: `retry-after-ms`, or `Retry-After` as seconds or a date."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if value is None:
        return None
    seconds = _number(value)
    return seconds if seconds is not None else _until(value, now())


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None


def _until(date: str, now: float) -> float | None:
    try:
        return max(0.0, email.utils.parsedate_to_datetime(date).timestamp() - now)
    except (TypeError, ValueError):
        return None
