"""`forktree explain`: what a program and its rows would ask for, before anything runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import forktree as ft
from forktree.commands.console import add_command, add_model_options, local_model
from forktree.commands.programs import add_program_options, check_arguments, load_program, parse_arguments, read_rows

EXAMPLE = """\
  forktree explain qa.py:answer --rows questions.jsonl
  forktree explain qa.py --arg question="Who wrote Emma?" --price-input 0.15 --price-output 0.60"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "explain", "show what a program would compute, before it runs", EXAMPLE)
    add_program_options(parser)
    parser.add_argument("--rows", type=Path, metavar="FILE.jsonl", help="one JSON object of arguments a line")
    parser.add_argument("--price-input", type=float, metavar="P", help="price of a million prompt tokens")
    parser.add_argument("--price-output", type=float, metavar="P", help="price of a million generated tokens")
    parser.add_argument(
        "--price-cached", type=float, metavar="P", help="price of a million prompt tokens that are cached"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    program = load_program(arguments.program)
    given = parse_arguments(program, arguments.arg)
    if arguments.rows is None:
        check_arguments(program, given)
    rows = [given] if arguments.rows is None else [given | row for row in read_rows(arguments.rows)]
    prices = None
    if arguments.price_input is not None or arguments.price_output is not None:
        prices = ft.Prices(arguments.price_input or 0.0, arguments.price_output or 0.0, arguments.price_cached)
    with local_model(arguments) as local:
        plan = program.explain(rows, backend=local, prices=prices)
    print(json.dumps(plan.to_dict(), ensure_ascii=False, indent=1) if arguments.json else plan)
    return 0
