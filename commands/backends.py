"""Which backend a command runs on: the local model, a recording, or a service by its name."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import forktree as ft
from forktree.commands.console import local_model, output_file
from forktree.commands.programs import UsageError

_NAMED = ("record", "replay", "openai", "anthropic", "http", "https")
_KINDS = "local, record:FILE, replay:FILE, openai:MODEL, anthropic:MODEL, the http:// address of a forktree server"


def add_backend_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", type=_checked, default="local", metavar="B", help=f"{_KINDS} (default: %(default)s)"
    )


def _checked(text: str) -> str:
    kind, _, rest = text.partition(":")
    if text != "local" and (kind not in _NAMED or not rest):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {_KINDS}")
    if kind == "record":
        output_file(rest)
    if kind in ("http", "https") and not _is_address(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no address; write one as http://HOST:PORT")
    return text


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0  # the port is read here, and refused if it is none
    except ValueError:
        return False


@contextlib.contextmanager
def chosen_backend(arguments: argparse.Namespace) -> Iterator[Any]:
    """The backend that the options ask for, in use; closed at the end.

    Raises:
        UsageError: there is no such recording.
        AuthenticationError: the service needs a key, and there is none.
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
            if not Path(rest).is_file():
                raise UsageError(f"{rest} does not exist; record it with --backend record:{rest}")
            with ft.Replay(rest) as replay:
                yield _used(replay)
        case "openai":
            with ft.OpenAI(rest) as service:
                yield _used(service)
        case "anthropic":
            with ft.Anthropic(rest) as service:
                yield _used(service)
        case _:
            with ft.Remote(arguments.backend) as service:
                yield _used(service)


def _used(backend: Any) -> Any:
    ft.use(backend)
    return backend
