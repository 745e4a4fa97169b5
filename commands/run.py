"""`forktree run`: run the program of a file, once or over rows."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import forktree as ft
from forktree.commands.backends import add_backend_option, chosen_backend
from forktree.commands.console import add_command, add_model_options, positive
from forktree.commands.programs import add_program_options, check_arguments, load_program, parse_arguments, read_rows

EXAMPLE = """\
  forktree run qa.py --arg question="Who wrote Emma?"
  forktree run qa.py:answer --rows questions.jsonl > answers.jsonl
  forktree run qa.py --arg question="Who wrote Emma?" --backend record:emma.jsonl
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "run", "run the program of a file, once or over rows", EXAMPLE.rstrip())
    add_program_options(parser)
    parser.add_argument("--rows", type=Path, metavar="FILE.jsonl", help="one JSON object of arguments a line")
    parser.add_argument("--concurrency", type=positive, help="most rows at once")
    add_backend_option(parser)
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    program = load_program(arguments.program)
    given = parse_arguments(program, arguments.arg)
    if arguments.rows is None:
        check_arguments(program, given)
        with chosen_backend(arguments):
            return _run_once(program, given)
    rows = [given | row for row in read_rows(arguments.rows)]
    with chosen_backend(arguments):
        return _run_rows(program, rows, arguments.concurrency)


def _run_once(program: ft.Function, given: dict[str, Any]) -> int:
    state = program.run(**given)
    print(state.text())
    print(_json({"variables": state.variables(), "value": state.ret_value}), file=sys.stderr)
    return 0


def _run_rows(program: ft.Function, rows: list[dict[str, Any]], concurrency: int | None) -> int:
    num_failed = 0
    for result in program.imap(rows, concurrency=concurrency, progress=sys.stderr.isatty()):
        if result.ok:
            print(_json({"index": result.index, "variables": result.state.variables(), "value": result.value}))
        else:
            num_failed += 1
            print(_json({"index": result.index, "error": f"{type(result.error).__name__}: {result.error}"}))
    if num_failed:
        print(f"{num_failed} of {len(rows)} rows failed", file=sys.stderr)
    return 1 if num_failed else 0


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON has no form for: models as objects, the rest as text."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)
