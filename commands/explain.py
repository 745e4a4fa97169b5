"""`forktree explain`: what a program and its rows would ask for, before anything runs."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import forktree as ft
from forktree.commands.console import add_command, add_model_options, local_model
from forktree.commands.programs import (
    UsageError,
    add_program_options,
    load_program,
    parse_arguments,
    whole_arguments,
)
from forktree.commands.rows import add_rows_option, read_rows

EXAMPLE = """\
  forktree explain qa.py:answer --rows questions.jsonl
  forktree explain qa.py --arg question="Who wrote Emma?" --price-input 0.15 --price-output 0.60"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "explain", "show what a program would compute, before it runs", EXAMPLE)
    add_program_options(parser)
    add_rows_option(parser)
    parser.add_argument("--price-input", type=_price, metavar="P", help="price of a million prompt tokens")
    parser.add_argument("--price-output", type=_price, metavar="P", help="price of a million generated tokens")
    parser.add_argument(
        "--price-cached", type=_price, metavar="P", help="price of a million prompt tokens that are cached"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_model_options(parser)
    parser.set_defaults(run=run)


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, not {text!r}")
    return price


def run(arguments: argparse.Namespace) -> int:
    program = load_program(arguments.program)
    if arguments.rows is None:
        rows = [whole_arguments(program, arguments.arg)]
    else:
        rows = read_rows(program, arguments.rows, parse_arguments(program, arguments.arg))
    prices = _prices(arguments)
    with local_model(arguments) as local:
        plan = program.explain(rows, backend=local, prices=prices)
    print(json.dumps(plan.to_dict(), ensure_ascii=False, indent=1) if arguments.json else str(plan).rstrip())
    return 0


def _prices(arguments: argparse.Namespace) -> ft.Prices | None:
    """Raises UsageError: a price of cached tokens alone says nothing of the others."""
    if arguments.price_input is None and arguments.price_output is None:
        if arguments.price_cached is not None:
            raise UsageError("--price-cached goes with --price-input, the price of what is not cached")
        return None
    return ft.Prices(arguments.price_input or 0.0, arguments.price_output or 0.0, arguments.price_cached)
