"""`forktree serve`: the engine behind HTTP, for clients that speak OpenAI's protocol."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forktree as ft
from forktree.commands.console import add_command, add_model_options, local_model, num_bytes, positive
from forktree.commands.programs import UsageError
from forktree.commands.traces import tracer_provider

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

    from forktree.backend.server.settings import Settings

EXAMPLE = """\
  forktree serve
  forktree serve --model ./my-model --served-name my-model --port 9000
  FORKTREE_API_KEY=secret forktree serve --host 0.0.0.0"""

KEY_VARIABLE = "FORKTREE_API_KEY"
_GRACE_S = 5  # after the drain time, for the last events to go out


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "serve", "answer requests over HTTP, as OpenAI's service does", EXAMPLE)
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="the same as --model")
    add_model_options(parser)
    parser.add_argument(
        "--kv-tokens", type=positive, metavar="N", help="tokens of the KV pool (default: by free memory)"
    )
    parser.add_argument(
        "--cache-dir", metavar="PATH", help="a folder in which computed prompts outlive the server (docs/cache.md)"
    )
    parser.add_argument(
        "--cache-bytes", type=num_bytes, metavar="SIZE", help="most bytes of --cache-dir, as 500M or 20G (default: 8G)"
    )
    parser.add_argument(
        "--host-bytes", type=num_bytes, metavar="SIZE", help="memory for prompts that leave the pool, as 4G"
    )
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
    parser.add_argument("--api-key-file", metavar="PATH", help="a file with more keys, one a line")
    parser.add_argument("--rpm", type=float, metavar="N", help="most requests a minute of one key")
    parser.add_argument("--total-rpm", type=float, metavar="N", help="most requests a minute of all keys together")
    parser.add_argument(
        "--max-waiting",
        type=int,
        default=1024,
        metavar="N",
        help="most requests that wait; more get a 429 (default: %(default)s)",
    )
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds that an answer may take")
    parser.add_argument(
        "--share-cache", action="store_true", help="keys share cached prompts; without it each has its own"
    )
    parser.add_argument(
        "--cors-origin",
        action="append",
        metavar="ORIGIN",
        help="pages of this origin may ask, those of others are refused; may be given several times",
    )
    parser.add_argument("--tls-cert", metavar="PATH", help="certificate, with its chain, as PEM: serve https")
    parser.add_argument("--tls-key", metavar="PATH", help="the certificate's key, as PEM")
    parser.add_argument(
        "--traces", action="store_true", help="send OpenTelemetry spans to the collector of OTEL_EXPORTER_OTLP_ENDPOINT"
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
    tls = _tls(arguments)
    settings = _settings(arguments)
    options = _local_options(arguments)
    from forktree.backend.server.app import build

    traces = tracer_provider() if arguments.traces else None
    with _listening(arguments.host, arguments.port) as listener, local_model(arguments, **options) as local:
        try:
            asyncio.run(_serve(build(local, settings, version=ft.__version__, traces=traces), listener, arguments, tls))
        finally:
            if traces is not None:
                traces.shutdown()  # sends what is left
    return 0


def _local_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UsageError: there is nothing for a size to limit, or it is 0."""
    if arguments.cache_bytes is not None and arguments.cache_dir is None:
        raise UsageError("--cache-bytes goes with --cache-dir")
    for name in ("cache_bytes", "host_bytes"):
        if getattr(arguments, name) == 0:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1; leave it out instead")
    if (
        arguments.cache_dir is not None
        and Path(arguments.cache_dir).exists()
        and not Path(arguments.cache_dir).is_dir()
    ):
        raise UsageError(f"--cache-dir must be a folder, and {arguments.cache_dir} is none")
    return {name: getattr(arguments, name) for name in ("kv_tokens", "cache_dir", "cache_bytes", "host_bytes")}


def _settings(arguments: argparse.Namespace) -> Settings:
    """Raises UsageError: a value is out of range."""
    from forktree.backend.server.settings import Settings

    keys = _keys(arguments)
    names = arguments.served_name or [_short_name(arguments.model)]
    for flag, value in (
        ("--rpm", arguments.rpm),
        ("--total-rpm", arguments.total_rpm),
        ("--timeout", arguments.timeout),
    ):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{flag} must be more than 0, not {value:g}; leave it out for no limit")
    if arguments.max_waiting < 0:
        raise UsageError(f"--max-waiting must be at least 0, not {arguments.max_waiting}")
    for flag, texts in (("--served-name", names), ("--api-key", keys)):
        if not all(texts):
            raise UsageError(f"{flag} must not be empty")
    return Settings(
        model_names=tuple(names),
        api_keys=frozenset(keys),
        requests_per_minute=arguments.rpm,
        total_requests_per_minute=arguments.total_rpm,
        max_waiting=arguments.max_waiting,
        timeout_s=arguments.timeout,
        shares_cache=arguments.share_cache,
        cors_origins=tuple(arguments.cors_origin or ()),
    )


def _keys(arguments: argparse.Namespace) -> list[str]:
    """Raises UsageError: the file of keys cannot be read, or has none."""
    keys = list(arguments.api_key or ())
    if arguments.api_key_file is not None:
        try:
            lines = Path(arguments.api_key_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the keys in {arguments.api_key_file}: {error}") from None
        found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not found:
            raise UsageError(f"{arguments.api_key_file} has no keys; without the option the server takes everyone")
        keys += found
    own_key = os.environ.get(KEY_VARIABLE)
    return keys or ([own_key] if own_key else [])


def _tls(arguments: argparse.Namespace) -> dict[str, str]:
    """Raises UsageError: one of the two files is not named, or cannot be used."""
    if arguments.tls_cert is None and arguments.tls_key is None:
        return {}
    if arguments.tls_cert is None or arguments.tls_key is None:
        raise UsageError("--tls-cert and --tls-key go together")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(arguments.tls_cert, arguments.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cannot use --tls-cert and --tls-key: {error}") from None
    return {"ssl_certfile": arguments.tls_cert, "ssl_keyfile": arguments.tls_key}


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


def _warn_if_reachable(host: str) -> None:
    """`host`: what a server without keys listens on, as numbers."""
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        print(f"whoever reaches {host} may use this server: it has no keys (see --api-key-file)", file=sys.stderr)


def _give_up(app: Starlette, why: str) -> None:
    """Answer whatever is not answered yet with an error."""
    from forktree.backend.server.errors import ApiError

    message = f"{why}, before the answer was complete"
    error = ApiError(503, message, type="server_error", code="server_stopping")
    count = app.state.served.give_up(error)
    print(f"{why}: {count} unfinished", file=sys.stderr)


def _ending_quietly(app: Starlette) -> ASGIApp:
    """The application; cancelled while the server stops, as for a client that does not read, it just ends."""

    async def ending(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if not app.state.served.is_draining:
                raise

    return ending


async def _serve(app: Starlette, listener: socket.socket, arguments: argparse.Namespace, tls: dict[str, str]) -> None:
    import uvicorn

    logging.basicConfig(level=arguments.log_level.upper(), format="%(message)s", stream=sys.stderr)
    config = uvicorn.Config(
        _ending_quietly(app),
        log_level=arguments.log_level,
        timeout_graceful_shutdown=arguments.drain + _GRACE_S,
        access_log=False,  # `request_log` has a line for each
        lifespan="off",
        **tls,
    )
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        app.state.served.is_draining = True
        if server.should_exit:  # the second time
            _give_up(app, "the server was told to stop at once")
            server.force_exit = True
        else:
            loop.call_later(
                arguments.drain, _give_up, app, f"the server stops, and its --drain of {arguments.drain} s is over"
            )
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    scheme = "https" if tls else "http"
    host, port = listener.getsockname()[:2]
    if not app.state.served.settings.api_keys:
        _warn_if_reachable(host)
    shown = f"[{host}]" if ":" in host else host
    listener.listen(2048)  # so that what is printed is true: a client may connect from now on
    print(
        f"forktree serves {', '.join(app.state.served.settings.model_names)} on {scheme}://{shown}:{port}/v1",
        flush=True,
    )
    await server._serve([listener])
    if server.force_exit:
        print("stopped before all requests were answered", file=sys.stderr)
