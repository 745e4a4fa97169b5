"""A server for the lessons: `forktree serve` in a process of its own, on a free port of this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator


@contextlib.contextmanager
def served(key: str, *options: str) -> Iterator[str]:
    """Its address, as `http://127.0.0.1:PORT`. It calls the built-in model `smol` and takes one key.

    Args:
        options: further ones of `forktree serve`.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "forktree", "serve", "--port", str(port), "--served-name", "smol", *options]
    environment = {**os.environ, "FORKTREE_API_KEY": key}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        while not _is_ready(url):  # it loads the model first
            if server.poll() is not None:
                raise SystemExit("the server ended at once; run `forktree serve` to see why")
            time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait()


def _is_ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/ready") as answer:
        return answer.status == 200
    return False
