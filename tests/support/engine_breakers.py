"""Parts of an engine that break on demand, and threads that wait to be told: what the stateful machine plays with."""

from __future__ import annotations

import ast
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from engine_fakes import FakeRunner, Listener, ListMatcher


class Flaky(FakeRunner):
    """Its pages can be moved; moves and passes fail when told to."""

    is_broken = False
    most_rows = 1 << 30
    cannot_read = cannot_write = False

    def read_page(self, page: int) -> bytes:
        if self.cannot_read:
            raise RuntimeError("a page cannot be read")
        return repr(self.slots[page * self.page_size : (page + 1) * self.page_size]).encode()

    def write_page(self, page: int, data: bytes) -> None:
        if self.cannot_write:
            self.slots[page * self.page_size] = (-1, -1)  # half done
            raise RuntimeError("a page cannot be written")
        self.slots[page * self.page_size : (page + 1) * self.page_size] = ast.literal_eval(data.decode())

    def forward(self, batch: Any) -> Any:
        if self.is_broken or len(batch.ids) > self.most_rows:
            for row, (token, position) in enumerate(zip(batch.ids, batch.positions, strict=True)):
                table = batch.page_tables[batch.seq_of_row[row]]
                slot = self._slot(table, batch.places.get(row, position))
                self.slots[slot] = (-2 - token, position)  # half done
            raise RuntimeError("out of memory")
        return super().forward(batch)


class BadMatcher(ListMatcher):
    """Turns out to be broken at its second token."""

    def advance(self, token: int) -> None:
        if self.seen:
            raise RuntimeError("a bug in a grammar")
        super().advance(token)


class BadListener(Listener):
    """Raises whenever it is told something."""

    def __call__(self, event: Any) -> None:
        super().__call__(event)
        raise RuntimeError("a bug in a listener")


class Jobs:
    """Stands in for a thread of the tiers: what it is given waits until `run`."""

    def __init__(self, queue: list[tuple[Future[Any], Callable[[], Any]]]) -> None:
        self._queue = queue

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._queue.append((future, lambda: call(*args)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for future, _ in self._queue if cancel_futures else ():
            future.cancel()

    @staticmethod
    def run(queue: list[tuple[Future[Any], Callable[[], Any]]], num_jobs: int) -> None:
        while queue and num_jobs > 0:
            future, call = queue.pop(0)
            num_jobs -= 1
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except Exception as error:
                    future.set_exception(error)
