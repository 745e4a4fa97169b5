"""What a network backend has asked for and what it cost, failed and repeated requests among them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from forktree.runtime.protocol import Usage


@dataclass(frozen=True, slots=True)
class ClientStats:
    """A snapshot of a network backend's counters.

    Attributes:
        num_requests: answered ones, whether their answer was taken or not.
        num_retries: requests made again after a fault.
        num_reasked: requests made again because the answer broke its constraint.
        num_truncated: prompts that were cut to fit.
        prompt_tokens, cached_tokens, completion_tokens: as the service counts; cached ones are part of the prompt's.
        cost: at the backend's prices, in their currency; None without prices.
    """

    num_requests: int = 0
    num_retries: int = 0
    num_reasked: int = 0
    num_truncated: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None


class Account:
    """The counters of one backend. Safe in several threads."""

    def __init__(self, prices: Mapping[str, float] | None) -> None:
        self._prices = prices
        self._lock = threading.Lock()
        self._stats = ClientStats(cost=None if prices is None else 0.0)

    def stats(self) -> ClientStats:
        return self._stats

    def note_answer(self, usage: Usage) -> None:
        """An answer with these counts has come."""
        with self._lock:
            stats = self._stats
            cost = None if stats.cost is None else stats.cost + cost_of(usage, self._prices or {})
            self._stats = replace(
                stats,
                num_requests=stats.num_requests + 1,
                prompt_tokens=stats.prompt_tokens + usage.prompt_tokens,
                cached_tokens=stats.cached_tokens + usage.cached_tokens,
                completion_tokens=stats.completion_tokens + usage.completion_tokens,
                cost=cost,
            )

    def note_retry(self) -> None:
        with self._lock:
            self._stats = replace(self._stats, num_retries=self._stats.num_retries + 1)

    def note_reasked(self) -> None:
        with self._lock:
            self._stats = replace(self._stats, num_reasked=self._stats.num_reasked + 1)

    def note_truncated(self) -> None:
        with self._lock:
            self._stats = replace(self._stats, num_truncated=self._stats.num_truncated + 1)


def cost_of(usage: Usage, prices: Mapping[str, float]) -> float:
    """The price of one answer; `prices` are for a million tokens, of input, cached_input and output."""
    cached_price = prices.get("cached_input", prices["input"])
    computed = usage.prompt_tokens - usage.cached_tokens
    paid = computed * prices["input"] + usage.cached_tokens * cached_price + usage.completion_tokens * prices["output"]
    return paid / 1e6
