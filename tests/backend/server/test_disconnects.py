"""A client that goes away takes its work with it: the engine ends it and frees its pages."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from real_parts import assert_idle, let_cancelled_work_end

from forktree.backend.local import Local

LONG = {
    "model": "wild",
    "messages": [{"role": "user", "content": "Go on for ever."}],
    "max_tokens": 400,
    "ignore_eos": True,
    "n": 3,
}


def connect(url: str, body: dict[str, Any], path: str = "/v1/chat/completions") -> socket.socket:
    """A request on a connection of its own."""
    parts = urlsplit(url)
    data = json.dumps(body).encode()
    connection = socket.create_connection((parts.hostname, parts.port), timeout=60)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def wait_until_running(local: Local, count: int) -> None:
    for _ in range(100_000):
        if local.stats().num_running >= count:
            return
    raise AssertionError("it never ran")


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_early_ends_the_work(wild_url: str, wild_local: Local, stream: bool) -> None:
    before = wild_local.stats().decode_tokens
    connection = connect(wild_url, {**LONG, "stream": stream})
    if stream:
        received = b""
        while received.count(b'"content"') < 5:
            received += connection.recv(4096)
    else:
        wait_until_running(wild_local, 3)
    connection.close()
    let_cancelled_work_end(wild_local)
    assert_idle(wild_local)
    assert wild_local.stats().decode_tokens - before < 3 * 400


def num_answered(url: str) -> float:
    """Requests of chat that the server is done with."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    ours = [line for line in lines if "http_responses_total{" in line and 'route="/v1/chat/completions"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in ours)


def test_leaving_at_once_leaves_nothing_behind(wild_url: str, wild_local: Local) -> None:
    before = num_answered(wild_url)
    for _ in range(5):
        connect(wild_url, {**LONG, "stream": True}).close()
    while num_answered(wild_url) < before + 5:  # a connection may be closed before its request is read
        pass
    let_cancelled_work_end(wild_local)
    assert_idle(wild_local)


def test_so_it_is_where_nothing_is_generated(wild_url: str, wild_local: Local) -> None:
    before = wild_local.stats().prefill_tokens
    body = {"model": "wild", "input": [[number] * 500 for number in range(3, 300)], "pooling": "mean"}
    connection = connect(wild_url, body, "/v1/embeddings")
    wait_until_running(wild_local, 1)
    connection.close()
    let_cancelled_work_end(wild_local)
    assert_idle(wild_local)
    assert wild_local.stats().prefill_tokens - before < 297 * 500
