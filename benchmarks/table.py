"""The tables of the documentation, from rows that were measured: `python -m forktree.benchmarks.table rows.json […]`.

Rows are what `forktree bench --json` and the scripts of the engines write. One table compares the engines case by
case, with the floor of each precision of forktree beside it; another has the kinds of program with their hit rates.
What the machine reaches is measured when the table is made, so on the same idle machine, or stated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from forktree.benchmarks.charts import by_case
from forktree.benchmarks.floors import CASES, MODELS, Machine, measure_machine, seconds
from forktree.benchmarks.harness import Row, read_json

OWN = "forktree"


def _is_own(engine: str) -> bool:
    return engine.split()[0] == OWN


def _precision(engine: str) -> str:
    return engine.removeprefix(OWN).strip() or "auto"


def floor_of(row: Row, machine: Machine) -> float | None:
    """Seconds, for cases and precisions that have a floor."""
    model, passes = MODELS.get(_precision(row.engine)), CASES.get(row.case)
    return None if model is None or passes is None else seconds(passes(), model, machine)


def speed_table(rows: list[Row], machine: Machine) -> Iterator[str]:
    """Units a second of each engine, how many times as fast as the best other one forktree is, and its floor."""
    engines = list(dict.fromkeys(row.engine for row in rows))
    own = [engine for engine in engines if _is_own(engine)]
    others = [engine for engine in engines if not _is_own(engine)]
    heads = ["case", *chain.from_iterable((f"{name}, s", "floor, s", "units/s") for name in own), *others]
    heads += [f"{name} / best other" for name in own] if others else []
    yield from _head(heads)
    for case, group in by_case(rows).items():
        found = {row.engine: row for row in group}
        cells = [case, *chain.from_iterable(_own_cells(found.get(name), machine) for name in own)]
        cells += [_speed(found.get(name)) for name in others]
        cells += [_ratio(found.get(name), [found[n] for n in others if n in found]) for name in own] if others else []
        yield _line(cells)


def _own_cells(row: Row | None, machine: Machine) -> tuple[str, str, str]:
    if row is None:
        return "", "", ""
    floor = floor_of(row, machine)
    return f"{row.median:.2f}{'*' if row.is_disturbed else ''}", "" if floor is None else f"{floor:.2f}", _speed(row)


def _speed(row: Row | None) -> str:
    return "" if row is None else f"{row.units_per_s:.3g}"


def _ratio(row: Row | None, others: list[Row]) -> str:
    if row is None or not others:
        return ""
    return f"{row.units_per_s / max(other.units_per_s for other in others):.2f}"


def sharing_table(rows: list[Row]) -> Iterator[str]:
    """The kinds of program: prompt tokens, those computed, and the fewest that any cache could have computed."""
    yield from _head(["kind", "rows", "prompt tokens", "computed", "fewest possible", "hit", "best"])
    for row in rows:
        notes = row.notes
        counts = (f"{notes[name]:,}" for name in ("prompt", "computed", "least"))
        yield _line([row.case, str(row.units), *counts, notes["hit"], notes["best"]])


def _head(names: list[str]) -> Iterator[str]:
    yield _line(names)
    yield "|" + "---|" * len(names)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="ROWS.json")
    parser.add_argument("--gb", type=float, help="memory that the machine reads, GB a second (default: measured)")
    parser.add_argument("--gflops", type=float, help="float32 operations a second, in 1e9 (default: measured)")
    arguments = parser.parse_args()
    try:
        rows = [row for path in arguments.files for row in read_json(path)]
    except (OSError, ValueError, TypeError, KeyError) as error:
        sys.exit(f"not a file of rows as `forktree bench --json` writes it: {error}")
    kinds = [row for row in rows if "hit" in row.notes]
    speeds = [row for row in rows if "hit" not in row.notes]
    if speeds:
        machine = _machine(arguments.gb, arguments.gflops)
        print(*speed_table(speeds, machine), sep="\n")
        print(f"\nFloors at {machine.bytes_per_s / 1e9:.1f} GB/s and {machine.ops_per_s / 1e9:.0f} GFLOP/s (float32).")
    if kinds:
        print(*sharing_table(kinds), sep="\n")


def _machine(gigabytes: float | None, gigaflops: float | None) -> Machine:
    if gigabytes is not None and gigaflops is not None:
        return Machine(gigabytes * 1e9, gigaflops * 1e9)
    found = measure_machine()
    return Machine(
        found.bytes_per_s if gigabytes is None else gigabytes * 1e9,
        found.ops_per_s if gigaflops is None else gigaflops * 1e9,
    )


if __name__ == "__main__":
    main()
