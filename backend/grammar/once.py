"""A bounded memo that makes each value once, however many threads ask for it at the same time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class OnceCache(Generic[Key, Value]):
    """Least recently used values go first. An error is raised to everyone who waited, and is not kept.

    `is_worn` says that a value should be made again for those who ask from now on; holders keep the old one.
    """

    def __init__(
        self, make: Callable[[Key], Value], *, max_entries: int, is_worn: Callable[[Value], bool] = lambda _: False
    ) -> None:
        self._make = make
        self._max_entries = max_entries
        self._is_worn = is_worn
        self._lock = threading.Lock()
        self._futures: OrderedDict[Key, Future[Value]] = OrderedDict()

    def get(self, key: Key) -> Value:
        with self._lock:
            future = self._futures.get(key)
            if future is not None and self._is_spent(future):
                future = None
            is_mine = future is None
            if future is None:
                future = self._futures[key] = Future()
            self._futures.move_to_end(key)
            while len(self._futures) > self._max_entries:
                self._futures.popitem(last=False)
        if is_mine:
            self._fulfil(key, future)
        return future.result()

    def _is_spent(self, future: Future[Value]) -> bool:
        return future.done() and (future.exception() is not None or self._is_worn(future.result()))

    def _fulfil(self, key: Key, future: Future[Value]) -> None:
        try:
            future.set_result(self._make(key))
        except BaseException as error:
            with self._lock:
                if self._futures.get(key) is future:
                    del self._futures[key]
            future.set_exception(error)
