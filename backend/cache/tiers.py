"""Host memory and disk below the KV pool: pages that are evicted move down, and come up when they are asked for.

    the engine's thread   `keep`: copies evicted pages to host memory and hands them to the writer
                          `fetch`, `is_up`, `fill`: has a waiting request's pages read, looks, copies them to the pool
    forktree-kv-write     writes pages to the disk; when it falls behind, pages are not written, and counted
    forktree-kv-look      looks whether the disk has a prefix at all, while the next one may read for long
    forktree-kv-read      reads pages that a waiting request will need, or one that is foreseen

The engine's thread asks the disk nothing. It waits for the pages of a request while it has nothing else to do, as long
as computing them would take: what has not come by then is computed. Whether to load at all is decided by measured rates
(`rates.py`); results are the same either way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from forktree.backend.cache.addresses import page_addresses
from forktree.backend.cache.disk import DiskTier
from forktree.backend.cache.rates import MeasuredRates, Rates
from forktree.backend.cache.tier_counts import TierCounts

_log = logging.getLogger("forktree.cache")

_CLOSE_S = 20.0
_MOST_FETCHES = 64  # prefixes that are read ahead at a time
_MOST_FETCHED_BYTES = 512 << 20  # of them together
_FEW_FETCHES = 8  # that are allowed whatever they hold: before a page was seen nobody knows
_MOST_UNWRITTEN_BYTES = 256 << 20


class HeldPage(Protocol):
    """A page outside the pool, whose copy may still be under way: `bytes` waits for it. Plain bytes are one."""

    def __len__(self) -> int: ...

    def __bytes__(self) -> bytes: ...


@runtime_checkable
class PageMover(Protocol):
    """The pool as the tiers see it; called on the engine's thread."""

    def read_page(self, page: int) -> HeldPage:
        """Keys and values of a page, all layers. What is written to the page from now on is not in it."""
        ...

    def write_page(self, page: int, data: HeldPage) -> None:
        """Fill a page with what `read_page` gave, or with its bytes."""
        ...


class _Read(NamedTuple):
    pages: dict[bytes, bytes]
    seconds: float


@dataclass(slots=True, eq=False)
class _Fetch:
    """Pages on their way up. First it is looked whether there are any; `look` then gives the read, or None."""

    deadline_s: float
    addresses: frozenset[bytes]
    look: Future[Future[_Read] | None]
    is_noted: bool = False

    @property
    def read(self) -> Future[_Read] | None:
        """The read, once it is known that there is one."""
        look = self.look
        return None if not look.done() or look.cancelled() or look.exception() is not None else look.result()

    @property
    def is_empty(self) -> bool:
        """It is known that there is nothing to read."""
        return self.look.done() and self.read is None

    @property
    def is_done(self) -> bool:
        if not self.look.done():  # asked first: it may end at any moment, and the read begins with it
            return False
        read = self.read
        return read is None or read.done()


class Tiers:
    """What is kept below the pool. The engine's thread owns it; its other threads see addresses and bytes alone.

    Requests are told apart by their ids; what is fetched without one, because it is foreseen, has a negative id.
    """

    def __init__(
        self,
        mover: PageMover,
        page_size: int,
        *,
        host_bytes: int,
        disk: DiskTier | None,
        rates: Rates | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mover = mover
        self._page_size = page_size
        self._host_bytes = host_bytes
        self._host: OrderedDict[bytes, HeldPage] = OrderedDict()  # the least recently used first
        self._num_host_bytes = 0
        self._disk = disk
        self._rates: Rates = MeasuredRates() if rates is None else rates
        self._clock = clock
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="forktree-kv-write")
        self._looker = ThreadPoolExecutor(1, thread_name_prefix="forktree-kv-look")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="forktree-kv-read")
        self._fetches: dict[int, _Fetch] = {}
        self._asked: set[int] = set()  # for whom the decision has been made
        self._paths: dict[int, list[bytes]] = {}  # addresses of a request's pages
        self._unwritten: dict[bytes, HeldPage] = {}
        self._num_unwritten_bytes = 0
        self._last_write: Future[None] | None = None
        self._lock = threading.Lock()  # over `_unwritten`, its bytes and the counts of the writer
        self._closing_until: float | None = None
        self._page_bytes = 0  # of the last page seen; 0 before
        self._counts = TierCounts()

    @property
    def rates(self) -> Rates:
        return self._rates

    def counts(self) -> TierCounts:
        """A copy of what has been counted."""
        counts = self._counts.copy()
        counts.host_pages = len(self._host)
        counts.num_tier_faults += 0 if self._disk is None else self._disk.num_faults
        return counts

    # --- down ----------------------------------------------------------------------------------------------

    def keep(self, namespace: str, ids: list[int], first_page: int, pages: list[int]) -> None:
        """See `radix.Lower`."""
        end = first_page + len(pages)
        addresses = page_addresses(namespace, ids, end * self._page_size, self._page_size)[first_page:]
        for address, page in zip(addresses, pages, strict=True):
            try:
                self._keep_page(address, page)
            except Exception:
                self._counts.num_tier_faults += 1
                _log.exception("a page could not be kept in a lower tier; it will be computed again")
                return

    def _keep_page(self, address: bytes, page: int) -> None:
        held = self._host.get(address)
        if held is not None:
            self._host.move_to_end(address)
            return
        if self._host_bytes == 0 and (address in self._unwritten or self._disk is None or self._disk.knows(address)):
            return
        data = self._mover.read_page(page)
        self._page_bytes = len(data)
        if len(data) <= self._host_bytes:
            self._put(address, data)
        self._write_behind(address, data)

    def _put(self, address: bytes, data: HeldPage) -> None:
        self._host[address] = data
        self._num_host_bytes += len(data)
        self._counts.pages_to_host += 1
        self._counts.bytes_to_host += len(data)
        while self._num_host_bytes > self._host_bytes:
            self._num_host_bytes -= len(self._host.popitem(last=False)[1])

    def _write_behind(self, address: bytes, data: HeldPage) -> None:
        if self._disk is None or self._disk.knows(address):
            return
        if self._num_unwritten_bytes + len(data) > _MOST_UNWRITTEN_BYTES and self._unwritten:
            self._let_the_writer_catch_up()
        with self._lock:
            if address in self._unwritten:
                return
            if self._num_unwritten_bytes + len(data) > _MOST_UNWRITTEN_BYTES and self._unwritten:
                self._counts.pages_not_written += 1
                return
            self._unwritten[address] = data
            self._num_unwritten_bytes += len(data)
        self._last_write = self._writer.submit(self._write, self._disk, address, data)

    def _let_the_writer_catch_up(self) -> None:
        """Only at the end, when nobody waits for the engine's thread."""
        if self._closing_until is not None and self._last_write is not None:
            wait([self._last_write], max(self._closing_until - self._clock(), 0.0))

    def _write(self, disk: DiskTier, address: bytes, data: HeldPage) -> None:
        is_written = False
        try:
            is_written = disk.write(address, bytes(data))
        except Exception:
            _log.exception("a page could not be written; it will be computed again")
        finally:
            with self._lock:
                del self._unwritten[address]
                self._num_unwritten_bytes -= len(data)
                self._counts.pages_to_disk += is_written
                self._counts.bytes_to_disk += len(data) * is_written
                self._counts.num_tier_faults += not is_written

    # --- up ------------------------------------------------------------------------------------------------

    def fetch(self, id: int, namespace: str, ids: list[int], first_page: int, num_tokens: int) -> None:
        """Have the pages from `first_page` on read for `id`, where that pays; decided once until `let_go`."""
        if self._disk is None or id in self._asked:
            return
        missing = [a for a in self._addresses(id, namespace, ids, num_tokens)[first_page:] if a not in self._host]
        if not missing:
            self._asked.add(id)
            return
        num_bytes, num_missing = len(missing) * self._page_bytes, len(missing) * self._page_size
        if not self._rates.is_worth(copied=num_bytes, read=num_bytes, num_tokens=num_missing):
            self._asked.add(id)
            self._counts.num_declined += 1
            return
        shared = next((fetch for fetch in self._fetches.values() if missing[0] in fetch.addresses), None)
        if shared is None and not self._has_room(id):
            return
        self._asked.add(id)
        patience_s = self._rates.patience_s(read=num_bytes, num_tokens=num_missing)
        self._fetches[id] = shared or _Fetch(
            self._clock() + patience_s, frozenset(missing), self._looker.submit(self._look, self._disk, missing)
        )

    def _has_room(self, id: int) -> bool:
        """For one more fetch; what is foreseen makes way for what is asked for."""
        fetches = {fetch for fetch in self._fetches.values() if not fetch.is_empty}
        num_bytes = sum(len(fetch.addresses) for fetch in fetches) * self._page_bytes
        if len(fetches) < _FEW_FETCHES or (len(fetches) < _MOST_FETCHES and 0 < num_bytes <= _MOST_FETCHED_BYTES):
            return True
        foreseen = next((known for known in self._fetches if known < 0), None)
        if id < 0 or foreseen is None:
            return False
        self.leave(foreseen)
        return True

    def _look(self, disk: DiskTier, addresses: Sequence[bytes]) -> Future[_Read] | None:
        with self._lock:
            is_there = addresses[0] in self._unwritten
        return self._reader.submit(self._read, disk, addresses) if is_there or disk.has(addresses[0]) else None

    def _read(self, disk: DiskTier, addresses: Sequence[bytes]) -> _Read:
        """Pages in order up to the first that is nowhere."""
        found: dict[bytes, bytes] = {}
        start = self._clock()
        for address in addresses:
            with self._lock:
                data = self._unwritten.get(address)
            page = disk.read(address) if data is None else bytes(data)
            if page is None:
                break
            found[address] = page
        return _Read(found, self._clock() - start)

    def is_decided(self, id: int) -> bool:
        """`fetch` would do nothing."""
        return self._disk is None or id in self._asked

    def is_up(self, id: int, *, can_wait: bool) -> bool:
        """Nothing is on its way for a request any more, or it has taken too long.

        One that `fetch` had no room for waits too: those before it make room when they start.
        """
        fetch = self._fetches.get(id)
        if fetch is None:
            return can_wait or self.is_decided(id)
        if fetch.is_done:
            return True
        if can_wait:
            wait([fetch.look], max(fetch.deadline_s - self._clock(), 0.0))
            if (read := fetch.read) is not None:
                wait([read], max(fetch.deadline_s - self._clock(), 0.0))
            return True
        return self._clock() >= fetch.deadline_s

    def has_next(self, id: int, namespace: str, ids: list[int], first_page: int, num_tokens: int) -> bool:
        """`fill` would find at least one page."""
        read = self._pages_of(self._fetches.get(id))
        if not self._host and not read:
            return False
        addresses = self._addresses(id, namespace, ids, num_tokens)[first_page : first_page + 1]
        return any(address in read or address in self._host for address in addresses)

    def fill(
        self, id: int, namespace: str, ids: list[int], first_page: int, num_tokens: int, targets: list[int]
    ) -> int:
        """Write the sequence's pages from `first_page` on, within `num_tokens`, into `targets`; returns how many."""
        read = self._pages_of(self._fetches.get(id))
        if not self._host and not read:
            return 0
        found: list[tuple[bytes, HeldPage]] = []
        for address in self._addresses(id, namespace, ids, num_tokens)[first_page : first_page + len(targets)]:
            data = read.get(address) or self._host.get(address)
            if data is None:
                break
            found.append((address, data))
        num_bytes = sum(len(data) for _, data in found)
        if not found or not self._rates.is_worth(copied=num_bytes, read=0, num_tokens=len(found) * self._page_size):
            self._counts.num_declined += bool(found)
            return 0
        start = self._clock()
        num_pages = self._copy_up(found, targets, read)
        if num_pages == len(found):
            self._rates.note("copy", num_bytes, self._clock() - start)
        return num_pages

    def _copy_up(self, found: list[tuple[bytes, HeldPage]], targets: list[int], read: dict[bytes, bytes]) -> int:
        for index, (address, data) in enumerate(found):
            try:
                self._mover.write_page(targets[index], data)
            except Exception:  # half written at worst: whoever has the page computes it
                self._counts.num_tier_faults += 1
                _log.exception("a page could not be brought up; it is computed again")
                return index
            if address in read:
                self._counts.pages_from_disk += 1
                self._counts.bytes_from_disk += len(data)
            else:
                self._host.move_to_end(address)
                self._counts.pages_from_host += 1
                self._counts.bytes_from_host += len(data)
        return len(found)

    def leave(self, id: int) -> None:
        """A request has ended, or nobody expects it any more: nothing is kept for it."""
        self._paths.pop(id, None)
        self.let_go(id)

    def let_go(self, id: int) -> None:
        """What was read for a request alone is dropped; it may ask again."""
        self._asked.discard(id)
        fetch = self._fetches.pop(id, None)
        if fetch is None or fetch in self._fetches.values():
            return
        fetch.look.cancel()
        if (read := fetch.read) is not None:
            read.cancel()

    def addresses(self, id: int, namespace: str, ids: list[int], num_tokens: int) -> list[bytes]:
        """Of the pages that the first `num_tokens` tokens of a live request fill."""
        return self._addresses(id, namespace, ids, num_tokens)

    def address_of(self, namespace: str, ids: list[int], num_tokens: int) -> bytes:
        """Of the page that ends with so many tokens of a sequence."""
        return page_addresses(namespace, ids, num_tokens, self._page_size)[-1]

    def _addresses(self, id: int, namespace: str, ids: list[int], num_tokens: int) -> list[bytes]:
        num_pages = num_tokens // self._page_size
        known = self._paths.get(id)
        if known is None or len(known) < num_pages:
            known = self._paths[id] = page_addresses(namespace, ids, num_tokens, self._page_size)
        return known[:num_pages]

    def _pages_of(self, fetch: _Fetch | None) -> dict[bytes, bytes]:
        if fetch is None:
            return {}
        failed = next((job for job in (fetch.look, fetch.read) if job is not None and _has_failed(job)), None)
        if failed is not None and not fetch.is_noted:
            fetch.is_noted = True
            self._counts.num_tier_faults += 1
            error = failed.exception()
            _log.warning("pages could not be read (%s: %s); they are computed again", type(error).__name__, error)
        read = fetch.read
        if read is None or not read.done() or read.cancelled() or _has_failed(read):
            return {}
        pages, seconds = read.result()
        if not fetch.is_noted:
            fetch.is_noted = True
            self._page_bytes = len(next(iter(pages.values()), b"")) or self._page_bytes
            self._rates.note("disk", sum(map(len, pages.values())), seconds)
        return pages

    # --- what is learned of the traffic --------------------------------------------------------------------

    def read_notes(self) -> str | None:
        """See `DiskTier`; asked once, before the engine's thread runs."""
        return None if self._disk is None else self._disk.read_notes()

    def write_notes(self, text: str) -> None:
        """Have them written, behind the pages that are to be written."""
        if self._disk is not None:
            self._writer.submit(self._disk.write_notes, text)

    # --- life ----------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop what host memory holds; the disk keeps its own."""
        self._host.clear()
        self._num_host_bytes = 0

    def begin_close(self) -> None:
        """From here on, for a bounded time, `keep` waits for the writer instead of leaving pages out."""
        self._closing_until = self._clock() + _CLOSE_S

    def close(self) -> None:
        """Let the threads go, when the writer is done or a bounded time is over."""
        self._looker.shutdown(wait=False, cancel_futures=True)
        self._reader.shutdown(wait=False, cancel_futures=True)
        if self._disk is not None:
            left_s = _CLOSE_S if self._closing_until is None else self._closing_until - self._clock()
            wait([self._writer.submit(lambda: None)], max(left_s, 0.0))  # behind all that is to be written
        self._writer.shutdown(wait=False, cancel_futures=True)


def _has_failed(job: Future[_Read] | Future[Future[_Read] | None]) -> bool:
    return job.done() and not job.cancelled() and job.exception() is not None
