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
    num_running: int = 0
    num_waiting: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    num_failed: int = 0
