"""What holds on every route: keys, unknown models, bodies that are too long, and refusals before a stream starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from forktree.backend.local import Local
from forktree.backend.server.app import FAMILIES, build
from forktree.backend.server.endpoints import Endpoint
from forktree.backend.server.settings import Settings

EVERY = [endpoint for family in FAMILIES for endpoint in family.routes()]
LONG = "long " * 900  # the model's context holds 512 tokens
TURN = {"role": "user", "content": "x"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [TURN]},
    "/v1/completions": {"prompt": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [TURN], "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": [TURN]},
    "/v1/score": {"options": ["a"]},
    "/v1/programs": {"program": {}, "rows": [{}]},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
}


@pytest.fixture(scope="module")
def guarded(wild_local: Local) -> Iterator[TestClient]:
    settings = Settings(model_names=("wild",), api_keys=frozenset(["right"]), max_body_bytes=8000)
    with TestClient(build(wild_local, settings)) as one:
        yield one


def path_of(endpoint: Endpoint) -> str:
    return endpoint.path.replace("{model:path}", "wild")


def error_of(answer: Any) -> dict[str, Any]:
    """Of whichever protocol."""
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert error["message"]
    return error


def test_only_what_monitors_and_machines_read_is_open() -> None:
    assert {endpoint.path for endpoint in EVERY if endpoint.is_open} == {"/health", "/ready", "/metrics"}


@pytest.mark.parametrize("endpoint", [one for one in EVERY if not one.is_open], ids=lambda one: one.path)
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}])
def test_without_a_right_key_nothing_is_done(guarded: TestClient, endpoint: Endpoint, headers: dict[str, str]) -> None:
    answer = guarded.request(endpoint.method, path_of(endpoint), headers=headers)
    assert answer.status_code == 401
    assert error_of(answer)["type"] == "authentication_error"


@pytest.mark.parametrize("path", BODIES)
def test_a_model_that_is_not_served_is_not_found(guarded: TestClient, path: str) -> None:
    answer = guarded.post(path, json={**BODIES[path], "model": "another"}, headers={"x-api-key": "right"})
    assert answer.status_code == 404
    assert "'wild'" in error_of(answer)["message"]


@pytest.mark.parametrize("endpoint", [one for one in EVERY if one.body is not None], ids=lambda one: one.path)
def test_a_body_that_is_too_long_is_not_read(guarded: TestClient, endpoint: Endpoint) -> None:
    answer = guarded.post(endpoint.path, content=b" " * 8001, headers={"x-api-key": "right"})
    assert answer.status_code == 413
    assert "8000 bytes" in error_of(answer)["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "wild", "messages": [{"role": "user", "content": LONG}]}),
        ("/v1/completions", {"model": "wild", "prompt": ["x", LONG]}),
        ("/v1/responses", {"model": "wild", "input": LONG}),
        ("/v1/messages", {"model": "wild", "messages": [{"role": "user", "content": LONG}], "max_tokens": 4}),
        ("/generate", {"text": LONG}),
    ],
)
def test_what_does_not_fit_is_refused_with_its_counts_before_a_stream_starts(
    http: TestClient, path: str, body: dict[str, Any], stream: bool
) -> None:
    answer = http.post(path, json={**body, "stream": stream})
    assert answer.status_code == 400
    error = error_of(answer)
    assert error.get("code", "context_length_exceeded") == "context_length_exceeded"
    assert "holds 512" in error["message"]
    assert any(900 <= int(word) < 1000 for word in error["message"].split() if word.isdecimal())


def test_a_server_that_drains_says_that_it_is_not_ready(wild_local: Local) -> None:
    app = build(wild_local, Settings(model_names=("wild",)))
    with TestClient(app) as http:
        assert http.get("/ready").status_code == 200
        app.state.served.is_draining = True
        answer = http.get("/ready")
        assert (answer.status_code, answer.json()) == (503, {"status": "draining"})
        assert http.get("/health").status_code == 200


def test_embeddings_of_one_key_tell_nothing_of_anothers_prompts(wild_local: Local) -> None:
    keys = frozenset(["one", "two"])
    body = {"model": "wild", "input": "Three toads told each other tales of the tides. " * 4}
    with TestClient(build(wild_local, Settings(model_names=("wild",), api_keys=keys))) as http:

        def cached(key: str) -> int:
            answer = http.post("/v1/embeddings", json=body, headers={"x-api-key": key}).json()
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [cached(key) > 0 for key in ("one", "one", "two", "two")] == [False, True, False, True]
