"""`forktree serve`: the engine behind HTTP, for clients that speak OpenAI's protocol."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forktree as ft
from forktree.commands.console import add_command, add_model_options, local_model, positive
from forktree.commands.programs import UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette

EXAMPLE = """\
  forktree serve
  forktree serve --model ./my-model --served-name my-model --port 9000
  FORKTREE_API_KEY=secret forktree serve --host 0.0.0.0"""

KEY_VARIABLE = "FORKTREE_API_KEY"


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "serve", "answer requests over HTTP, as OpenAI's service does", EXAMPLE)
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="the same as --model")
    add_model_options(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=8000, help="0 takes a free one (default: %(default)s)")
    parser.add_argument(
        "--served-name",
        action="append",
        metavar="NAME",
        help="what requests call the model; may be given several times",
    )
    parser.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help=f"a key that requests have to bring; may be given several times (default: ${KEY_VARIABLE}, if it is set)",
    )
    parser.add_argument(
        "--drain", type=positive, default=30, metavar="S", help="seconds to finish what runs (default: %(default)s)"
    )
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error"), help="(default: %(default)s)"
    )
    parser.set_defaults(run=run)


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, not {text!r}")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM, then finish what runs; a second one does not wait.

    Raises UsageError: the address cannot be listened on, or what is needed is not installed.
    """
    try:
        import starlette
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; `pip install 'forktree[server]'`") from None
    del starlette
    if arguments.model_argument is not None:
        arguments.model = arguments.model_argument
    with _listening(arguments.host, arguments.port) as listener, local_model(arguments) as local:
        asyncio.run(_serve(_app(local, arguments), listener, arguments))
    return 0


def _app(local: ft.Local, arguments: argparse.Namespace) -> Starlette:
    from forktree.backend.server.app import build
    from forktree.backend.server.settings import Settings

    own_key = os.environ.get(KEY_VARIABLE)
    keys = arguments.api_key or ([own_key] if own_key else [])
    names = arguments.served_name or [_short_name(arguments.model)]
    try:
        settings = Settings(model_names=tuple(names), api_keys=frozenset(keys))
    except ValueError as error:
        raise UsageError(str(error)) from None
    return build(local, settings, version=ft.__version__)


def _short_name(model: str) -> str:
    """A model's name in requests: a folder's or file's own name."""
    path = Path(model)
    return path.resolve().stem if path.is_file() else path.resolve().name if path.is_dir() else model


def _listening(host: str, port: int) -> socket.socket:
    """A socket to listen on, bound before the model loads. Raises UsageError: the address is none, or taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"cannot listen on {host!r}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from None
    return listener


async def _serve(app: Starlette, listener: socket.socket, arguments: argparse.Namespace) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level=arguments.log_level,
        timeout_graceful_shutdown=arguments.drain,
        access_log=arguments.log_level in ("debug", "info"),
        lifespan="off",
    )
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        app.state.served.is_draining = True
        server.force_exit = server.should_exit  # the second time
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"forktree serves {', '.join(app.state.served.settings.model_names)} on http://{shown}:{port}/v1", flush=True)
    await server._serve([listener])
    if server.force_exit:
        print("stopped before all requests were answered", file=sys.stderr)
