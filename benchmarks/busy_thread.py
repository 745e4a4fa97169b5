"""What a busy thread of the user's own Python costs the engine: `python -m forktree.benchmarks.busy_thread`.

Two things are lost to a thread that computes without end. It takes a core, as any other program does. And it holds the
interpreter's lock, which the engine's thread needs between its native calls, and the programs need between theirs. To
tell them apart, the same work runs alone, beside such a thread, and beside a process that does the same: what the
thread costs more than the process is the lock's doing. In turns; the median of each.

`--apart` gives the engine all cores but the last, and whoever is busy the last: then a core is nobody's loss, and
what is lost is the lock's doing alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import NamedTuple

import forktree as ft
from forktree.benchmarks import workloads as W

Core = int | None
"""Where the busy one is put; None leaves it to the system."""


class Spinner:
    """A thread that counts until it is told to stop."""

    def __init__(self, core: Core) -> None:
        self.num_counted = 0
        self._core = core
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._spin)

    def _spin(self) -> None:
        if self._core is not None:
            os.sched_setaffinity(0, {self._core})
        while not self._is_over.is_set():
            for _ in range(100):
                pass
            self.num_counted += 100

    def __enter__(self) -> Spinner:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()


@contextmanager
def busy_process(core: Core) -> Iterator[None]:
    """The same in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        yield
    finally:
        process.kill()
        process.wait()


def _alone(core: Core) -> AbstractContextManager[None]:
    return nullcontext()


WAYS: dict[str, Callable[[Core], AbstractContextManager[Spinner | None]]] = {
    "alone": _alone,
    "thread": Spinner,
    "process": busy_process,
}


@ft.function
def chat(s: ft.State, turns: list[str], num_tokens: int) -> None:
    for index, turn in enumerate(turns):
        s += ft.markup(turn)
        s += ft.gen(f"answer{index}", max_tokens=num_tokens, temperature=0, ignore_eos=True)


class Work(NamedTuple):
    """Something to do, and how many tokens it makes."""

    name: str
    run: Callable[[], object]
    num_tokens: int

    def tokens_per_s(self) -> float:
        start = time.perf_counter()
        self.run()
        return self.num_tokens / (time.perf_counter() - start)


def requests(local: ft.Local, count: int, num_tokens: int) -> Work:
    """That many requests at a time, from an empty cache."""
    prompts = W.w1(count).prompts
    sampling = ft.Sampling(max_tokens=num_tokens, temperature=0, ignore_eos=True)

    def run() -> None:
        local.flush_cache()
        local.generate(prompts, sampling)

    return Work(f"{count} requests", run, count * num_tokens)


def conversations(local: ft.Local, count: int) -> Work:
    """Programs of four short turns: much of what happens between the engine and a program, and back."""
    rows = [{"turns": [W.text(turn) for turn in one.turns], "num_tokens": 12} for one in W.w6()[:count]]
    program = chat.using(backend=local)

    def run() -> None:
        local.flush_cache()
        program.map(rows, on_error="raise")

    return Work(f"{count} programs", run, sum(12 * len(row["turns"]) for row in rows))


class Found(NamedTuple):
    """Tokens a second in each way, and the busy thread's pace, as a share of its pace with nothing beside it."""

    alone: float
    thread: float
    process: float
    pace: float


def counts_per_s(core: Core, seconds: float) -> float:
    """How fast the busy thread counts while nothing else runs."""
    with Spinner(core) as spinner:
        time.sleep(seconds)
        return spinner.num_counted / seconds


def measure(work: Work, core: Core, reps: int) -> Found:
    free = counts_per_s(core, 0.5)
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    paces = []
    for _ in range(reps):
        for name, way in WAYS.items():
            with way(core) as spinner:
                start = time.perf_counter()
                rates[name].append(work.tokens_per_s())
                if spinner is not None:
                    paces.append(spinner.num_counted / (time.perf_counter() - start) / free)
    return Found(*(median(rates[name]) for name in WAYS), median(paces))


def keep_off(core: int) -> None:
    """Let no thread of this process, there or to come, use a core."""
    left = os.sched_getaffinity(0) - {core}
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apart", action="store_true", help="the busy one has the last core, the engine the others")
    parser.add_argument("--reps", type=int, default=3, help="of each (default: %(default)s)")
    arguments = parser.parse_args()
    core = max(os.sched_getaffinity(0)) if arguments.apart else None
    if core is not None:
        keep_off(core)  # before torch is imported and counts the cores
    print("| work | alone | beside a thread | lost | beside a process | lost | pace of the thread |")
    print("|---|---|---|---|---|---|---|")
    with ft.Local() as local:
        requests(local, 4, 8).run()
        for work in (requests(local, 1, 256), requests(local, 4, 64), requests(local, 16, 32), conversations(local, 4)):
            found = measure(work, core, arguments.reps)
            print(
                f"| {work.name} | {found.alone:.0f} | {found.thread:.0f} | {1 - found.thread / found.alone:.0%} "
                f"| {found.process:.0f} | {1 - found.process / found.alone:.0%} | {found.pace:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
