"""Time cases, tell how undisturbed the machine was, and print one table.

A case runs once to warm up and then `reps` times; the median wall time is kept. Each row says how many cores the
benchmark itself used, how many other work used, and how many the hypervisor took: a row with more than 0.15 of
the last two deserves a rerun.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Row:
    """One measured case. `seconds` are per repetition; `units` are requests, questions, programs or turns."""

    engine: str
    case: str
    units: int
    seconds: list[float]
    num_tokens: int = 0
    cores: tuple[float, float, float] = (0.0, 0.0, 0.0)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def is_disturbed(self) -> bool:
        """Whether others took more than 0.15 of a core meanwhile."""
        return self.cores[1] + self.cores[2] > 0.15

    @property
    def units_per_s(self) -> float:
        return self.units / self.median

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.median


class Bench:
    """Runs cases for one engine and collects their rows.

    Args:
        on_row: told each row as soon as it is measured.
    """

    def __init__(
        self,
        engine: str,
        *,
        reps: int,
        warmup: int,
        budget_s: float,
        on_row: Callable[[Row], None] = lambda row: print(markdown_line(row), flush=True),
    ) -> None:
        self.engine = engine
        self.rows: list[Row] = []
        self._reps = reps
        self._warmup = warmup
        self._budget_s = budget_s
        self._on_row = on_row

    def case(
        self,
        name: str,
        run: Callable[[], dict[str, Any]],
        *,
        units: int,
        warmup: int | None = None,
        facts: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ) -> None:
        """Time `run`, which returns {"tokens": generated, …}; `facts` makes notes of the rest, off the clock."""
        for _ in range(self._warmup if warmup is None else warmup):
            run()
        before = _Usage.now()
        seconds: list[float] = []
        found: dict[str, Any] = {}
        for _ in range(self._reps):
            start = time.perf_counter()
            found = dict(run())
            seconds.append(time.perf_counter() - start)
            if sum(seconds) + seconds[-1] > self._budget_s:
                break
        cores = _Usage.now().since(before)
        num_tokens = found.pop("tokens", 0)
        row = Row(self.engine, name, units, seconds, num_tokens, cores, facts(found))
        self.rows.append(row)
        self._on_row(row)


@dataclass(frozen=True, slots=True)
class _Usage:
    """CPU seconds so far: of this process and its children, of the machine, and stolen from it."""

    wall: float
    own: float
    busy: float
    stolen: float

    @classmethod
    def now(cls) -> _Usage:
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        busy = stolen = 0.0
        if Path("/proc/stat").exists():
            jiffies = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
            hz = os.sysconf("SC_CLK_TCK")
            busy = (sum(jiffies[:3]) + jiffies[5] + jiffies[6]) / hz
            stolen = jiffies[7] / hz
        return cls(time.perf_counter(), own, busy, stolen)

    def since(self, before: _Usage) -> tuple[float, float, float]:
        wall = max(self.wall - before.wall, 1e-9)
        own = self.own - before.own
        others = max(0.0, self.busy - before.busy - own)
        return round(own / wall, 2), round(others / wall, 2), round((self.stolen - before.stolen) / wall, 2)


HEADER = (
    "| engine | case | s (median) | min to max | reps | units/s | tokens/s | notes |\n|---|---|---|---|---|---|---|---|"
)


def notes_of(row: Row) -> str:
    """What a row says besides its times, a disturbance by other work among it."""
    notes = [f"{k} {v}" for k, v in row.notes.items()]
    if row.is_disturbed:
        notes.append(f"(disturbed: {row.cores[1]} cores by others, {row.cores[2]} stolen)")
    return ", ".join(notes)


def markdown_line(row: Row) -> str:
    tokens = f"{row.tokens_per_s:.1f}" if row.num_tokens else ""
    spread = f"{min(row.seconds):.2f} to {max(row.seconds):.2f}"
    return (
        f"| {row.engine} | {row.case} | {row.median:.2f} | {spread} | {len(row.seconds)} "
        f"| {row.units_per_s:.3g} | {tokens} | {notes_of(row)} |"
    )


def arguments(description: str) -> argparse.Namespace:
    """The options that the script of an engine takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("-w", "--workloads", default="W1,W2,W3,W4,W5,W6", help="comma-separated (default: all)")
    parser.add_argument("-r", "--reps", type=int, default=3, help="repetitions after one warm-up (default: 3)")
    parser.add_argument("--quick", action="store_true", help="one repetition, no warm-up")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds a case may take in all (default: 40)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument(
        "--lines", type=Path, help="also add each row to this file as it is measured, as a line of JSON"
    )
    parser.add_argument("--quantize", default="auto", help="precision of the linear layers (default: auto)")
    arguments = parser.parse_args()
    if arguments.lines is not None:
        _end_with_parent()
    return arguments


def _end_with_parent() -> None:
    """Whoever reads the lines may be killed before it can end this process; then the system does, where it can."""
    with contextlib.suppress(OSError, AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def bench_for(engine: str, args: argparse.Namespace) -> Bench:
    def on_row(row: Row) -> None:
        print(markdown_line(row), flush=True)
        if args.lines is not None:
            with args.lines.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")

    reps, warmup = (1, 0) if args.quick else (args.reps, 1)
    return Bench(engine, reps=reps, warmup=warmup, budget_s=args.budget, on_row=on_row)


def read_json(path: Path) -> list[Row]:
    """Rows that `write_json` wrote."""
    return [_row(fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


def read_lines(path: Path) -> list[Row]:
    """Rows that were added one by one; none where nothing was. A line that was cut off is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # what follows the last end of a line was cut off
    return [_row(json.loads(line)) for line in lines]


def _row(fields: dict[str, Any]) -> Row:
    return Row(**{**fields, "cores": tuple(fields["cores"])})


def write_json(path: Path | None, rows: list[Row]) -> None:
    if path is not None:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
