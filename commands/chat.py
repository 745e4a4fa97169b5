"""`forktree chat`: talk to a model; every turn continues the same state, so nothing is computed twice."""

from __future__ import annotations

import argparse
import io
import sys
from typing import Any

import forktree as ft
from forktree.commands.console import add_command, add_model_options, local_model, positive, stdout_console


def add_parser(commands: Any) -> None:
    example = '  forktree chat --system "You answer in one sentence."\n  echo "What is a radix tree?" | forktree chat'
    parser = add_command(commands, "chat", "talk to a model", example)
    add_model_options(parser)
    parser.add_argument("--system", help="the system turn")
    parser.add_argument("--max-tokens", type=positive, default=512, help="most tokens an answer (default: %(default)s)")
    parser.add_argument("--temperature", type=float, help="0 is greedy (default: the model's own)")
    parser.add_argument("--seed", type=int, help="makes the answers repeatable")
    parser.set_defaults(run=run)


@ft.function
def conversation(s: ft.State, system: str | None, limits: dict[str, Any]) -> None:
    """Read questions until the input ends, and print each answer as it is made."""
    console = stdout_console()
    if system:
        s += ft.system(system)
    for turn, question in enumerate(iter(_ask, None)):
        s += ft.user(question)
        s += ft.assistant(ft.gen(f"answer{turn}", **limits))
        for piece in s.text_iter(f"answer{turn}"):
            console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
        console.print()


def _ask() -> str | None:
    """The next question, or None at the end of the input."""
    if sys.stdin.isatty():
        try:
            line = input("> ")
        except EOFError:
            return None
    else:
        line = sys.stdin.readline()
        if not line:
            return None
    return line.strip() or _ask()


def run(arguments: argparse.Namespace) -> int:
    limits = {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature, "seed": arguments.seed}
    given = {name: value for name, value in limits.items() if value is not None}
    try:
        ft.Sampling(**given)
    except ValueError as error:
        print(f"forktree: {error}", file=sys.stderr)
        return 2
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    with local_model(arguments):
        if sys.stdin.isatty():
            stdout_console().print("Ask; an empty line is skipped, Ctrl-D ends.", style="dim")
        conversation.run(arguments.system, given)
    return 0
