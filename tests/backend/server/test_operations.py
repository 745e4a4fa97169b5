"""Metrics, ids, logs, aborting and flushing: what an operator has."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from real_parts import assert_idle, let_cancelled_work_end
from servers import aborted
from starlette.testclient import TestClient

from forktree.backend.engine.stats import EngineStats
from forktree.backend.local import Local
from forktree.backend.server.metrics import Metrics

CHAT: dict[str, Any] = {"model": "wild", "messages": [{"role": "user", "content": "Secret words"}], "max_tokens": 3}


def values(http: TestClient) -> dict[str, float]:
    """Samples without their labels, as Prometheus reads them."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_metrics_count_what_was_asked(http: TestClient) -> None:
    before = values(http)
    for _ in range(2):
        http.post("/v1/chat/completions", json=CHAT)
    after = values(http)

    def grown(name: str) -> float:
        return after[f"forktree:{name}"] - before.get(f"forktree:{name}", 0)

    assert grown("generation_tokens_total") == 6
    assert grown("cached_tokens_total") > 0
    assert grown("request_success_total") == 2
    assert grown("time_to_first_token_seconds_count") == 2
    assert grown("e2e_request_latency_seconds_count") == 2
    assert after["forktree:request_generation_tokens_sum"] == 6
    assert after["forktree:num_requests_running"] == 0
    assert 0 < after["forktree:prefix_cache_hit_ratio"] < 1


def test_every_metric_is_labelled_with_the_model(http: TestClient) -> None:
    http.post("/v1/chat/completions", json=CHAT)
    for family in text_string_to_metric_families(http.get("/metrics").text):
        assert family.name.startswith("forktree:")
        assert family.documentation
        for sample in family.samples:
            assert sample.labels["model"] == "wild"


def test_answers_are_counted_by_route_and_status(http: TestClient) -> None:
    http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 0})
    text = http.get("/metrics").text
    assert 'forktree:http_responses_total{model="wild",route="/v1/chat/completions",status="400"} 1.0' in text


def test_a_request_keeps_its_id_and_gets_one_otherwise(http: TestClient) -> None:
    assert http.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    given = {http.get("/health", headers={"x-request-id": "a\tb"}).headers["x-request-id"] for _ in range(2)}
    assert len(given) == 2
    assert all(len(one) == 32 for one in given)


def test_a_log_line_has_sizes_and_times_and_no_text(http: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "forktree.requests"):
        http.post("/v1/chat/completions", json=CHAT, headers={"x-request-id": "r1", "authorization": "Bearer hidden"})
    (line,) = (json.loads(record.message) for record in caplog.records if record.name == "forktree.requests")
    assert (line["request_id"], line["route"], line["status"]) == ("r1", "/v1/chat/completions", 200)
    assert line["seconds"] > 0
    assert "Secret" not in caplog.text
    assert "hidden" not in caplog.text


def test_an_aborted_request_is_answered_and_frees_its_pages(wild_url: str, wild_local: Local) -> None:
    body = {**CHAT, "max_tokens": 400, "ignore_eos": True, "n": 2}
    answer = aborted(wild_url, "/v1/chat/completions", body)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "aborted"
    let_cancelled_work_end(wild_local)
    assert_idle(wild_local)


def test_aborting_what_is_not_there_is_harmless(http: TestClient) -> None:
    assert http.post("/abort", json={"request_id": "never"}).json() == {"aborted": 0}


def test_flushing_forgets_what_is_cached(http: TestClient) -> None:
    http.post("/v1/chat/completions", json=CHAT)
    assert http.post("/flush_cache", json={}).json()["pages_freed"] > 0
    assert http.post("/flush_cache", json={}).json()["pages_freed"] == 0


def test_pages_of_other_origins_may_ask_where_that_is_allowed(wild_local: Local) -> None:
    from forktree.backend.server.app import build
    from forktree.backend.server.settings import Settings

    settings = Settings(model_names=("wild",), cors_origins=("https://mine.example",))
    with TestClient(build(wild_local, settings)) as client:
        asked = {"origin": "https://mine.example", "access-control-request-method": "POST"}
        allowed = client.options("/v1/chat/completions", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "https://mine.example"
        other = client.options("/v1/chat/completions", headers={**asked, "origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers


def test_every_metric_of_the_dashboard_is_there(http: TestClient) -> None:
    http.post("/v1/chat/completions", json=CHAT)
    known = set(values(http))
    text = (Path(__file__).parents[3] / "docs/grafana/forktree.json").read_text(encoding="utf-8")
    named = set(re.findall(r"forktree:\w+", text))
    assert len(named) > 12
    assert named <= known


def test_every_metric_is_told_of_in_the_docs(http: TestClient) -> None:
    text = (Path(__file__).parents[3] / "docs/operations.md").read_text(encoding="utf-8")
    told = set(re.findall(r"\w+", text))
    families = list(text_string_to_metric_families(http.get("/metrics").text))
    names = [family.name.removeprefix("forktree:") for family in families if not family.name.endswith("_created")]
    assert [name for name in names if not {name, f"{name}_total"} & told] == []


def test_constraints_that_were_compiled_before_are_told_apart(http: TestClient) -> None:
    def grown(pattern: str) -> list[float]:
        before = values(http)
        http.post("/v1/completions", json={"model": "wild", "prompt": "x", "max_tokens": 4, "regex": pattern})
        after = values(http)
        names = ("grammar_cache_hits_total", "grammar_cache_misses_total", "grammar_compile_seconds_total")
        return [after[f"forktree:{name}"] - before[f"forktree:{name}"] for name in names]

    hits, misses, seconds = grown("[ab]{3}c{17}")
    assert (hits, misses) == (0, 1)
    assert seconds > 0
    assert grown("[ab]{3}c{17}") == [1, 0, 0]


def test_what_tiers_moved_is_told_by_tier_and_direction() -> None:
    stats = EngineStats(pages_from_disk=3, bytes_from_disk=300, pages_to_host=2, bytes_to_host=200, num_declined=4)
    text = Metrics("m", lambda: stats, lambda: 0).text().decode()
    for line in (
        'forktree:kv_tier_pages_total{direction="up",model="m",tier="disk"} 3.0',
        'forktree:kv_tier_bytes_total{direction="up",model="m",tier="disk"} 300.0',
        'forktree:kv_tier_pages_total{direction="down",model="m",tier="host"} 2.0',
        'forktree:kv_tier_declined_total{model="m"} 4.0',
    ):
        assert line in text


def test_pages_that_give_way_are_counted(http: TestClient) -> None:
    before = values(http)
    for number in range(3, 14):  # 11 prompts of 400 tokens, and a pool of 4,096
        http.post("/v1/completions", json={"model": "wild", "prompt": [number] * 400, "max_tokens": 1})
    after = values(http)
    assert after["forktree:kv_cache_pages_evicted_total"] > before["forktree:kv_cache_pages_evicted_total"]
    assert after["forktree:kv_cache_usage_ratio"] == 0
