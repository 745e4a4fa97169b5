"""`forktree bench`: workloads on this machine, as a table, bars and a picture, beside other engines if asked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import forktree as ft
from forktree.commands.console import (
    add_command,
    add_model_options,
    local_model,
    output_file,
    positive,
    stderr_console,
    stdout_console,
)
from forktree.runtime.plan import counted

if TYPE_CHECKING:
    from forktree.benchmarks.harness import Bench, Row
    from forktree.benchmarks.peers import Peer

WORKLOADS = ("W1", "W2", "W3", "W4", "W5", "W6")
KINDS = (
    "mmlu",
    "hellaswag",
    "react",
    "agents",
    "tree-of-thought",
    "skeleton",
    "judge",
    "json",
    "chat-short",
    "chat-long",
    "rag",
)
CASES = (*WORKLOADS, *KINDS, "batching")
PRECISIONS = ("auto", "none", "fp16", "int8", "mixed", "q4")
PEERS = ("transformers", "llama.cpp", "vllm")
COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("case", "left"),
    ("engine", "left"),
    ("s", "right"),
    ("units/s", "right"),
    ("tokens/s", "right"),
)

EXAMPLE = """\
  forktree bench --quick
  forktree bench --only W1,W3 --against transformers --plot speed.png
  forktree bench --only mmlu,react,judge --json rows.json
  forktree bench --only W1 --also none --against vllm --vllm-python ~/vllm/bin/python

cases:
  W1 decode   W2 prefill   W3 few-shot, generated and selected   W4 fork and join   W5 JSON   W6 chat
  mmlu, hellaswag, react, agents, tree-of-thought, skeleton, judge, json, chat-short, chat-long, rag:
    programs whose prefixes are shared; `hit` is the share of prompt tokens that was not computed, `best` the
    largest share that any cache could spare
  batching: the same requests in groups of eight, and each as soon as there is a place"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "bench", "measure workloads on this machine", EXAMPLE)
    parser.add_argument("--only", type=_some_of(CASES), metavar="CASES", help="comma-separated (default: all)")
    parser.add_argument("--against", type=_some_of(PEERS), metavar="ENGINES", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--quick", action="store_true", help="one repetition without a warm-up, and fewer rows")
    parser.add_argument("--reps", type=positive, default=3, help="repetitions after a warm-up (default: %(default)s)")
    for peer in PEERS:
        option, variable = _names_of(peer)
        parser.add_argument(
            option, metavar="PATH", help=f"the Python that has {peer} (default: ${variable}, or this one)"
        )
    parser.add_argument(
        "--peer-timeout",
        type=positive,
        default=3600,
        metavar="S",
        help="seconds for each engine (default: %(default)s)",
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the rows to a file")
    parser.add_argument("--plot", type=output_file, metavar="FILE.png", help="also draw the rows")
    add_model_options(parser)
    parser.add_argument(
        "--also",
        type=_some_of(PRECISIONS),
        metavar="PRECISIONS",
        help=f"measure these as well: {', '.join(PRECISIONS)}",
    )
    parser.set_defaults(run=run)


def _some_of(names: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        chosen = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in chosen if name not in names]
        if unknown or not chosen:
            what = repr(unknown[0]) if unknown else "an empty list"
            raise argparse.ArgumentTypeError(f"{what} is none of {', '.join(names)}")
        return [name for name in names if name in chosen]

    return parse


def run(arguments: argparse.Namespace) -> int:
    """Measure, then show what was measured; Ctrl-C shows what is done so far."""
    rows: list[Row] = []
    try:
        _measure(arguments, rows)
    except KeyboardInterrupt:
        print(f"\nstopped; done: {counted(len(rows), 'row')}", file=sys.stderr)
        return 130
    finally:
        _show(arguments, rows)
    return 0


def _measure(arguments: argparse.Namespace, rows: list[Row]) -> None:
    """Append rows as they are measured: forktree's in each precision asked for, then the others'."""
    cases = arguments.only or list(CASES)
    peers = _peers_here(arguments)
    for precision in _precisions(arguments):
        _measure_own(argparse.Namespace(**{**vars(arguments), "quantize": precision}), cases, rows)
    for peer, python in peers:
        _tell_file(f"measuring {peer.name}")
        with stderr_console().status(f"measuring {peer.name}"):
            rows += _peer_rows(peer, python, cases, arguments)


def _precisions(arguments: argparse.Namespace) -> list[str]:
    return list(dict.fromkeys([arguments.quantize, *(arguments.also or [])]))


def _engine_name(precision: str) -> str:
    return "forktree" if precision == "auto" else f"forktree {precision}"


def _measure_own(arguments: argparse.Namespace, cases: list[str], rows: list[Row]) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from forktree.benchmarks.harness import Bench

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    reps, warmup = (1, 0) if arguments.quick else (arguments.reps, 1)
    _tell_file(f"{_engine_name(arguments.quantize)}: loading the model")
    with local_model(arguments) as local, Progress(*columns, console=stderr_console()) as progress:
        task = progress.add_task("bench", total=len(cases))
        engine = _engine_name(arguments.quantize)
        bench = Bench(engine, reps=reps, warmup=warmup, budget_s=40.0, on_row=rows.append)
        for case in cases:
            progress.update(task, description=case)
            _tell_file(f"{engine}: measuring {case}")
            try:
                _run_case(case, bench, local, quick=arguments.quick)
            except ImportError as error:
                print(f"{case} is left out: {error}; `pip install 'forktree[bench]'`", file=sys.stderr)
            progress.advance(task)


def _tell_file(line: str) -> None:
    """Say what goes on where stderr is no terminal, which shows no bar."""
    if not sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def _run_case(case: str, bench: Bench, local: ft.Local, *, quick: bool) -> None:
    from forktree.benchmarks import kinds
    from forktree.benchmarks import run as workloads

    if case in WORKLOADS:
        workloads.WORKLOADS[case](bench, local)
    elif case == "batching":
        kinds.run_batching(bench, local, num_requests=16 if quick else 32)
    else:
        kinds.run_kind(case, bench, local, num_rows=4 if quick else 8)


def _names_of(peer: str) -> tuple[str, str]:
    """The option and the environment variable that name an engine's interpreter; nothing heavy is imported for it."""
    name = peer.replace(".", "-")
    return f"--{name}-python", f"FORKTREE_{name.upper().replace('-', '_')}_PYTHON"


def _peers_here(arguments: argparse.Namespace) -> list[tuple[Peer, str]]:
    """The engines asked for, each with its interpreter; what is not installed is said and left out."""
    from forktree.benchmarks.peers import PEERS as known

    found = []
    for peer in (known[name] for name in arguments.against or []):
        python = peer.python(getattr(arguments, peer.option.strip("-").replace("-", "_")))
        if peer.is_installed(python):
            found.append((peer, python))
        else:
            print(peer.missing(python), file=sys.stderr)
    return found


def _peer_rows(peer: Peer, python: str, cases: list[str], arguments: argparse.Namespace) -> list[Row]:
    from forktree.benchmarks.peers import run_peer

    options = ["--quick"] if arguments.quick else ["--reps", str(arguments.reps)]
    outcome = run_peer(peer, cases, options, python=python, timeout_s=arguments.peer_timeout)
    if outcome.trouble is not None:
        print(outcome.trouble, file=sys.stderr)
    return outcome.rows


def _show(arguments: argparse.Namespace, rows: list[Row]) -> None:
    if not rows:
        return
    from forktree.benchmarks import charts, harness

    console = stdout_console()
    console.print(_table(rows))
    for line in charts.bars(rows):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for own, rival, ratio in charts.ratios(rows, {_engine_name(precision) for precision in _precisions(arguments)}):
        console.print(f"{own.case}: {own.engine} is {ratio:.2f} times {rival.engine}", markup=False, highlight=False)
    harness.write_json(arguments.json, rows)
    if arguments.plot is not None:
        try:
            charts.draw(rows, arguments.plot)
        except ImportError as error:
            print(f"no picture: {error}; `pip install 'forktree[bench]'`", file=sys.stderr)


def _table(rows: list[Row]) -> Any:
    from rich.box import SIMPLE
    from rich.table import Table

    from forktree.benchmarks.charts import by_case

    is_disturbed = any(row.is_disturbed for row in rows)
    table = Table(box=SIMPLE, caption="* other work took more than 0.15 of a core" if is_disturbed else None)
    for column, justify in COLUMNS:
        table.add_column(column, justify=justify, no_wrap=True)
    table.add_column("")
    for row in (row for group in by_case(rows).values() for row in group):
        tokens = f"{row.tokens_per_s:.1f}" if row.num_tokens else ""
        seconds = f"{row.median:.2f}{'*' if row.is_disturbed else ' '}"
        table.add_row(row.case, row.engine, seconds, f"{row.units_per_s:.3g}", tokens, _remark(row))
    return table


def _remark(row: Row) -> str:
    notes = row.notes
    said = [f"hit {notes['hit']}, best {notes['best']}"] if "hit" in notes else []
    said += [f"{notes['valid_pct']}% valid"] if "valid_pct" in notes else []
    said += [f"{notes['part']}"] if "part" in notes else []
    return "; ".join(said)
