"""A sequence's pages: taken from the pool, shared through the tree, given back exactly once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import NamedTuple

from forktree.backend.cache.disk import DiskTier
from forktree.backend.cache.holds import Holds
from forktree.backend.cache.nodes import PartialPage, Prefix
from forktree.backend.cache.pages import PageAllocator
from forktree.backend.cache.radix import RadixCache
from forktree.backend.cache.rates import FixedRates, MeasuredRates
from forktree.backend.cache.tiers import PageMover, Tiers
from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.foresight import Foresight
from forktree.backend.engine.messages import EngineRequest, Runner
from forktree.backend.engine.pins import Pins
from forktree.backend.engine.request import Sequence
from forktree.lang.errors import EngineError, UnsupportedError

_LEAST_NOTED = 16  # tokens of prompts in a step that tells what they cost: fewer tell what a pass costs


class PageCopy(NamedTuple):
    """Copy the first `num_tokens` slots of page `source` to `target`, before the forward pass of the step.

    Copies are carried out in the order in which they were planned, and before anything is computed. A source may
    have been evicted since, and be the target of a later copy or a page to be written: it is intact until then.
    """

    source: int
    target: int
    num_tokens: int


class Donor(NamedTuple):
    """A running sequence whose page number `page_index` holds the first `num_tokens` slots that another one needs."""

    page: int
    page_index: int
    num_tokens: int


class Admission(NamedTuple):
    """A sequence got its pages; `copy` completes its cached prefix inside a page."""

    copy: PageCopy | None


class KVMemory:
    """Moves pages between the free list, the radix tree and the sequences. Every page is in one of the three.

    A running sequence's page table, by page index, and who frees what when it leaves:

        [0, num_shared)            the tree's; the sequence holds one lock over them      unlocked
        [num_shared, computed)     the sequence's, filled or being filled                 given to the tree
        [computed, len(pages))     the sequence's, not written yet or scratch             freed
    """

    def __init__(self, allocator: PageAllocator, tree: RadixCache, tiers: Tiers | None = None) -> None:
        self.tiers = tiers
        self.allocator = allocator
        self.tree = tree
        self.page_size = tree.page_size
        self.holds = Holds(tree)
        self.pins = Pins(tree, allocator.num_pages)
        self.foresight = None if tiers is None else Foresight(allocator, tree, tiers)
        self.num_evicted = 0  # pages that left the tree because room was needed

    @property
    def num_available(self) -> int:
        """Pages that could be had now, by eviction if need be."""
        return self.allocator.num_free + self.tree.num_evictable

    @property
    def num_used(self) -> int:
        """Pages that running sequences own or lock, and those that are pinned."""
        return self.allocator.num_pages - self.num_available

    def count_room(self, request: EngineRequest) -> int:
        """Pages that a new request may count on; for any thread. What computes scores cannot count on pinned ones."""
        is_plain = request.score_from is None and request.embed_from is None
        return self.pins.count_room(request.namespace, request.ids, len(request.ids) - 1 if is_plain else 0)

    def count_cached(self, seq: Sequence, limit: int) -> int:
        """How many of the first `limit` tokens of a sequence the tree holds."""
        return self.tree.match(seq.request.namespace, seq.ids, limit)

    def admit(
        self, seq: Sequence, donor: Donor | None, num_reserved: int, *, after_copies: bool = False
    ) -> Admission | None:
        """Give a waiting sequence its cached prefix and pages for all its known tokens.

        `num_reserved` pages must stay available besides. Returns None, and changes nothing, if they would not.
        `after_copies`: the step has copies planned, which read pages that may be free by now; what comes from a lower
        tier waits for the next step then.
        """
        prefix = self.tree.acquire(seq.request.namespace, seq.ids, seq.cacheable)
        num_new = self._pages_for(len(seq.ids)) - len(prefix.pages)
        if after_copies and self._is_below(seq, len(prefix.pages)):
            self.tree.release(prefix.node)
            return None
        fresh = self._take(num_new) if self.num_available >= num_new + num_reserved else None
        if fresh is None:
            self.tree.release(prefix.node)
            return None
        seq.lock, seq.num_shared = prefix.node, len(prefix.pages)
        seq.pages = prefix.pages + fresh
        seq.num_computed = seq.num_shared * self.page_size
        is_brought_up = self._bring_up(seq, fresh)
        if self.foresight is not None and seq.num_cached is None and seq.lock is not None:
            self.foresight.note(seq.id, seq.request.namespace, seq.ids, seq.lock)
        if is_brought_up:
            return Admission(None)
        source = _better(prefix, donor)
        if source is None:
            return Admission(None)
        seq.num_computed += source.num_tokens
        target = fresh[0]  # it may be the source itself, evicted a moment ago: then there is nothing to copy
        return Admission(None if source.page == target else PageCopy(source.page, target, source.num_tokens))

    def look_ahead(self, seq: Sequence) -> None:
        """Have a waiting sequence's prefix read from the disk before its turn comes, where that is not decided yet."""
        if self.tiers is not None and not self.tiers.is_decided(seq.id):
            num_tokens = self.count_cached(seq, seq.cacheable)
            self.tiers.fetch(seq.id, seq.request.namespace, seq.ids, num_tokens // self.page_size, seq.cacheable)

    def is_up(self, seq: Sequence) -> bool:
        """A waiting sequence's prefix is not on its way up from a lower tier, or not any more."""
        return self.tiers is None or self.tiers.is_up(seq.id, can_wait=False)

    def wait_for(self, seq: Sequence) -> None:
        """Wait until it is up, as long as computing it would take."""
        if self.tiers is not None:
            self.tiers.is_up(seq.id, can_wait=True)

    def leave(self, seq: Sequence) -> None:
        """A sequence has ended: drop what was read for it alone."""
        if self.tiers is not None:
            self.tiers.leave(seq.id)

    def _is_below(self, seq: Sequence, first_page: int) -> bool:
        """A lower tier has the next page of a sequence's prefix at hand."""
        if self.tiers is None:
            return False
        return self.tiers.has_next(seq.id, seq.request.namespace, seq.ids, first_page, seq.cacheable)

    def _bring_up(self, seq: Sequence, fresh: list[int]) -> bool:
        """Fill the sequence's first pages from a lower tier, and give them to the tree; False if it has none."""
        if self.tiers is None:
            return False
        num_pages = self.tiers.fill(seq.id, seq.request.namespace, seq.ids, seq.num_shared, seq.cacheable, fresh)
        self.tiers.let_go(seq.id)
        seq.num_computed += num_pages * self.page_size
        if num_pages:
            self.share(seq)
        return num_pages > 0

    def grow(self, seq: Sequence) -> bool:
        """Make room for every known token; False, and no change, if no page can be had."""
        num_new = self._pages_for(len(seq.ids)) - len(seq.pages)
        if num_new <= 0:
            return True
        fresh = self._take(num_new)
        if fresh is None:
            return False
        seq.pages += fresh
        return True

    def make_room(self, seq: Sequence, num_tokens: int, num_reserved: int) -> int:
        """Room behind the known tokens for `num_tokens` that may be taken back; returns for how many there is.

        Pages are taken while `num_reserved` stay available besides.
        """
        missing = self._pages_for(len(seq.ids) + num_tokens) - len(seq.pages)
        if 0 < missing <= self.num_available - num_reserved:
            seq.pages += self._take(missing) or []
        return min(num_tokens, len(seq.pages) * self.page_size - len(seq.ids))

    def share(self, seq: Sequence) -> None:
        """Give the pages that a running sequence has filled to the tree, so that others find them.

        Where the tree has the same tokens already, its pages replace the sequence's own.
        """
        num_full = seq.num_cachable // self.page_size
        if num_full <= seq.num_shared:
            return
        namespace, num_tokens = seq.request.namespace, num_full * self.page_size
        self.tree.insert(namespace, seq.ids, num_tokens, seq.pages[:num_full], seq.num_shared)
        prefix = self.tree.acquire(namespace, seq.ids, num_tokens)
        assert seq.lock is not None
        self.tree.release(seq.lock)
        seq.lock, seq.num_shared = prefix.node, num_full
        seq.pages[:num_full] = prefix.pages

    def retire(self, seq: Sequence) -> None:
        """Take a running sequence's pages away; what it computed stays in the tree."""
        num_tokens = seq.num_cachable
        num_written = self._pages_for(num_tokens)
        self.allocator.free(seq.pages[num_written:])
        del seq.pages[num_written:]
        self.tree.insert(seq.request.namespace, seq.ids, num_tokens, seq.pages, seq.num_shared)
        if seq.request.owner is not None:
            self.holds.add(seq.request.owner, seq.request.namespace, seq.ids, num_tokens)
        self._forget(seq)

    def discard(self, seq: Sequence) -> None:
        """Take a running sequence's pages away; what its own pages hold is not trusted."""
        self.allocator.free(seq.pages[seq.num_shared :])
        self._forget(seq)

    def pin(self, seq: Sequence) -> None:
        """Lock the whole pages of a computed prompt for the pin that it was computed for."""
        self.share(seq)
        self.pins.lock(seq.id, seq.request.namespace, seq.ids)

    def flush(self) -> int:
        """Forget every cached page that nobody uses or has pinned, in host memory too; returns how many of the pool."""
        if self.tiers is not None:
            self.tiers.forget()
        return self.tree.forget()

    def close(self) -> None:
        """Keep on the disk what the tree holds, where there is one; waits for it a bounded time."""
        if self.tiers is not None:
            self.tiers.begin_close()
            self.tree.keep_all()
            if self.foresight is not None:
                self.foresight.save()
            self.tiers.close()

    def drop(self) -> None:
        """Let the tiers go and keep nothing: the engine has stopped of a bug, and that may be one of the pages."""
        if self.tiers is not None:
            self.tiers.close()

    def note_step(self, num_prefill: int, num_drawn: int, seconds: float) -> None:
        """A step computed so many tokens of prompts and drew others in that time: what loading has to beat."""
        if self.tiers is not None and num_prefill >= max(_LEAST_NOTED, 8 * num_drawn):
            self.tiers.rates.note("compute", num_prefill, seconds)

    def tier_figures(self) -> dict[str, int]:
        """What `EngineStats` says of pins and tiers, by name."""
        if self.tiers is None or self.foresight is None:
            return {"pages_pinned": self.pins.num_pages}
        counts = asdict(self.tiers.counts())
        return {**counts, "pages_pinned": self.pins.num_pages, "pages_foreseen": self.foresight.num_pages}

    def check(self, running: Iterable[Sequence]) -> None:
        """Assert that every page has one owner and every lock a holder. For tests and debugging."""
        owners = [self.allocator.free_pages(), self.tree.check()]
        holders = list(running)
        for seq in holders:
            assert len(seq.pages) >= self._pages_for(seq.num_computed)
            assert seq.num_computed >= seq.num_shared * self.page_size
            assert owners[1].issuperset(seq.pages[: seq.num_shared]), "a shared page is not the tree's"
            owners.append(set(seq.pages[seq.num_shared :]))
        assert sum(map(len, owners)) == self.allocator.num_pages, "free + cached + running != total"
        assert set().union(*owners) == set(range(self.allocator.num_pages)), "a page has two owners"
        assert self.tree.num_locks() == len(holders) + self.pins.num_locks, "a lock has no holder"

    def _forget(self, seq: Sequence) -> None:
        assert seq.lock is not None
        self.tree.release(seq.lock)
        seq.lock, seq.num_shared, seq.num_computed = None, 0, 0
        seq.pages = []

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def _take(self, num_pages: int) -> list[int] | None:
        missing = num_pages - self.allocator.num_free
        if missing > 0:
            if self.num_available < num_pages:
                return None
            self.num_evicted += self.tree.evict(missing)
        return self.allocator.alloc(num_pages)


def make_tiers(runner: Runner, config: EngineConfig) -> Tiers | None:
    """What a configuration keeps below the pool; None where that is nothing.

    Raises UnsupportedError: the runner's pages cannot be moved.
    """
    if config.cache_dir is None and config.host_bytes == 0:
        return None
    if not isinstance(runner, PageMover):
        raise UnsupportedError("pages of this device's KV pool cannot be moved: leave out cache_dir and host_bytes")
    disk = None
    if config.cache_dir is not None:
        try:
            disk = DiskTier(config.cache_dir, config.fingerprint, limit_bytes=config.cache_bytes)
        except OSError as error:
            raise EngineError(f"cache_dir {config.cache_dir!r} cannot be used ({error}); give a folder") from error
    rates = MeasuredRates() if config.fixed_rows is None else FixedRates()
    return Tiers(runner, runner.page_size, host_bytes=config.host_bytes, disk=disk, rates=rates)


def _better(prefix: Prefix, donor: Donor | None) -> PartialPage | None:
    """What continues the full pages furthest: from the tree or from a donor."""
    best = prefix.partial
    if donor is None or donor.page_index != len(prefix.pages):
        return best
    if best is None or donor.num_tokens > best.num_tokens:
        return PartialPage(donor.page, donor.num_tokens)
    return best
