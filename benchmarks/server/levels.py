"""Measured: one number of clients on one engine, and the tables of such rows."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forktree.benchmarks.server.client import Driven, Timing
from forktree.benchmarks.server.cpu import cpu_seconds

HEADER = (
    "| engine | clients | requests/s | tokens/s | first token p50, ms | p99, ms | later token, ms "
    "| CPU a request, ms | client's, ms |\n|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class Level:
    """All repetitions of one number of clients; CPU seconds are the engine's processes', and the client's."""

    engine: str
    num_clients: int
    runs: tuple[Driven, ...]
    engine_cpu_s: float
    client_cpu_s: float

    @property
    def timings(self) -> list[Timing]:
        return [timing for run in self.runs for timing in run.timings]

    @property
    def requests_per_s(self) -> float:
        return statistics.median(len(run.timings) / run.seconds for run in self.runs)

    def line(self) -> str:
        """A row of the table."""
        timings = self.timings
        tokens = statistics.median(sum(one.num_tokens for one in run.timings) / run.seconds for run in self.runs)
        firsts = sorted(one.first_s for one in timings)
        later = statistics.median((one.whole_s - one.first_s) / max(1, one.num_tokens - 1) for one in timings)
        cells = (
            f"{self.requests_per_s:.2f}",
            f"{tokens:.0f}",
            f"{1e3 * statistics.median(firsts):.0f}",
            f"{1e3 * firsts[math.ceil(0.99 * len(firsts)) - 1]:.0f}",
            f"{1e3 * later:.1f}",
            f"{1e3 * self.engine_cpu_s / len(timings):.0f}",
            f"{1e3 * self.client_cpu_s / len(timings):.1f}",
        )
        return f"| {self.engine} | {self.num_clients} | {' | '.join(cells)} |"


@dataclass(frozen=True, slots=True)
class Contestant:
    """Something to measure: its process group, and what drives it by clients, requests and the first one's number."""

    name: str
    group: int
    drive: Callable[[int, int, int], Driven]


def measure(
    contestants: Sequence[Contestant], num_clients: int, num_requests: int, reps: int, begin: int
) -> list[Level]:
    """The same requests to each of them, in turn, as often as there are repetitions; no request comes twice."""
    runs: dict[str, list[Driven]] = {each.name: [] for each in contestants}
    engine_cpu, client_cpu = dict.fromkeys(runs, 0.0), dict.fromkeys(runs, 0.0)
    for rep in range(reps):
        order = contestants if rep % 2 == 0 else contestants[::-1]
        for each in order:
            cpu, own = cpu_seconds(each.group), time.process_time()
            runs[each.name].append(each.drive(num_clients, num_requests, begin + rep * num_requests))
            client_cpu[each.name] += time.process_time() - own
            engine_cpu[each.name] += cpu_seconds(each.group) - cpu
    return [
        Level(each.name, num_clients, tuple(runs[each.name]), engine_cpu[each.name], client_cpu[each.name])
        for each in contestants
    ]
