"""`forktree COMMAND …`: parse, run, and turn errors into messages and exit codes.

0    done
1    the program, the model or the backend failed; the message says why
2    the command line is wrong; the message says what would be right
130  stopped with Ctrl-C
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import forktree
from forktree.commands import chat, demo, explain, pull, run, show
from forktree.lang.errors import ForktreeError

COMMANDS = (demo, run, explain, show, chat, pull)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except ForktreeError as error:
        print(f"forktree: {error}", file=sys.stderr)
        return 1
    return code


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forktree",
        description="Structured programs on language models: gen, select and fork, run as one tree.",
        epilog="`forktree COMMAND --help` has an example for each command.",
    )
    parser.add_argument("--version", action="version", version=f"forktree {forktree.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser
