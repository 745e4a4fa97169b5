"""Prometheus metrics, under the names that other engines' dashboards know them by, with `forktree:` before them.

What the engine counts is read from it when it is asked; what a request experiences is observed as it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forktree.backend.engine.stats import EngineStats
from forktree.backend.grammar.constraints import compile_counts

_TO_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BETWEEN_TOKENS_S = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5)
_WHOLE_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (1, 8, 32, 128, 512, 2048, 8192, 32768)


class Metrics:
    """The metrics of one server. The server's loop owns it.

    Args:
        stats, num_at_gate: what the engine counts, and how many requests wait before it.
    Attributes:
        aborted: requests whose client went away, or which were cancelled.
    """

    def __init__(self, model: str, stats: Callable[[], EngineStats], num_at_gate: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(model, stats, num_at_gate))

        def histogram(name: str, what: str, buckets: Iterable[float]) -> Histogram:
            made = Histogram(f"forktree:{name}", what, ["model"], buckets=tuple(buckets), registry=self._registry)
            return made.labels(model)

        def counter(name: str, what: str) -> Counter:
            return Counter(f"forktree:{name}", what, ["model"], registry=self._registry).labels(model)

        self.to_first_token = histogram("time_to_first_token_seconds", "until the first text", _TO_FIRST_TOKEN_S)
        self.between_tokens = histogram("inter_token_latency_seconds", "between pieces of text", _BETWEEN_TOKENS_S)
        self.whole = histogram("e2e_request_latency_seconds", "until the last text", _WHOLE_S)
        self.prompt_length = histogram("request_prompt_tokens", "tokens of prompts", _TOKENS)
        self.output_length = histogram("request_generation_tokens", "tokens of outputs", _TOKENS)
        self.aborted = counter("request_aborted", "requests that were cancelled")
        self._model = model
        self._responses = Counter(
            "forktree:http_responses",
            "answers by route and status",
            ["model", "route", "status"],
            registry=self._registry,
        )

    def answered(self, route: str, status: int) -> None:
        self._responses.labels(self._model, route, str(status)).inc()

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Reads the engine's own counts."""

    def __init__(self, model: str, stats: Callable[[], EngineStats], num_at_gate: Callable[[], int]) -> None:
        self._model = model
        self._stats = stats
        self._num_at_gate = num_at_gate

    def describe(self) -> Iterable[Metric]:
        return []  # they are not known before the model is there

    def collect(self) -> Iterable[Metric]:
        stats, grammars = self._stats(), compile_counts()
        prompt = stats.prefill_tokens + stats.cached_tokens
        gauges = {
            "num_requests_running": ("requests that hold pages", stats.num_running),
            "num_requests_waiting": ("requests in the engine's queue", stats.num_waiting),
            "num_requests_at_gate": ("requests that wait for their tenant's turn", self._num_at_gate()),
            "kv_cache_usage_ratio": (
                "pages in use by running requests, of all",
                stats.pages_used / (stats.pages_total or 1),
            ),
            "kv_cache_pages": ("pages of the pool", stats.pages_total),
            "kv_cache_pages_cached": ("pages of the radix tree", stats.pages_cached),
            "kv_cache_pages_pinned": ("pages that pins keep", stats.pages_pinned),
            "kv_tier_host_pages": ("pages held in host memory below the pool", stats.host_pages),
            "prefix_cache_hit_ratio": ("prompt tokens found in the cache, of all", stats.cached_tokens / (prompt or 1)),
        }
        for name, (what, value) in gauges.items():
            yield self._labelled(GaugeMetricFamily(f"forktree:{name}", what, labels=["model"]), value)
        counters = {
            "prefill_tokens": ("prompt tokens computed", stats.prefill_tokens),
            "cached_tokens": ("prompt tokens found in the cache", stats.cached_tokens),
            "generation_tokens": ("tokens drawn", stats.decode_tokens),
            "forced_tokens": ("tokens that a constraint left no choice about", stats.forced_tokens),
            "drafted_tokens": ("tokens guessed ahead", stats.drafted_tokens),
            "accepted_tokens": ("guessed tokens that were drawn", stats.accepted_tokens),
            "engine_steps": ("forward passes", stats.num_steps),
            "kv_cache_pages_evicted": ("cached pages that gave way to others", stats.pages_evicted),
            "kv_tier_pages_not_written": ("pages that the disk's writer was too busy for", stats.pages_not_written),
            "kv_tier_pages_foreseen": ("pages brought up before anybody asked", stats.pages_foreseen),
            "kv_tier_declined": ("times that computing was faster than loading", stats.num_declined),
            "kv_tier_faults": ("pages that a lower tier could not move, or had unsound", stats.num_tier_faults),
            "grammar_cache_hits": ("constraints that were compiled already", grammars.num_found),
            "grammar_cache_misses": ("constraints that had to be compiled", grammars.num_made),
            "grammar_compile_seconds": ("time that compiling constraints took", grammars.seconds),
            "num_preemptions": ("requests put back in the queue", stats.num_preemptions),
            "request_success": ("requests that ended well", stats.num_finished),
            "request_failure": ("requests that did not", stats.num_failed),
        }
        for name, (what, value) in counters.items():
            yield self._labelled(CounterMetricFamily(f"forktree:{name}", what, labels=["model"]), value)
        yield from self._tiers(stats)

    def _tiers(self, stats: EngineStats) -> Iterable[Metric]:
        """What moved to the tiers below the pool and up from them."""
        pages, bytes_ = (
            CounterMetricFamily(f"forktree:kv_tier_{unit}", f"{unit} moved", labels=["model", "tier", "direction"])
            for unit in ("pages", "bytes")
        )
        moved = {
            ("host", "down"): (stats.pages_to_host, stats.bytes_to_host),
            ("host", "up"): (stats.pages_from_host, stats.bytes_from_host),
            ("disk", "down"): (stats.pages_to_disk, stats.bytes_to_disk),
            ("disk", "up"): (stats.pages_from_disk, stats.bytes_from_disk),
        }
        for labels, (num_pages, num_bytes) in moved.items():
            pages.add_metric([self._model, *labels], num_pages)
            bytes_.add_metric([self._model, *labels], num_bytes)
        yield pages
        yield bytes_

    def _labelled(self, family: Metric, value: float) -> Metric:
        family.add_metric([self._model], value)  # type: ignore[attr-defined]
        return family
