"""What the commands share: consoles, the model's progress bar, and how a local model is chosen."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forktree as ft

if TYPE_CHECKING:
    from rich.console import Console


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


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
        choices=("auto", "none", "fp16", "int8", "mixed", "q4"),
        help="precision of the linear layers (default: %(default)s)",
    )


def stderr_console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def stdout_console() -> Console:
    from rich.console import Console

    return Console()


def fetch(model: str) -> None:
    """Bring the model into the cache; a progress bar on stderr appears if there is work to do."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from forktree.backend.model.store import resolve_model

    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=stderr_console(), transient=True
    )
    task = progress.add_task(model, total=None)

    def report(what: str, done: int, total: int) -> None:
        progress.start()
        progress.update(task, description=what, completed=done, total=total or None)

    try:
        resolve_model(model, report=report)
    finally:
        if progress.live.is_started:
            progress.stop()


def positive(text: str) -> int:
    """An argument that is a count of at least 1."""
    number = int(text) if text.lstrip("-").isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return number


def num_bytes(text: str) -> int:
    """An argument that is a size: a number with K, M or G behind it, or nothing."""
    number, unit = (text[:-1], text[-1].upper()) if text and text[-1].isalpha() else (text, "")
    if unit not in _UNITS or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of bytes such as 500M or 2G, not {text!r}")
    return int(number) * _UNITS[unit]


def output_file(text: str) -> Path:
    """An argument that is a file to write: its folder is there, before the work begins."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; name a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r} to write {path.name!r} in")
    return path


@contextlib.contextmanager
def local_model(arguments: argparse.Namespace, **options: Any) -> Iterator[ft.Local]:
    """The local backend that the options ask for, in use and loaded; closed at the end.

    Args:
        options: more arguments of `Local`.
    """
    fetch(arguments.model)
    with ft.Local(arguments.model, quantize=arguments.quantize, **options) as local:
        with stderr_console().status("loading the model"):
            local.load()
        ft.use(local)
        yield local
