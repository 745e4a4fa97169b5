"""A server of the real kind, on a free port of this machine, in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn


@contextmanager
def running(app: Any) -> Iterator[str]:
    """Serve an application; gives `http://127.0.0.1:PORT`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=10)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive(), "the server does not stop"


def aborted(url: str, route: str, body: dict[str, Any]) -> httpx.Response:
    """The answer to a request that is aborted by its id, from another connection, once it has begun."""
    answers: list[httpx.Response] = []

    def ask() -> None:
        headers = {"x-request-id": "to-abort"}
        answers.append(httpx.post(f"{url}{route}", json=body, headers=headers, timeout=60))

    thread = threading.Thread(target=ask)
    thread.start()
    while httpx.post(f"{url}/abort", json={"request_id": "to-abort"}).json()["aborted"] == 0:
        assert thread.is_alive()
    thread.join(60)
    return answers[0]
