"""Host memory and disk below the KV pool: pages that are evicted move down, and come up when they are asked for.

    the engine's thread   `keep`: copies evicted pages to host memory and hands them to the writer
                          `fetch`, `is_up`, `fill`: has a waiting request's pages read, looks, copies them to the pool
    forktree-kv-write     writes pages to the disk; when it falls behind, pages are not written
    forktree-kv-read      reads pages that a waiting request will need

The engine's thread never waits for a disk, but for the pages of a request while it has nothing else to do, and then
for a bounded time: what has not come by then is computed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from forktree.backend.cache.addresses import page_addresses
from forktree.backend.cache.disk import DiskTier

_log = logging.getLogger("forktree.cache")

_WAIT_S = 5.0  # the most that a request waits for its pages
_CLOSE_S = 20.0
_MOST_FETCHES = 8  # requests whose pages are read ahead at a time
_MOST_UNWRITTEN = 1024  # pages


@runtime_checkable
class PageMover(Protocol):
    """The pool as the tiers see it; called on the engine's thread."""

    def read_page(self, page: int) -> bytes:
        """Keys and values of a page, all layers."""
        ...

    def write_page(self, page: int, data: bytes) -> None: ...


@dataclass(slots=True)
class _Fetch:
    """Pages on their way up for one request."""

    started_s: float
    pages: Future[dict[bytes, bytes]]


class Tiers:
    """What is kept below the pool. The engine's thread owns it; its two threads see addresses and bytes alone."""

    def __init__(self, mover: PageMover, page_size: int, *, host_bytes: int, disk: DiskTier | None) -> None:
        self._mover = mover
        self._page_size = page_size
        self._host_bytes = host_bytes
        self._host: OrderedDict[bytes, bytes] = OrderedDict()  # the least recently used first
        self._num_host_bytes = 0
        self._disk = disk
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="forktree-kv-write")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="forktree-kv-read")
        self._fetches: dict[int, _Fetch] = {}
        self._unwritten: dict[bytes, bytes] = {}
        self._lock = threading.Lock()  # over `_unwritten`
        self.num_loaded_pages = 0

    # --- down ----------------------------------------------------------------------------------------------

    def keep(self, namespace: str, ids: list[int], first_page: int, pages: list[int]) -> None:
        """See `radix.Lower`."""
        end = first_page + len(pages)
        addresses = page_addresses(namespace, ids, end * self._page_size, self._page_size)[first_page:]
        for address, page in zip(addresses, pages, strict=True):
            try:
                self._keep_page(address, page)
            except Exception:
                _log.exception("a page could not be kept in a lower tier; it will be computed again")
                return

    def _keep_page(self, address: bytes, page: int) -> None:
        if address in self._host:
            self._host.move_to_end(address)
            return
        if self._host_bytes == 0 and (self._disk is None or address in self._unwritten or self._disk.has(address)):
            return
        data = self._mover.read_page(page)
        if len(data) <= self._host_bytes:
            self._host[address] = data
            self._num_host_bytes += len(data)
            while self._num_host_bytes > self._host_bytes:
                self._num_host_bytes -= len(self._host.popitem(last=False)[1])
        self._write_behind(address, data)

    def _write_behind(self, address: bytes, data: bytes) -> None:
        if self._disk is None:
            return
        with self._lock:
            if address in self._unwritten or len(self._unwritten) >= _MOST_UNWRITTEN:
                return
            self._unwritten[address] = data
        self._writer.submit(self._write, self._disk, address, data)

    def _write(self, disk: DiskTier, address: bytes, data: bytes) -> None:
        try:
            disk.write(address, data)
        except Exception:
            _log.exception("a page could not be written; it will be computed again")
        finally:
            with self._lock:
                del self._unwritten[address]

    # --- up ------------------------------------------------------------------------------------------------

    def fetch(self, id: int, namespace: str, ids: list[int], first_page: int, num_tokens: int) -> None:
        """Have the pages from `first_page` on, within `num_tokens`, read for request `id`; once for each request."""
        if self._disk is None or id in self._fetches or len(self._fetches) >= _MOST_FETCHES:
            return
        addresses = page_addresses(namespace, ids, num_tokens, self._page_size)[first_page:]
        missing = [address for address in addresses if address not in self._host]
        if missing and (missing[0] in self._unwritten or self._disk.has(missing[0])):
            self._fetches[id] = _Fetch(time.monotonic(), self._reader.submit(self._read, self._disk, missing))

    def _read(self, disk: DiskTier, addresses: Sequence[bytes]) -> dict[bytes, bytes]:
        """Pages in order up to the first that is nowhere."""
        found = {}
        for address in addresses:
            with self._lock:
                data = self._unwritten.get(address)
            if data is None:
                data = disk.read(address)
            if data is None:
                break
            found[address] = data
        return found

    def is_up(self, id: int, *, can_wait: bool) -> bool:
        """Nothing is on its way for a request any more, or it has taken too long."""
        fetch = self._fetches.get(id)
        if fetch is None or fetch.pages.done():
            return True
        left_s = fetch.started_s + _WAIT_S - time.monotonic()
        if can_wait and left_s > 0:
            wait([fetch.pages], left_s)
            return True
        return left_s <= 0

    def has_next(self, id: int, namespace: str, ids: list[int], first_page: int, num_tokens: int) -> bool:
        """`fill` would find at least one page."""
        read = _result(self._fetches.get(id))
        if not self._host and not read:
            return False
        addresses = page_addresses(namespace, ids, num_tokens, self._page_size)[first_page : first_page + 1]
        return any(address in read or address in self._host for address in addresses)

    def fill(
        self, id: int, namespace: str, ids: list[int], first_page: int, num_tokens: int, targets: list[int]
    ) -> int:
        """Write the sequence's pages from `first_page` on, within `num_tokens`, into `targets`; returns how many."""
        fetch = self._fetches.pop(id, None)
        read = _result(fetch)
        if not self._host and not read:
            return 0
        addresses = page_addresses(namespace, ids, num_tokens, self._page_size)[first_page:]
        num_pages = 0
        for address, target in zip(addresses, targets, strict=False):
            data = read.get(address) or self._host.get(address)
            if data is None:
                break
            self._mover.write_page(target, data)
            if address in self._host:
                self._host.move_to_end(address)
            num_pages += 1
        self.num_loaded_pages += num_pages
        return num_pages

    def leave(self, id: int) -> None:
        """A request has ended: what was read for it alone is dropped."""
        fetch = self._fetches.pop(id, None)
        if fetch is not None:
            fetch.pages.cancel()

    # --- life ----------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop what host memory holds; the disk keeps its own."""
        self._host.clear()
        self._num_host_bytes = 0

    def close(self) -> None:
        """Let the threads go, when the writer is done or a bounded time is over."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        if self._disk is not None:
            wait([self._writer.submit(lambda: None)], _CLOSE_S)  # behind all that is to be written
        self._writer.shutdown(wait=False, cancel_futures=True)


def _result(fetch: _Fetch | None) -> dict[bytes, bytes]:
    if fetch is None or not fetch.pages.done() or fetch.pages.cancelled():
        return {}
    error = fetch.pages.exception()
    if error is not None:
        _log.warning("pages could not be read (%s: %s); they are computed again", type(error).__name__, error)
        return {}
    return fetch.pages.result()
