"""`forktree run`: run the program of a file, once or over rows.

Results go to stdout as JSON, one object a line; what is for a person's eyes goes to stderr, and only to a terminal.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import forktree as ft
from forktree.commands.backends import add_backend_option, chosen_backend
from forktree.commands.console import add_command, add_model_options, positive
from forktree.commands.programs import (
    UsageError,
    add_program_options,
    load_program,
    parse_arguments,
    whole_arguments,
)
from forktree.commands.rows import add_rows_option, read_rows
from forktree.commands.transcript import show_transcript
from forktree.runtime.plan import counted

EXAMPLE = """\
  forktree run qa.py --arg question="Who wrote Emma?" > answer.json
  forktree run qa.py --arg question="Who wrote Emma?" --text
  forktree run qa.py:answer --rows questions.jsonl > answers.jsonl
  forktree run qa.py --arg question="Who wrote Emma?" --backend record:emma.jsonl

output:
  stdout: one line of JSON with the "variables" and the "value" returned; with --rows one line a row, with its "index",
          or its "error". With --text, the turns under their roles instead.
  stderr: of one run the turns too, where it is a terminal; of rows a progress bar there, and how many failed.
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "run", "run the program of a file, once or over rows", EXAMPLE.rstrip())
    add_program_options(parser)
    add_rows_option(parser)
    parser.add_argument("--text", action="store_true", help="print the turns of one run in place of JSON")
    parser.add_argument("--concurrency", type=positive, metavar="N", help="most rows at once")
    add_backend_option(parser)
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.text and arguments.rows is not None:
        raise UsageError("--text shows one run; --rows gives JSON, one line a row")
    if arguments.concurrency is not None and arguments.rows is None:
        raise UsageError("--concurrency is for --rows, and this is one run")
    program = load_program(arguments.program)
    if arguments.rows is None:
        given = whole_arguments(program, arguments.arg)
        with chosen_backend(arguments):
            return _run_once(program, given, as_text=arguments.text)
    rows = read_rows(program, arguments.rows, parse_arguments(program, arguments.arg))
    with chosen_backend(arguments):
        return _run_rows(program, rows, arguments.concurrency)


def _run_once(program: ft.Function, given: dict[str, Any], *, as_text: bool) -> int:
    state = program.run(**given)
    if as_text:
        show_transcript(state, sys.stdout)
        return 0
    if sys.stderr.isatty():
        show_transcript(state, sys.stderr)
        print(file=sys.stderr)
    print(_json({"variables": state.variables(), "value": state.ret_value}))
    return 0


def _run_rows(program: ft.Function, rows: list[dict[str, Any]], concurrency: int | None) -> int:
    num_failed = 0
    for result in program.imap(rows, concurrency=concurrency, progress=sys.stderr.isatty()):
        if result.ok:
            print(
                _json({"index": result.index, "variables": result.state.variables(), "value": result.value}), flush=True
            )
        else:
            num_failed += 1
            print(_json({"index": result.index, "error": f"{type(result.error).__name__}: {result.error}"}), flush=True)
    if num_failed:
        print(f"{num_failed} of {counted(len(rows), 'row')} failed", file=sys.stderr)
    return 1 if num_failed else 0


def _json(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """A value as JSON has it: models and dataclasses are objects, an enum's member is its value, NaN and the infinities
    are null, keys are text, and what JSON has no form for is text too."""
    match value:
        case enum.Enum():
            return plain(value.value)
        case None | str() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {_key(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return str(value)


def _key(key: Any) -> str:
    """The text that JSON writes for a number, a truth value or none, and `str` for the rest."""
    shown = plain(key)
    return shown if isinstance(shown, str) else json.dumps(shown) if not isinstance(shown, list | dict) else str(key)
