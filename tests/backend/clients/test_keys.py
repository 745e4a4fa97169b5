"""A key goes to its own service and nowhere else."""

from __future__ import annotations

import http.server
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import forktree as ft


@contextmanager
def answering(status: int, headers: dict[str, str]) -> Iterator[tuple[str, list[str | None]]]:
    """A service that answers everything alike; its address, and the keys that it was sent."""
    keys: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            keys.append(self.headers.get("authorization"))
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", keys
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirection_is_not_followed_with_the_key(status: int, ask: Any) -> None:
    with answering(200, {}) as (elsewhere, theirs), answering(status, {"location": elsewhere}) as (url, seen):
        with (
            ft.OpenAI("m", url, "secret", dialect="openai") as backend,
            pytest.raises(ft.BackendError, match=str(status)),
        ):
            ask.run(backend=backend)
        assert seen == ["Bearer secret"]
        assert theirs == []


def test_no_log_and_no_error_of_a_client_has_its_key(ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    with answering(401, {}) as (url, _), ft.OpenAI("m", url, "secret", dialect="openai") as backend:
        with caplog.at_level(logging.DEBUG), pytest.raises(ft.AuthenticationError) as caught:
            ask.run(backend=backend)
        assert "secret" not in f"{caplog.text}{caught.value!r}{backend!r}{backend.identity!r}"
