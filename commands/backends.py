"""Which backend a command runs on: the local model, a recording, or a service by its name."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

import forktree as ft
from forktree.commands.console import local_model

_NAMED = ("record", "replay", "openai", "anthropic", "http", "https")
_KINDS = "local, record:FILE, replay:FILE, openai:MODEL, anthropic:MODEL or the http:// address of a server"


def add_backend_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", type=_checked, default="local", metavar="B", help=f"{_KINDS} (default: %(default)s)"
    )


def _checked(text: str) -> str:
    kind, _, rest = text.partition(":")
    if text != "local" and (kind not in _NAMED or not rest):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {_KINDS}")
    return text


@contextlib.contextmanager
def chosen_backend(arguments: argparse.Namespace) -> Iterator[Any]:
    """The backend that the options ask for, in use; closed at the end.

    Raises:
        UnsupportedError: it is not built yet.
    """
    kind, _, rest = arguments.backend.partition(":")
    match kind:
        case "local":
            with local_model(arguments) as local:
                yield local
        case "record":
            with local_model(arguments) as local, ft.Replay(rest, local) as recording:
                yield _used(recording)
        case "replay":
            with ft.Replay(rest) as replay:
                yield _used(replay)
        case "openai":
            yield _used(ft.OpenAI(rest))
        case "anthropic":
            yield _used(ft.Anthropic(rest))
        case _:
            yield _used(ft.Remote(arguments.backend))


def _used(backend: Any) -> Any:
    ft.use(backend)
    return backend
