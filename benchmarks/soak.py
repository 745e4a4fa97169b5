"""A long life: programs of every kind for as long as is asked, and what the process holds meanwhile.

    python -m forktree.benchmarks.soak --minutes 60 [--model tiny|NAME] [--every SECONDS]

Threads run tasks of `soak_programs.py` against one `Local` whose pool holds a fraction of their texts, with a little
host memory and a small folder below it, so that everything is evicted, brought up and computed again all the time;
some files of the folder are spoiled on the way. Every few seconds the threads stop for a moment, and the process is
weighed while nothing runs: resident memory, live objects, open files, threads, pages. Every answer of a task that
came before is compared with the one it gave then.

The verdict: no fault, no other answer, every page free or cached at every weighing, as many files and threads at the
end as at first, and neither memory nor objects on a line that rises more than `--rise` percent over the run behind its
first fifth. One core and the lowest priority are enough.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import os
import random
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forktree.backend.cache.disk import page_files

_SETTLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Weight:
    """What the process held at one moment while nothing ran."""

    minutes: float
    num_tasks: int
    num_requests: int
    rss_mib: float
    num_objects: int
    num_files: int
    num_threads: int
    num_pages_cached: int
    computed_tokens: int
    cached_tokens: int
    disk_mib: float


@dataclass(slots=True)
class Tally:
    """What the threads did; `lock` is held to change it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    num_done: Counter[str] = field(default_factory=Counter)
    answers: dict[tuple[str, int], str] = field(default_factory=dict)
    num_compared: int = 0
    faults: list[str] = field(default_factory=list)


class Gate:
    """Lets the threads run, or holds all of them between two tasks."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._is_open, self._num_held = True, 0
        self._changed = threading.Condition()

    def pass_through(self) -> None:
        with self._changed:
            self._num_held += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_open)
            self._num_held -= 1

    @contextmanager
    def closed(self) -> Iterator[None]:
        """All threads are held while this lasts; those that have ended count as held."""
        with self._changed:
            self._is_open = False
            self._changed.wait_for(lambda: self._num_held == self._num_threads)
        yield
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def leave(self) -> None:
        """A thread has ended."""
        with self._changed:
            self._num_held += 1
            self._changed.notify_all()


def write_tiny_model(folder: Path) -> Path:
    """Two layers of random weights behind the built-in model's tokenizer: a step takes a millisecond."""
    import torch
    import transformers

    from forktree.backend.model.store import resolve_model

    source = resolve_model("smollm2-135m")
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=48,
        intermediate_size=88,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=2,
        bos_token_id=1,
    )
    torch.manual_seed(7)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, folder / name)
    return folder


# --- the threads ------------------------------------------------------------------------------------------------


def work(local: Any, seed: int, gate: Gate, tally: Tally, is_over: threading.Event) -> None:
    """Run tasks one after another until it is over."""
    from forktree.benchmarks.soak_programs import NUM_KEPT, TASKS

    rng, fresh = random.Random(seed), 1_000_000 * (seed + 1)
    try:
        while not is_over.is_set():
            gate.pass_through()
            kind = rng.choice(list(TASKS))
            fresh += 1
            number = fresh if rng.random() < 0.1 else rng.randrange(NUM_KEPT)
            try:
                answer = repr(TASKS[kind](local, number))
            except BaseException as error:
                with tally.lock:
                    tally.faults.append(f"{kind} {number}: {type(error).__name__}: {error}"[:400])
                continue
            _compare(tally, kind, number, answer, is_kept=number < NUM_KEPT)
    finally:
        gate.leave()


def _compare(tally: Tally, kind: str, number: int, answer: str, *, is_kept: bool) -> None:
    digest = hashlib.sha256(answer.encode()).hexdigest()[:16]
    with tally.lock:
        tally.num_done[kind] += 1
        if is_kept:
            first = tally.answers.setdefault((kind, number), digest)
            tally.num_compared += 1
            if first != digest:
                tally.faults.append(f"{kind} {number}: another answer than the first: {answer}"[:400])


# --- the scales -------------------------------------------------------------------------------------------------


def weigh(local: Any, tally: Tally, folder: Path, started_s: float) -> Weight:
    """Weigh the process; the threads are held. Raises AssertionError: a page is neither free nor cached."""
    deadline = time.monotonic() + _SETTLE_S
    # What was left behind has to end, and what is foreseen may be on its way up.
    while (stats := local.stats()).num_running or stats.num_waiting or stats.kv_tokens_used:
        assert time.monotonic() < deadline, f"left work goes on, or pages are lost: {stats}"
        time.sleep(0.01)
    assert stats.pages_free + stats.pages_cached == stats.pages_total, stats
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return Weight(
        minutes=(time.monotonic() - started_s) / 60,
        num_tasks=sum(tally.num_done.values()),
        num_requests=stats.num_finished + stats.num_failed,
        rss_mib=pages * resource.getpagesize() / 2**20,
        num_objects=len(gc.get_objects()),
        num_files=len(os.listdir("/proc/self/fd")),
        num_threads=threading.active_count(),
        num_pages_cached=stats.pages_cached,
        computed_tokens=stats.prefill_tokens + stats.decode_tokens,
        cached_tokens=stats.cached_tokens,
        disk_mib=sum(file.num_bytes for file in page_files(folder)) / 2**20,
    )


def spoil(folder: Path, rng: random.Random, num_files: int = 3) -> None:
    """Cut some files short, as a machine that lost its power would."""
    files = sorted(page_files(folder))
    for file in rng.sample(files, min(num_files, len(files))):
        with suppress(FileNotFoundError):  # pruned in this moment
            os.truncate(file.path, file.num_bytes // 2)


def rise_of(weights: list[Weight], name: str) -> float:
    """By how many percent a line through a value rises, from the end of the first fifth to the end of the run."""
    kept = [weight for weight in weights if weight.minutes >= weights[-1].minutes / 5]
    xs, ys = [weight.minutes for weight in kept], [getattr(weight, name) for weight in kept]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
    return 100 * slope * (xs[-1] - xs[0]) / mean_y


def judge(weights: list[Weight], tally: Tally, most_rise: float) -> list[str]:
    """What is wrong, one line each; nothing is well."""
    wrong = [f"fault: {fault}" for fault in tally.faults[:20]]
    for name, what in (("rss_mib", "resident memory"), ("num_objects", "live objects")):
        if (rise := rise_of(weights, name)) > most_rise:
            wrong.append(f"{what} rose by {rise:.2f} %")
    settled = [weight for weight in weights if weight.minutes >= weights[-1].minutes / 5]
    third = max(1, len(settled) // 3)
    for name, what in (("num_files", "open files"), ("num_threads", "threads")):
        first, last = (min(getattr(w, name) for w in part) for part in (settled[:third], settled[-third:]))
        if last > first:
            wrong.append(f"{what} rose from {first} to {last}")
    return wrong


# --- the table --------------------------------------------------------------------------------------------------


def print_heads() -> None:
    heads = ("minutes", "tasks", "requests", "RSS MiB", "objects", "files", "threads", "cached p.", "disk MiB")
    print("| " + " | ".join((*heads, "tokens computed", "from a cache")) + " |")
    print("|" + "---:|" * 11, flush=True)


def print_weight(weight: Weight) -> None:
    cells = (
        f"{weight.minutes:.1f}",
        f"{weight.num_tasks:,}",
        f"{weight.num_requests:,}",
        f"{weight.rss_mib:.1f}",
        f"{weight.num_objects:,}",
        str(weight.num_files),
        str(weight.num_threads),
        str(weight.num_pages_cached),
        f"{weight.disk_mib:.1f}",
        f"{weight.computed_tokens:,}",
        f"{weight.cached_tokens:,}",
    )
    print("| " + " | ".join(cells) + " |", flush=True)


def print_end(weights: list[Weight], tally: Tally, wrong: list[str], num_warnings: int) -> None:
    print("\ntasks:", ", ".join(f"{kind} {num:,}" for kind, num in sorted(tally.num_done.items())))
    print(f"answers that came before: {tally.num_compared - len(tally.answers):,}, each compared with the first one")
    print(f"files spoiled on purpose and found to be so: {num_warnings:,} warnings")
    for name, what in (("rss_mib", "resident memory"), ("num_objects", "live objects")):
        hours = (weights[-1].minutes - weights[-1].minutes / 5) / 60
        rise = rise_of(weights, name)
        print(f"{what}: {rise:+.2f} % over {60 * hours:.0f} minutes")
    print("\n".join(wrong) if wrong else "verdict: flat; no fault, no other answer, no page lost")


class Counting(logging.Handler):
    """Counts warnings instead of showing them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.num_warnings = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.num_warnings += 1
        if record.levelno >= logging.ERROR:
            print(record.getMessage(), file=sys.stderr)


def soak(local: Any, folder: Path, arguments: argparse.Namespace, tally: Tally) -> list[Weight]:
    """Run the threads for as long as is asked, and weigh the process now and then."""
    gate, is_over, rng = Gate(arguments.threads), threading.Event(), random.Random(0)
    threads = [
        threading.Thread(target=work, args=(local, seed, gate, tally, is_over), name=f"soak-{seed}", daemon=True)
        for seed in range(arguments.threads)
    ]
    weights: list[Weight] = []
    started_s = time.monotonic()
    for thread in threads:
        thread.start()
    num_weighings = max(5, int(arguments.minutes * 60 / arguments.every))
    every_row = max(1, num_weighings // arguments.rows)
    print_heads()
    for number in range(1, num_weighings + 1):
        time.sleep(max(0.0, started_s + number * 60 * arguments.minutes / num_weighings - time.monotonic()))
        with gate.closed():
            weights.append(weigh(local, tally, folder, started_s))
            spoil(folder, rng)
        if number % every_row == 0 or number == 1:
            print_weight(weights[-1])
    is_over.set()
    for thread in threads:
        thread.join(_SETTLE_S)
    return weights


def bound_memos(max_bytes: int) -> None:
    """Keep fewer constraints than the 768 MiB that are allowed: those would take days to fill, and hide what grows."""
    from forktree.backend.grammar import constraints

    for memo in (constraints._AUTOMATA, constraints._MASKS):
        memo.bound(max_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two weighings")
    parser.add_argument("--rows", type=int, default=12, help="of the table")
    parser.add_argument("--threads", type=int, default=3, help="that run tasks")
    parser.add_argument("--model", default="tiny", help="tiny: two random layers; or any model that Local takes")
    parser.add_argument("--kv-tokens", type=int, default=1536, help="of the pool; the texts have some 12,000")
    parser.add_argument("--rise", type=float, default=1.0, help="most percent that memory may rise")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch
    import forktree as ft

    bound_memos(2 << 20)
    warnings, tally = Counting(), Tally()
    logging.getLogger("forktree").addHandler(warnings)
    logging.getLogger("forktree").propagate = False
    with tempfile.TemporaryDirectory(prefix="forktree-soak-") as name:
        folder = Path(name)
        model = write_tiny_model(folder / "model") if arguments.model == "tiny" else arguments.model
        below = {"cache_dir": folder / "kv", "cache_bytes": 2 << 20, "host_bytes": 512 << 10}
        if arguments.model != "tiny":
            below |= {"cache_bytes": 512 << 20, "host_bytes": 128 << 20}
        with ft.Local(model, kv_tokens=arguments.kv_tokens, max_running=8, **below) as local:
            weights = soak(local, folder / "kv", arguments, tally)
            local.flush_cache()
            stats = local.stats()
            if stats.pages_free != stats.pages_total:
                tally.faults.append(f"pages are lost: {stats}")
    wrong = judge(weights, tally, arguments.rise)
    print_end(weights, tally, wrong, warnings.num_warnings)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
