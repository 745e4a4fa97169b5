"""What the commands share: consoles, the model's progress bar, and how a local model is chosen."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import forktree as ft

if TYPE_CHECKING:
    from rich.console import Console


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help whose example keeps its lines."""


def add_command(commands: Any, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    """A command's parser, with its example under the options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n{example}",
        formatter_class=Formatter,
    )
    return parser


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default="smollm2-135m",
        help="a built-in name, a folder, a GGUF file or a hub id (default: %(default)s)",
    )
    parser.add_argument(
        "--quantize",
        default="auto",
        choices=("auto", "none", "fp16"),
        help="precision of the linear layers (default: %(default)s)",
    )


def stderr_console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def stdout_console() -> Console:
    from rich.console import Console

    return Console()


def fetch(model: str) -> None:
    """Bring the model into the cache, with a progress bar on stderr if there is work to do."""
    from forktree.backend.model.store import is_resolved, resolve_model

    if is_resolved(model):
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True) as progress:
        task = progress.add_task(f"looking for {model}", total=None)

        def report(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total or None)

        resolve_model(model, report=report)


@contextlib.contextmanager
def local_model(arguments: argparse.Namespace) -> Iterator[ft.Local]:
    """The local backend that the options ask for, in use and loaded; closed at the end."""
    fetch(arguments.model)
    with ft.Local(arguments.model, quantize=arguments.quantize) as local:
        with stderr_console().status("loading the model"):
            local.load()
        ft.use(local)
        yield local
