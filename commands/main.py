"""`forktree COMMAND …`: parse, run, and turn errors into messages and exit codes.

0    done
1    the program, the model or the backend failed; the message says why
2    the command line is wrong; the message says what would be right
130  stopped with Ctrl-C
141  the reader of the output went away, as `head` does
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

import forktree
from forktree.commands import bench, cache, chat, demo, explain, pull, run, serve, show
from forktree.commands.programs import UsageError
from forktree.lang.errors import ForktreeError

COMMANDS = (demo, run, explain, show, chat, serve, pull, cache, bench)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left has nowhere to go, at exit too
        return 141
    except UsageError as error:
        print(f"forktree: {error}", file=sys.stderr)
        return 2
    except ForktreeError as error:
        print(f"forktree: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        print(_users_traceback(error), end="", file=sys.stderr)
        return 1
    return code


def _users_traceback(error: Exception) -> str:
    """The traceback from the user's own file on: what lies above it is ours and says nothing."""
    root = os.path.dirname(forktree.__file__)
    ours = tuple(os.path.join(root, folder, "") for folder in ("backend", "commands", "lang", "runtime"))
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((*ours, "<frozen importlib")):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


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
