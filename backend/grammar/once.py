"""A memo bounded in bytes that makes each value once, however many threads ask for it at the same time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_NUM_RECENT = 8  # values weighed at a request: they grow while they are used, and those are in use most likely
_WEIGH_ALL_EVERY = 256  # requests: whoever holds an older value may still use it


class OnceCounts(NamedTuple):
    """What a memo was asked for: values that were there or under way, and those made or failed, in so many seconds."""

    num_found: int
    num_made: int
    seconds: float


class OnceCache(Generic[Key, Value]):
    """Least recently used values go first; the one asked for last stays. An error is raised to everyone who waited,
    and is not kept.

    Args:
        size_of: what a value takes now, in bytes; called from time to time.
        is_worn: a value should be made again for those who ask from now on; holders keep the old one.
    """

    def __init__(
        self,
        make: Callable[[Key], Value],
        *,
        max_bytes: int,
        size_of: Callable[[Value], int],
        is_worn: Callable[[Value], bool] = lambda _: False,
    ) -> None:
        self._make = make
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._is_worn = is_worn
        self._lock = threading.Lock()
        self._futures: OrderedDict[Key, Future[Value]] = OrderedDict()
        self._sizes: dict[Key, int] = {}  # of the values that are made, when they were weighed last
        self._total = 0  # of the sizes
        self._num_asked = self._num_made = 0
        self._seconds = 0.0

    def counts(self) -> OnceCounts:
        """Since the beginning of the process."""
        with self._lock:
            return OnceCounts(self._num_asked - self._num_made, self._num_made, self._seconds)

    def __len__(self) -> int:
        return len(self._futures)

    def bound(self, max_bytes: int) -> None:
        """Another bound, from the next request on."""
        self._max_bytes = max_bytes

    def get(self, key: Key) -> Value:
        with self._lock:
            future = self._futures.get(key)
            if future is not None and self._is_spent(future):
                future = None
            is_mine = future is None
            if future is None:
                future = self._futures[key] = Future()
            self._futures.move_to_end(key)
            self._num_asked += 1
            self._num_made += is_mine
        if is_mine:
            start = time.perf_counter()
            self._fulfil(key, future)
            with self._lock:
                self._seconds += time.perf_counter() - start
        self._evict()
        return future.result()

    def _evict(self) -> None:
        with self._lock:
            is_all = self._num_asked % _WEIGH_ALL_EVERY == 0
            for key in islice(reversed(self._futures), None if is_all else _NUM_RECENT):
                self._weigh(key, self._futures[key])
            if self._total <= self._max_bytes:
                return
            for key in list(self._futures)[:-1]:
                if self._total <= self._max_bytes:
                    break
                if key in self._sizes:
                    del self._futures[key]
                    self._forget(key)

    def _weigh(self, key: Key, future: Future[Value]) -> None:
        if _is_made(future):
            self._forget(key)
            self._sizes[key] = self._size_of(future.result())
            self._total += self._sizes[key]

    def _forget(self, key: Key) -> None:
        self._total -= self._sizes.pop(key, 0)

    def _is_spent(self, future: Future[Value]) -> bool:
        return future.done() and (future.exception() is not None or self._is_worn(future.result()))

    def _fulfil(self, key: Key, future: Future[Value]) -> None:
        try:
            future.set_result(self._make(key))
        except BaseException as error:
            with self._lock:
                if self._futures.get(key) is future:
                    del self._futures[key]
                    self._forget(key)
            future.set_exception(error)


def _is_made(future: Future[Value]) -> bool:
    return future.done() and future.exception() is None
