"""A span for every request: what it cost, what became of it, and never what it said."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.testclient import TestClient

from forktree.backend.local import Local
from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings
from forktree.commands.traces import tracer_provider

CHAT: dict[str, Any] = {"model": "wild", "messages": [{"role": "user", "content": "Secret words"}], "max_tokens": 3}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(wild_local: Local, spans: InMemorySpanExporter) -> Iterator[TestClient]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    settings = Settings(model_names=("wild",), api_keys=frozenset(["key-of-mine"]))
    with TestClient(build(wild_local, settings, traces=provider)) as client:
        client.headers["authorization"] = "Bearer key-of-mine"
        yield client


def only(spans: InMemorySpanExporter) -> tuple[ReadableSpan, dict[str, Any]]:
    (span,) = spans.get_finished_spans()
    return span, dict(span.attributes or {})


@pytest.mark.parametrize("stream", [False, True])
def test_a_span_says_what_a_chat_cost(traced: TestClient, spans: InMemorySpanExporter, stream: bool) -> None:
    usage = traced.post("/v1/chat/completions", json=CHAT).json()["usage"]
    spans.clear()
    headers = {"traceparent": PARENT, "x-request-id": "mine"}
    traced.post("/v1/chat/completions", json={**CHAT, "n": 2, "stream": stream}, headers=headers)
    span, told = only(spans)
    assert span.name == "chat wild"
    assert span.kind is SpanKind.SERVER
    assert span.context is not None
    assert span.parent is not None
    assert format(span.context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"
    assert format(span.parent.span_id, "016x") == "b7ad6b7169203331"
    assert span.status.status_code is StatusCode.UNSET
    assert span.end_time is not None
    assert span.start_time is not None
    first = told.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < first <= (span.end_time - span.start_time) / 1e9
    assert len(told.pop("forktree.tenant")) == 12
    assert told == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "forktree.request_id": "mine",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "forktree",
        "gen_ai.request.model": "wild",
        "gen_ai.response.model": "wild",
        "gen_ai.response.finish_reasons": ("length", "length"),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens"] - 1,
    }


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", {"model": "wild", "prompt": "Secret", "max_tokens": 2}, "text_completion wild"),
        ("/v1/responses", {"model": "wild", "input": "Secret", "max_output_tokens": 2}, "chat wild"),
        ("/v1/messages", CHAT, "chat wild"),
        ("/v1/embeddings", {"model": "wild", "input": "Secret"}, "embeddings wild"),
        ("/v1/score", {"prompt": "Secret", "options": ["a", "b"]}, "POST /v1/score"),
    ],
)
def test_every_kind_of_answer_has_its_counts_and_no_text(
    traced: TestClient, spans: InMemorySpanExporter, path: str, body: dict[str, Any], name: str
) -> None:
    assert traced.post(path, json=body).status_code == 200
    span, told = only(spans)
    assert span.name == name
    assert told["gen_ai.usage.input_tokens"] > 0
    assert "Secret" not in span.to_json()
    assert "key-of-mine" not in span.to_json()


@pytest.mark.parametrize(
    ("headers", "body", "status", "kind"),
    [
        ({"authorization": "Bearer wrong"}, CHAT, 401, "invalid_api_key"),
        ({}, {**CHAT, "model": "another"}, 404, "model_not_found"),
        ({}, {**CHAT, "max_tokens": 0}, 400, "invalid_value"),
    ],
)
def test_a_refusal_is_told_by_its_code_and_is_no_fault_of_the_server(
    traced: TestClient, spans: InMemorySpanExporter, headers: dict[str, str], body: Any, status: int, kind: str
) -> None:
    traced.post("/v1/chat/completions", json=body, headers=headers)
    span, told = only(spans)
    assert (told["http.response.status_code"], told["error.type"]) == (status, kind)
    assert span.status.status_code is StatusCode.UNSET


def test_a_stream_that_breaks_off_is_a_fault(wild_local: Local, spans: InMemorySpanExporter) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    settings = Settings(model_names=("wild",), timeout_s=0.05)
    with TestClient(build(wild_local, settings, traces=provider)) as client:
        client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 450, "ignore_eos": True, "stream": True})
    span, told = only(spans)
    assert (told["http.response.status_code"], told["error.type"]) == (200, "timeout")
    assert span.status.status_code is StatusCode.ERROR


def test_what_monitors_ask_has_no_span_and_an_unknown_path_has_no_route(
    traced: TestClient, spans: InMemorySpanExporter
) -> None:
    for path in ("/health", "/ready", "/metrics", "/nowhere"):
        traced.get(path)
    span, told = only(spans)
    assert span.name == "GET unknown"
    assert told["http.response.status_code"] == 404
    assert span.parent is None


def test_spans_reach_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        provider = tracer_provider()
        with provider.get_tracer("here").start_as_current_span("one"):
            pass
        provider.shutdown()
        server.shutdown()
    (resource,) = received[0].resource_spans
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["one"]
    names = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert names["service.name"] == "forktree"
