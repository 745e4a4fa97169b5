"""Servers in processes of their own: forktree's, vLLM's and llama.cpp's, each with the built-in model.

Each is started on a free port of this machine, waited for until it answers, and ended with whatever it started. The
others may be installed where forktree is or elsewhere, as in `benchmarks.peers`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forktree.backend.model.store import cache_root, resolve_model
from forktree.benchmarks.peers import PEERS

MODEL = "smollm2-135m"
CONTEXT = 4096
_NUM_TOLD = 2000  # characters of the output of a server that did not start
_EOS = 2


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that answers.

    Attributes:
        url: without a path: `http://127.0.0.1:PORT`.
        model: what it calls its model.
        pid: of its process; what it started are children of it.
        extra: fields that make it go on for as long as `max_tokens` says.
        log: what it has printed.
    """

    name: str
    url: str
    model: str
    pid: int
    extra: Mapping[str, Any] = field(default_factory=dict)
    log: Path | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """How a server of one kind is started.

    Attributes:
        command: from the interpreter and the port.
        environment: what its process needs besides, by the interpreter.
        ready: the path that answers 200 once it serves.
        model: what it calls its model.
        wait_s: longest time until it is ready.
    """

    name: str
    command: Callable[[str, int], Sequence[str]]
    ready: str
    model: str
    environment: Callable[[str], Mapping[str, str]] = lambda python: {}
    extra: Mapping[str, Any] = field(default_factory=lambda: {"ignore_eos": True})
    wait_s: float = 60.0


def forktree(*options: str, model: str = MODEL) -> Kind:
    """`forktree serve` with some options."""

    def command(python: str, port: int) -> Sequence[str]:
        serve = [python, "-m", "forktree", "serve", "--model", model, "--served-name", MODEL]
        return [*serve, "--port", str(port), "--log-level", "error", *options]

    return Kind("forktree", command, "/ready", MODEL)


def vllm() -> Kind:
    """vLLM's own server, in float32, with its prefix cache on."""
    peer = PEERS["vllm"]

    def command(python: str, port: int) -> Sequence[str]:
        serve = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(resolve_model(MODEL))]
        engine = ["--dtype", "float32", "--max-model-len", str(CONTEXT), "--max-num-seqs", "64", "--seed", "0"]
        quiet = ["--disable-log-stats", "--disable-uvicorn-access-log"]
        return [*serve, "--served-model-name", MODEL, "--port", str(port), "--host", "127.0.0.1", *engine, *quiet]

    def environment(python: str) -> Mapping[str, str]:
        return {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "WARNING", **peer.environment(python)}

    return Kind("vllm", command, "/health", MODEL, environment, wait_s=400.0)


def llama_cpp(*options: str) -> Kind:
    """The server of llama-cpp-python, on the model's file as it is shipped. It computes one request at a time.

    Log-probabilities need `--logits_all true`, which makes it slower.
    """

    def command(python: str, port: int) -> Sequence[str]:
        file = cache_root() / "smollm2-135m.Q4_1.gguf"
        serve = [python, "-m", "llama_cpp.server", "--model", str(file), "--model_alias", MODEL]
        cores = str(os.cpu_count() or 1)
        threads = ["--n_threads", cores, "--n_threads_batch", cores, "--interrupt_requests", "false"]
        return [*serve, "--n_ctx", str(CONTEXT), *threads, "--port", str(port), *options]

    bias = {"logit_bias": {str(_EOS): -100.0}}
    return Kind("llama.cpp", command, "/v1/models", MODEL, extra=bias)


def interpreter(kind: Kind, chosen: str | None = None) -> str | None:
    """The interpreter that has this server; None: none has, and `peers.Peer.missing` says what to do."""
    if kind.name not in PEERS:
        return sys.executable
    peer = PEERS[kind.name]
    python = peer.python(chosen)
    return python if peer.is_installed(python) else None


@contextlib.contextmanager
def started(kind: Kind, python: str | None = None) -> Iterator[Serving]:
    """The server, answering; it has ended, and all that it started, when the block is left.

    Raises:
        RuntimeError: it ended, or did not answer in time; with what it printed.
    """
    python = python or sys.executable
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                kind.command(python, port),
                env={**os.environ, **kind.environment(python)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(kind, process, url, log)
            yield Serving(kind.name, url, kind.model, process.pid, kind.extra, log)
        finally:
            _end(process)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait(kind: Kind, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + kind.wait_s
    while not _answers(url + kind.ready):
        if process.poll() is not None:
            raise RuntimeError(f"the server of {kind.name} ended with {process.returncode}:\n{_tail(log)}")
        if time.monotonic() > until:
            raise RuntimeError(f"the server of {kind.name} did not answer within {kind.wait_s:g} s:\n{_tail(log)}")
        time.sleep(0.1)


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5) as answer:
        return answer.status == 200
    return False


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-_NUM_TOLD:]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Politely, then not; its children go with it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.terminate()
        process.wait(15)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
