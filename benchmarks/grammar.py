"""Grammars beside their rivals: what compiles, what is decided rightly, and how long a request waits.

    python -m forktree.benchmarks.grammar --schemas FILE.jsonl [FILE.jsonl …]
    python -m forktree.benchmarks.grammar --schemas FILE.jsonl --engines forktree,llguidance --limit 100 --json out.json

A row of a file is one JSON object with `schema`, `valid` and `invalid` (`grammar_rows.py` says how instances are
written). Every engine runs in a process of its own (`grammar_worker.py`), one thread, same vocabulary; a schema that
takes too long costs its process and counts as timed out. *Passing*: compiled, every valid instance accepted, every
invalid one rejected. *Over*: some valid instance is rejected. *Under*: some invalid one is accepted. Times are CPU
time. A new mask is what the first request at a place in an output pays, a cached one what the second pays.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forktree.benchmarks.grammar_engines import ENGINES
from forktree.benchmarks.grammar_rows import Row, load_rows

DEFAULT_ROWS = Path(__file__).parent.parent / "tests/data/grammar/schemas.jsonl"
START_LIMIT_S = 300.0


@dataclass(slots=True)
class Verdict:
    """What one engine made of one schema. `outcome` is a key of `OUTCOMES`."""

    row: str
    outcome: str
    reason: str = ""
    first_mask_s: float | None = None
    new_mask_s: list[float] = field(default_factory=list)
    cached_mask_s: list[float] = field(default_factory=list)
    over: list[int] = field(default_factory=list)
    under: list[int] = field(default_factory=list)


OUTCOMES = {
    "pass": "all decided rightly",
    "over": "a valid instance rejected",
    "under": "an invalid one accepted",
    "both": "over and under",
    "refused": "refused, with a reason",
    "timeout": "no mask in time",
    "slow walk": "its instances took too long",
    "crash": "the process died",
}
COMPILED = ("pass", "over", "under", "both", "slow walk")


@dataclass(slots=True)
class Report:
    """All verdicts of one engine. `start_mb` is held once it is ready, `peak_mb` at most."""

    engine: str
    verdicts: list[Verdict] = field(default_factory=list)
    start_s: float = 0.0
    start_mb: float = 0.0
    peak_mb: float = 0.0


class Worker:
    """A worker process; `answers` ends where it dies or is too slow."""

    def __init__(self, engine: str, model: str) -> None:
        command = [sys.executable, "-m", "forktree.benchmarks.grammar_worker", engine, model]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        self._pending = b""

    def ask(self, row: Row) -> None:
        assert self._process.stdin is not None
        line = json.dumps({"schema": row.schema, "valid": row.valid, "invalid": row.invalid}) + "\n"
        self._process.stdin.write(line.encode())

    def answer(self, limit_s: float) -> dict[str, Any] | None:
        """The next line; None where none came within so many CPU seconds, or ten times as many by the clock.

        Raises:
            EOFError: the process died.
        """
        assert self._process.stdout is not None
        spent, until = self._cpu_s() + limit_s, time.monotonic() + 10 * limit_s
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._process.stdout], [], [], 0.1)
            if not ready:
                if self._cpu_s() > spent or time.monotonic() > until:
                    return None
                continue
            piece = self._process.stdout.read(1 << 16)
            if not piece:
                raise EOFError
            self._pending += piece
        line, self._pending = self._pending.split(b"\n", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Judge:
    """Runs rows through one engine, restarting its process where a row cost it."""

    def __init__(self, engine: str, model: str, limit_s: float, walk_limit_s: float) -> None:
        self.report = Report(engine)
        self._model = model
        self._limits = (limit_s, walk_limit_s)
        self._worker: Worker | None = None

    def judge(self, row: Row) -> Verdict:
        worker = self._started()
        verdict = Verdict(row.name, "crash")
        try:
            worker.ask(row)
            self._fill(verdict, worker)
        except (EOFError, BrokenPipeError):
            verdict.outcome = "crash"
        if verdict.outcome in ("crash", "timeout", "slow walk"):
            self.stop()
        self.report.verdicts.append(verdict)
        return verdict

    def _fill(self, verdict: Verdict, worker: Worker) -> None:
        for limit_s, late in zip(self._limits, ("timeout", "slow walk"), strict=True):
            answer = self._answer(worker, limit_s)
            if answer is None:
                verdict.outcome = late
                return
            if answer["event"] == "refused":
                verdict.outcome, verdict.reason = "refused", answer["reason"]
                return
            _note(verdict, answer)

    def _answer(self, worker: Worker, limit_s: float) -> dict[str, Any] | None:
        answer = worker.answer(limit_s)
        if answer is not None:
            self.report.peak_mb = max(self.report.peak_mb, answer["rss_mb"])
        return answer

    def _started(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self.report.engine, self._model)
            ready = self._answer(self._worker, START_LIMIT_S)
            if ready is None:
                raise RuntimeError(f"{self.report.engine} did not start in {START_LIMIT_S:g} s")
            self.report.start_s, self.report.start_mb = ready["seconds"], ready["rss_mb"]
        return self._worker

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None


def _note(verdict: Verdict, answer: dict[str, Any]) -> None:
    if answer["event"] == "first_mask":
        verdict.first_mask_s = answer["seconds"]
        return
    verdict.new_mask_s, verdict.cached_mask_s = answer["new_mask_s"], answer["cached_mask_s"]
    verdict.over, verdict.under = answer["over"], answer["under"]
    kinds = {(False, False): "pass", (True, False): "over", (False, True): "under", (True, True): "both"}
    verdict.outcome = kinds[bool(verdict.over), bool(verdict.under)]


def run_engine(judge: Judge, rows: list[Row]) -> None:
    """Every row through one engine."""
    engine = judge.report.engine
    try:
        for done, row in enumerate(rows, start=1):
            verdict = judge.judge(row)
            if sys.stderr.isatty():
                print(f"\r{engine} {done}/{len(rows)} {verdict.outcome:10}", end="", file=sys.stderr, flush=True)
    except EOFError:
        print(f"{engine} does not start here; is it installed? (`pip install 'forktree[bench]'`)", file=sys.stderr)
    finally:
        judge.stop()


def counts_table(reports: list[Report]) -> Iterator[str]:
    yield "| engine | schemas | compiled | passing | over | under | both | refused | time-out | slow walk | crash |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for report in reports:
        found = Counter(verdict.outcome for verdict in report.verdicts)
        total = len(report.verdicts) or 1
        compiled = sum(found[outcome] for outcome in COMPILED)
        cells = [f"{compiled} ({compiled / total:.1%})", f"{found['pass']} ({found['pass'] / total:.1%})"]
        cells += [str(found[name]) for name in ("over", "under", "both", "refused", "timeout", "slow walk", "crash")]
        yield f"| {report.engine} | {len(report.verdicts)} | " + " | ".join(cells) + " |"


def times_table(reports: list[Report]) -> Iterator[str]:
    headings = ("engine", "first mask, ms: p50 / p90 / p99", "new mask, µs: p50 / p99", "cached mask, µs: p50 / p99")
    yield "| " + " | ".join(headings) + " | memory, MB |"
    yield "|---|---|---|---|---|"
    for report in reports:
        first = [v.first_mask_s for v in report.verdicts if v.first_mask_s is not None]
        new = [s for v in report.verdicts for s in v.new_mask_s]
        cached = [s for v in report.verdicts for s in v.cached_mask_s]
        cells = [_at(first, 1e3, 0.5, 0.9, 0.99), _at(new, 1e6, 0.5, 0.99), _at(cached, 1e6, 0.5, 0.99)]
        cells.append(f"{report.start_mb:.0f} ready, {report.peak_mb:.0f} at most")
        yield f"| {report.engine} | " + " | ".join(cells) + " |"


def _at(seconds: list[float], scale: float, *quantiles: float) -> str:
    ordered = sorted(seconds)
    if not ordered:
        return "–"
    return " / ".join(f"{ordered[min(len(ordered) - 1, int(len(ordered) * q))] * scale:.4g}" for q in quantiles)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=Path, nargs="+", default=[DEFAULT_ROWS], help="JSON Lines of schemas")
    parser.add_argument("--engines", default=",".join(ENGINES), help="comma-separated (default: all)")
    parser.add_argument("--limit", type=int, help="a random sample of so many schemas, the same for every engine")
    parser.add_argument("--time-limit", type=float, default=10.0, help="CPU seconds to the first mask (default: 10)")
    parser.add_argument(
        "--walk-limit", type=float, default=60.0, help="CPU seconds for a schema's instances (default: 60)"
    )
    parser.add_argument(
        "--model", default="smollm2-135m", help="whose tokenizer: a name, a folder or a hub id (default: smollm2-135m)"
    )
    parser.add_argument("--json", type=Path, help="also write every verdict to this file")
    options = parser.parse_args()
    unknown = [name for name in options.engines.split(",") if name not in ENGINES]
    if unknown:
        parser.error(f"no engine {unknown[0]!r}; there are {', '.join(ENGINES)}")
    return options


def main() -> None:
    options = _options()
    from forktree.backend.model.store import resolve_model

    if not Path(options.model).is_dir():  # a folder may hold a tokenizer alone
        options.model = str(resolve_model(options.model))
    rows = [row for path in options.schemas for row in load_rows(path)]
    if options.limit is not None:
        rows = random.Random(0).sample(rows, min(options.limit, len(rows)))
    reports: list[Report] = []
    try:
        for engine in options.engines.split(","):
            judge = Judge(engine, options.model, options.time_limit, options.walk_limit)
            reports.append(judge.report)
            run_engine(judge, rows)
            _write(options.json, reports)
    except KeyboardInterrupt:
        print(f"\n{reports[-1].engine}: stopped after {len(reports[-1].verdicts)} schemas", file=sys.stderr)
        _write(options.json, reports)
    print("\n".join([*counts_table(reports), "", *times_table(reports)]))


def _write(path: Path | None, reports: list[Report]) -> None:
    if path is not None:
        path.write_text(json.dumps([asdict(report) for report in reports]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
