"""The eleven kinds of program, each with its hit rate beside the best possible, and batching static and continuous."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import forktree as ft
from forktree.benchmarks import workloads as W
from forktree.benchmarks.harness import Bench
from forktree.benchmarks.programs import KINDS
from forktree.benchmarks.sharing import Sharing, Tap

NUM_SLOTS = 8  # requests at a time, in both ways of batching


def run_kind(name: str, bench: Bench, local: ft.Local, num_rows: int) -> None:
    """One kind of program, from an empty cache; `least` and `best` are what no cache could better."""
    kind = KINDS[name](num_rows)
    tap = Tap(local)

    def case() -> dict[str, Any]:
        local.flush_cache()
        tap.clear()
        before = local.stats()
        kind.program.using(backend=tap).map(kind.rows, on_error="raise")
        after = local.stats()
        computed = after.prefill_tokens - before.prefill_tokens
        requested = computed + after.cached_tokens - before.cached_tokens
        tokens = after.decode_tokens + after.forced_tokens - before.decode_tokens - before.forced_tokens
        return {"tokens": tokens, "sharing": Sharing(requested, computed, 0)}

    bench.case(name, case, units=len(kind.rows), facts=lambda facts: _told(facts, tap))


def _told(facts: dict[str, Any], tap: Tap) -> dict[str, Any]:
    """Outside the clock: the tree of what was asked."""
    sharing = facts["sharing"]._replace(least=tap.least_prefill())
    return {
        "prompt": sharing.requested,
        "computed": sharing.computed,
        "least": sharing.least,
        "hit": f"{sharing.hit_rate:.1%}",
        "best": f"{sharing.best_rate:.1%}",
    }


@ft.function
def _continue(s: ft.State, prompt: str, num_tokens: int) -> None:
    s += prompt + ft.gen("text", max_tokens=num_tokens, temperature=0, ignore_eos=True)


def _loads(num_requests: int) -> list[dict[str, Any]]:
    """Prompts of 16 to 256 tokens, outputs of 8 to 96: what real traffic is like and padding is not."""
    rng = random.Random(8)
    return [
        {"prompt": W.text(W.prose(8000 + i, rng.randint(16, 256))), "num_tokens": rng.choice((8, 8, 16, 16, 32, 96))}
        for i in range(num_requests)
    ]


def _groups(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(rows), NUM_SLOTS):
        yield rows[start : start + NUM_SLOTS]


def run_batching(bench: Bench, local: ft.Local, num_requests: int) -> None:
    """The same requests in groups that start and end together, and each as soon as there is a place."""
    rows = _loads(num_requests)
    num_tokens = sum(row["num_tokens"] for row in rows)
    program = _continue.using(backend=local)

    def static() -> dict[str, Any]:
        local.flush_cache()
        for group in _groups(rows):
            program.map(group, concurrency=NUM_SLOTS, on_error="raise")
        return {"tokens": num_tokens, "slots": NUM_SLOTS}

    def continuous() -> dict[str, Any]:
        local.flush_cache()
        program.map(rows, concurrency=NUM_SLOTS, on_error="raise")
        return {"tokens": num_tokens, "slots": NUM_SLOTS}

    bench.case("batching/static", static, units=len(rows))
    bench.case("batching/continuous", continuous, units=len(rows))
