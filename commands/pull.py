"""`forktree pull`: bring a model into the cache."""

from __future__ import annotations

import argparse
from typing import Any

from forktree.commands.console import add_command, fetch


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "pull", "bring a model into the cache", "  forktree pull smollm2-135m")
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from forktree.backend.model.store import resolve_model

    fetch(arguments.model)
    print(resolve_model(arguments.model))
    return 0
