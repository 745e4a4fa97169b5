"""What is likely to be asked for next is brought into the pool while nothing runs.

Two sources: what a backend was told will come (`expect`: a map's next rows), and prefixes that the traffic keeps coming
back to (`cache/recurring.py`), which the folder on the disk keeps for the next process. Nothing is computed ahead:
pages come from the tiers below the pool, into free pages, or in the place of what was used longest ago, up to a part
of the pool for each spell of idleness. What a live program holds stays.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from forktree.backend.cache.nodes import Node, upwards
from forktree.backend.cache.pages import PageAllocator
from forktree.backend.cache.radix import RadixCache
from forktree.backend.cache.recurring import Prefix, Recurring, read_stored
from forktree.backend.cache.tiers import Tiers

_log = logging.getLogger("forktree.cache")

_MOST_EXPECTED = 64
_MOST_RECURRING = 16  # brought up in one spell of idleness
_MOST_BORDERS = 16  # noted of one request, the deepest first
_PART = 4  # of the pool: a quarter may be taken from what was used longest ago
_PAUSE_S = 0.005
_BIT = 16  # pages at a time, so that a request that comes meanwhile waits for milliseconds
_NOTES_EVERY = 256  # requests


class _Coming(NamedTuple):
    """A prefix whose pages are on their way, under an id that no request has."""

    id: int
    prefix: Prefix


class Foresight:
    """Learns from requests, and acts when there are none. The engine's thread owns it."""

    def __init__(self, allocator: PageAllocator, tree: RadixCache, tiers: Tiers) -> None:
        self._allocator = allocator
        self._tree = tree
        self._tiers = tiers
        self._recurring = _recall(tiers, tree.page_size)
        self._expected: deque[Prefix] = deque()
        self._todo: deque[Prefix] | None = None  # None: to be listed
        self._coming: _Coming | None = None
        self._ids: dict[Prefix, int] = {}  # of what is being read, or was, and is not in the pool yet
        self._num_ids = 0
        self._num_taken = 0  # pages that were somebody else's, in this spell
        self._num_noted = 0
        self.num_pages = 0

    @property
    def has_plans(self) -> bool:
        """There is something to look at before any request has come."""
        return len(self._recurring) > 0

    # --- what comes ----------------------------------------------------------------------------------------

    def note(self, id: int, namespace: str, ids: list[int], cached: Node) -> None:
        """A request found what ends with `cached` in a cache: who passed the same borders before it counts."""
        size = self._tree.page_size
        ends = [pages for node in upwards(cached) if (pages := node.end // size)][:_MOST_BORDERS]
        if not ends:
            return
        addresses = self._tiers.addresses(id, namespace, ids, ends[0] * size)
        self._recurring.note(namespace, ids, [(pages * size, addresses[pages - 1]) for pages in dict.fromkeys(ends)])
        self._num_noted += 1
        if self._num_noted % _NOTES_EVERY == 0:
            self.save()

    def expect(self, prefixes: Iterable[Prefix]) -> None:
        """These come next: what the pool has of them counts as used now, and the rest is read from below."""
        for prefix in prefixes:
            if prefix in self._expected:
                continue
            if len(self._expected) == _MOST_EXPECTED:
                self._settle(self._expected.popleft())
            self._expected.append(prefix)
            self._begin(prefix)
        self._todo = None

    def interrupt(self) -> None:
        """A request has come: when it is done there may be other things to bring up."""
        self._todo = None
        self._num_taken = 0

    def save(self) -> None:
        """Have what was learned written for the next process."""
        self._tiers.write_notes(self._recurring.to_json())

    # --- what is done about it -----------------------------------------------------------------------------

    def advance(self) -> float | None:
        """Do a bounded bit, with nothing running; the seconds after which there is more to do, or None."""
        if self._todo is None:
            self._todo = deque(dict.fromkeys([*self._expected, *self._recurring.best(_MOST_RECURRING)]))
        while self._coming is not None or self._todo:
            if self._coming is None:
                self._coming = self._begin(self._todo.popleft())
            elif self._tiers.is_up(self._coming.id, can_wait=False):
                if not self._bring_up(self._coming):
                    self._settle(self._coming.prefix)
                    self._coming = None
                return 0.0
            else:
                return _PAUSE_S
        return None

    def _begin(self, prefix: Prefix) -> _Coming | None:
        """Have the pages that the pool lacks read; None where it lacks none."""
        size = self._tree.page_size
        ids, num_pages = list(prefix.ids), len(prefix.ids) // size
        num_found = self._tree.touch(prefix.namespace, ids, num_pages * size) // size
        if num_found == num_pages:
            self._settle(prefix)
            return None
        if prefix not in self._ids:
            self._num_ids += 1
            self._ids[prefix] = -self._num_ids
        coming = _Coming(self._ids[prefix], prefix)
        self._tiers.fetch(coming.id, prefix.namespace, ids, num_found, num_pages * size)
        if not self._tiers.is_decided(coming.id):  # no room: requests have it
            self._settle(prefix)
            return None
        return coming

    def _settle(self, prefix: Prefix) -> None:
        """Nothing more is read for a prefix; what was is dropped."""
        id = self._ids.pop(prefix, None)
        if id is not None:
            self._tiers.leave(id)

    def _bring_up(self, coming: _Coming) -> bool:
        """Fill some of the pages that are lacking; False if that were the last, or there is no more to be had."""
        size = self._tree.page_size
        namespace, ids = coming.prefix.namespace, list(coming.prefix.ids)
        num_tokens = len(ids) // size * size
        found = self._tree.acquire(namespace, ids, num_tokens)
        num_found = len(found.pages)
        num_missing = num_tokens // size - num_found
        fresh = self._take(min(num_missing, _BIT))
        num_filled = self._tiers.fill(coming.id, namespace, ids, num_found, num_tokens, fresh)
        self._allocator.free(fresh[num_filled:])
        if num_filled:
            pages = [*found.pages, *fresh[:num_filled]]
            self._tree.insert(namespace, ids, len(pages) * size, pages, num_found)
        self._tree.release(found.node)
        self.num_pages += num_filled
        return 0 < num_filled == len(fresh) < num_missing

    def _take(self, num_pages: int) -> list[int]:
        """Free pages, or those of what was used longest ago; as many as may be had, and no more than these."""
        spare = max(self._allocator.num_pages // _PART - self._num_taken, 0)
        missing = min(num_pages - self._allocator.num_free, spare)
        if missing > 0:
            self._num_taken += self._tree.evict_unheld(missing)
        return self._allocator.alloc(min(num_pages, self._allocator.num_free)) or []


def _recall(tiers: Tiers, page_size: int) -> Recurring:
    """What an earlier process learned of the same model's traffic."""
    recurring = Recurring()
    text = tiers.read_notes()
    if text is None:
        return recurring
    try:
        stored = read_stored(text)
    except ValueError as error:
        _log.warning("what recurs is learned again: its notes are not usable (%s)", error)
        return recurring
    for prefix, score in stored:
        num_tokens = len(prefix.ids) // page_size * page_size
        if num_tokens:
            recurring.add_stored(tiers.address_of(prefix.namespace, list(prefix.ids), num_tokens), prefix, score)
    return recurring
