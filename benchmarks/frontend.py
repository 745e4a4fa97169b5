"""What the language and the runtime cost by themselves: programs over a backend that answers at once.

    python benchmarks/frontend.py [--rows 10000]

Each program runs in two ways: its answers are at hand (a script that is data: nothing is waited for, so nothing
leaves the caller's thread), and each answer is asked for on the loop, as any backend that has to wait is. Beside them
stands SGLang 0.5.23's figure on the same kind of machine (2 cores), where it has one.
"""

from __future__ import annotations

import argparse
import gc
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import forktree as ft
from forktree.backend.fake import Fake


@ft.function
def two_generations(s):
    s += "a" + ft.gen("x", max_tokens=4)
    s += "b" + ft.gen("y", max_tokens=4)


@ft.function
def fork_of_four(s):
    s += "trunk"
    forks = s.fork(4)
    forks += ft.gen("x", max_tokens=4)
    forks.join()


@ft.function
async def held(s, i):
    s += f"{i}" + ft.gen("x")
    return await s.aget("x")


@ft.function
def read_once(s, i):
    s += f"{i}" + ft.gen("x")
    return s["x"]


def milliseconds_per_run(run: Callable[[], object], repeats: int = 1000) -> float:
    """The best of five series, each the mean of `repeats` runs."""
    for _ in range(100):
        run()
    best = float("inf")
    for _ in range(5):
        gc.collect()
        start = time.perf_counter()
        for _ in range(repeats // 5):
            run()
        best = min(best, (time.perf_counter() - start) / (repeats // 5) * 1e3)
    return best


def milliseconds_per_row(map_rows: Callable[[list[dict[str, object]]], object], row: dict[str, object]) -> float:
    """Time of the processor, all threads together, for a row of a map: the best of five maps of a thousand."""
    best = float("inf")
    for _ in range(5):
        rows = [dict(row) for _ in range(1000)]
        gc.collect()
        start = time.process_time()
        map_rows(rows)
        best = min(best, time.process_time() - start)
    return best


def body_per_run(program: ft.Function, backend: Fake) -> float:
    return milliseconds_per_run(program.using(backend=backend).run)


def traced_per_run(program: ft.Function, backend: Fake) -> float:
    traced = program.trace()
    return milliseconds_per_run(lambda: traced.run(backend=backend))


def body_per_row(program: ft.Function, backend: Fake) -> float:
    return milliseconds_per_row(program.using(backend=backend).map, {})


def traced_per_row(program: ft.Function, backend: Fake) -> float:
    return milliseconds_per_row(program.trace().map, {"backend": backend})


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def hold_rows(program: ft.Function | ft.Program, num_rows: int, backend: Fake) -> tuple[int, float]:
    """Most threads, and megabytes above the baseline, with all rows in flight at once."""
    before = megabytes()
    backend.hold()
    results: list[ft.Result] = []

    def collect() -> None:
        rows = [{"i": i, "backend": backend} for i in range(num_rows)]
        results.extend(program.map(rows, concurrency=num_rows))

    thread = threading.Thread(target=collect)
    thread.start()
    while backend.num_held < num_rows:
        time.sleep(0.01)
    num_threads = threading.active_count()
    backend.release()
    thread.join()
    assert all(result.ok for result in results)
    return num_threads, megabytes() - before


def map_sync_rows(num_rows: int, backend: Fake) -> tuple[int, float, float]:
    """Most threads, megabytes above the baseline, and milliseconds a row."""
    before = megabytes()
    peak = 0

    def watch(result: ft.Result) -> bool:
        nonlocal peak
        peak = max(peak, threading.active_count())
        return result.ok

    start = time.perf_counter()
    rows = ({"i": i} for i in range(num_rows))
    assert all(watch(result) for result in read_once.using(backend=backend).imap(rows))
    return peak, megabytes() - before, (time.perf_counter() - start) / num_rows * 1e3


def import_seconds() -> float:
    """Best of three warm imports in a fresh process."""
    script = "import time; t = time.perf_counter(); import forktree; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True) for _ in range(3)]
    return min(float(run.stdout) for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    num_rows = parser.parse_args().rows
    answers = {"x": "hello", "y": "world"}
    at_hand = Fake(answers, keep_requests=False)
    asked = Fake(lambda request: answers[request.name], keep_requests=False)
    print(f"{'milliseconds':40}{'at hand':>9}{'asked':>9}{'target':>9}{'SGLang':>13}")
    for name, program, target, sglang in (
        ("two generations", two_generations, 0.15, "0.7 to 0.9"),
        ("fork of four", fork_of_four, 0.4, "2.5 to 2.7"),
    ):
        for way, measure, limit, rival in (
            ("", body_per_run, f"{target}", sglang),
            (", traced", traced_per_run, f"{target / 2}", ""),
            (", a row of a map", body_per_row, "", ""),
            (", traced, a row of a map", traced_per_row, "", ""),
        ):
            figures = "".join(f"{measure(program, backend):9.3f}" for backend in (at_hand, asked))
            print(f"{name + way:40}{figures}{limit:>9}{rival:>13}")
    backend = at_hand
    for kind, program in (("async", held), ("traced", held.trace())):
        num_threads, grown = hold_rows(program, num_rows, backend)
        print(f"{num_rows} {kind} rows in flight: {num_threads} threads (under 70), {grown:.0f} MB more (under 200)")
    num_threads, grown, each = map_sync_rows(num_rows, backend)
    print(f"{num_rows} sync rows: {num_threads} threads (under 70), {grown:.0f} MB more, {each:.3f} ms a row")
    print(f"import forktree: {import_seconds():.3f} s (under 0.3)")


if __name__ == "__main__":
    main()
