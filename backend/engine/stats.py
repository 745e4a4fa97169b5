"""What the engine has done and holds, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot. Counts of work grow for ever; counts of holdings are of now.

    Attributes:
        num_steps: forward passes.
        prefill_tokens: tokens computed as prompt, those computed again after a preemption among them.
        cached_tokens: prompt tokens that a first admission found in the cache instead.
        decode_tokens: tokens drawn, end tokens among them.
        forced_tokens: tokens of outputs that a constraint left no choice about: computed, but not drawn.
        drafted_tokens, accepted_tokens: tokens guessed ahead and computed, and those of them that were then drawn.
        kv_tokens_used: room (in tokens) of the pages that running sequences own or lock.
        pages_total, pages_free, pages_cached: of the pool; cached pages belong to the radix tree, whether a
            running sequence locks them or not.
        pages_used: that running sequences own or lock, shared ones once.
        pages_evicted: times that a cached page gave way, because room was needed.
        pages_pinned: that pins keep, or will when they are computed.
        pages_to_host, pages_to_disk, pages_from_host, pages_from_disk: copied down to a lower tier and up from it; the
            same of bytes. What was evicted and is in the tier already is not copied again.
        pages_not_written: left out because the disk's writer was behind.
        pages_foreseen: of those that came up, the ones that nobody had asked for yet.
        host_pages: held in host memory below the pool.
        num_declined: times that loading was measured to take longer than computing, which was done instead.
        num_tier_faults: pages that could not be moved, and files that were not sound; each was logged and computed.
        num_running, num_waiting: live requests that hold pages, and those that do not yet (or not now).
        num_preemptions: times that a running sequence was put back in the queue.
        num_finished, num_failed: requests that ended well, and those that did not (cancelled ones among them).
    """

    num_steps: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    decode_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    kv_tokens_used: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_cached: int = 0
    pages_used: int = 0
    pages_evicted: int = 0
    pages_pinned: int = 0
    pages_to_host: int = 0
    pages_to_disk: int = 0
    pages_from_host: int = 0
    pages_from_disk: int = 0
    bytes_to_host: int = 0
    bytes_to_disk: int = 0
    bytes_from_host: int = 0
    bytes_from_disk: int = 0
    pages_not_written: int = 0
    pages_foreseen: int = 0
    host_pages: int = 0
    num_declined: int = 0
    num_tier_faults: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    num_failed: int = 0
