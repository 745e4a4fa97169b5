"""`forktree demo`: real receipts, read into typed objects on this machine, and what sharing saved."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import forktree as ft
from forktree.commands.console import add_command, add_model_options, local_model, positive, stdout_console

if TYPE_CHECKING:
    from rich.console import Console

    from forktree.tutorials.receipts import Receipt, Scan


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "demo", "read real receipts into typed objects", "  forktree demo --rows 4")
    parser.add_argument("--rows", type=positive, help="how many receipts (default: all)")
    add_model_options(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One receipt after its run; `found` is None where the run failed."""

    scan: Scan
    found: Receipt | None
    kind: str = ""
    payment: str = ""
    error: str = ""


def run(arguments: argparse.Namespace) -> int:
    from forktree.tutorials.receipts import load_scans, read_receipt

    scans = load_scans()[: arguments.rows]
    console = stdout_console()
    began = time.perf_counter()
    with local_model(arguments) as local:
        loading = time.perf_counter() - began
        first = _watch_first(console, read_receipt, scans[0])
        before, start = local.stats(), time.perf_counter()
        results = read_receipt.map([{"text": scan.text} for scan in scans], progress=True)
        seconds = time.perf_counter() - start
        outcomes = [_outcome(scan, result) for scan, result in zip(scans, results, strict=True)]
        console.print(_results_table(outcomes))
        console.print(_summary_table(outcomes, before, local.stats(), seconds, loading))
    console.rule("the program that ran, as its IR")
    console.print(str(first.program), markup=False, highlight=False)
    return 0


def _watch_first(console: Console, program: ft.Function, scan: Scan) -> ft.State:
    """Run one receipt and print its JSON as it is made."""
    console.rule("one receipt, as it is read")
    console.print(scan.text, markup=False, highlight=False, style="dim")
    state = program.stream(scan.text)
    for piece in state.text_iter("facts"):
        console.print(piece, end="", markup=False, highlight=False, soft_wrap=True, style="bold")
    console.print()
    return state


def _outcome(scan: Scan, result: ft.Result) -> Outcome:
    if not result.ok:
        return Outcome(scan, None, error=f"{type(result.error).__name__}: {result.error}")
    value = result.value
    return Outcome(scan, value["receipt"], value["kind"], value["payment"])


def _results_table(outcomes: list[Outcome]) -> Any:
    from rich.table import Table

    from forktree.tutorials.receipts import right_fields

    table = Table(title="receipts (green agrees with what a person found)")
    for column in ("company", "date", "total", "kind", "paid"):
        table.add_column(column)
    for outcome in outcomes:
        if outcome.found is None:
            table.add_row(f"[red]{outcome.error}[/red]")
            continue
        right = right_fields(outcome.found, outcome.scan.gold)
        texts = {"company": outcome.found.company, "date": outcome.found.date, "total": f"{outcome.found.total:.2f}"}
        cells = [_coloured(texts[field], is_right=right[field]) for field in texts]
        table.add_row(*cells, outcome.kind, outcome.payment)
    return table


def _coloured(text: str, *, is_right: bool) -> Any:
    from rich.text import Text

    return Text(text, style="green" if is_right else "red")


def _summary_table(outcomes: list[Outcome], before: Any, after: Any, seconds: float, loading: float) -> Any:
    from rich.table import Table

    from forktree.tutorials.receipts import right_fields

    found = [outcome for outcome in outcomes if outcome.found is not None]
    marks = [right_fields(outcome.found, outcome.scan.gold) for outcome in found if outcome.found is not None]
    prefilled = after.prefill_tokens - before.prefill_tokens
    cached = after.cached_tokens - before.cached_tokens
    generated = after.decode_tokens - before.decode_tokens
    table = Table(show_header=False, title="what the batch took")
    table.add_row("receipts", str(len(outcomes)))
    table.add_row("valid JSON", f"{len(found) / len(outcomes):.0%}")
    for field in ("company", "date", "total"):
        table.add_row(f"{field} right", f"{sum(mark[field] for mark in marks) / len(outcomes):.0%}")
    table.add_row("prompt tokens asked for, every option of a select counted", f"{prefilled + cached:,}")
    table.add_row("prompt tokens computed", f"{prefilled:,}")
    table.add_row("cache hit rate", f"{cached / max(prefilled + cached, 1):.1%}")
    table.add_row("tokens generated, without those that the constraint forces", f"{generated:,}")
    table.add_row("time", f"{seconds:.1f} s")
    table.add_row("time before, to load the model", f"{loading:.1f} s")
    table.add_row("tokens computed and generated a second", f"{(prefilled + generated) / seconds:,.0f}")
    return table
