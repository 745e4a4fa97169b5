"""Rows as bars: in the terminal, and as a PNG."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from forktree.benchmarks.harness import Row

BAR_WIDTH = 30


class Bar(NamedTuple):
    """A row's length, of the longest bar it is compared with, and its figure."""

    row: Row
    length: float
    label: str


def lengths(rows: list[Row]) -> list[Bar]:
    """Several engines are compared case by case in units a second; one alone is shown in tokens a second."""
    if len({row.engine for row in rows}) > 1:
        fastest = {case: max(row.units_per_s for row in group) for case, group in by_case(rows).items()}
        return [Bar(row, row.units_per_s / fastest[row.case], f"{row.units_per_s:.3g}/s") for row in rows]
    counted = [row for row in rows if row.num_tokens]
    most = max((row.tokens_per_s for row in counted), default=1.0)
    return [Bar(row, row.tokens_per_s / most, f"{row.tokens_per_s:.0f} tokens/s") for row in counted]


def bars(rows: list[Row]) -> Iterator[str]:
    """One line a row, grouped by case."""
    found = {id(bar.row): bar for bar in lengths(rows)}
    for group in by_case(rows).values():
        for bar in (found[id(row)] for row in group if id(row) in found):
            block = "█" * max(1, round(BAR_WIDTH * bar.length))
            yield f"{bar.row.case:19} {bar.row.engine:14} {block:{BAR_WIDTH}} {bar.label}"


def by_case(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows of the same case together, in the order in which cases were met."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.case, []).append(row)
    return found


def ratios(rows: list[Row], engines: Collection[str]) -> Iterator[tuple[Row, Row, float]]:
    """(row of one of `engines`, row of the best of the others, how many times as fast it is) where both ran."""
    for group in by_case(rows).values():
        rivals = [row for row in group if row.engine not in engines]
        if not rivals:
            continue
        best = max(rivals, key=lambda row: row.units_per_s)
        for own in group:
            if own.engine in engines:
                yield own, best, own.units_per_s / best.units_per_s


def draw(rows: list[Row], path: Path) -> None:
    """Write the same bars as a picture.

    Raises:
        ImportError: matplotlib is missing.
    """
    from matplotlib.figure import Figure

    found = lengths(rows)
    cases = list(dict.fromkeys(bar.row.case for bar in found))
    engines = list(dict.fromkeys(bar.row.engine for bar in found))
    height = 0.8 / max(1, len(engines))
    figure = Figure(figsize=(9, 1.2 + 0.35 * len(cases) * max(1, len(engines))), layout="constrained")
    axes = figure.add_subplot()
    for number, engine in enumerate(engines):
        own = [bar for bar in found if bar.row.engine == engine]
        places = [cases.index(bar.row.case) + number * height for bar in own]
        container = axes.barh(places, [bar.length for bar in own], height=height, label=engine)
        axes.bar_label(container, labels=[bar.label for bar in own], padding=3, fontsize=8)
    axes.set_yticks([at + 0.4 - height / 2 for at in range(len(cases))], cases)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25)
    axes.set_xticks([])
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=150)
