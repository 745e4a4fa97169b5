"""OpenTelemetry: a span for every request, by the semantic conventions for HTTP and for generative AI.

Needs `opentelemetry-api` (`pip install 'forktree[otel]'`); who serves gives the provider. No text of prompts or answers
is in a span, nor a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forktree.backend.server.notes import Notes

_QUIET = frozenset(["/health", "/ready", "/metrics"])
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/generate": "text_completion",
    "/v1/embeddings": "embeddings",
}
_GONE = 499  # nobody was answered: the client went away first
_HEADERS = (b"traceparent", b"tracestate")


class Traces:
    """Middleware: begins a span, as a child of the one that the request's `traceparent` names, and ends it with what
    became of the request.

    Args:
        model: what answers call the model.
    """

    def __init__(self, app: ASGIApp, provider: TracerProvider, model: str, version: str) -> None:
        self._app = app
        self._model = model
        self._tracer = provider.get_tracer("forktree.server", version)
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _QUIET:
            await self._app(scope, receive, send)
            return
        carrier = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _HEADERS}
        notes, status = Notes(), _GONE

        async def noticed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        scope.setdefault("state", {})["notes"] = notes
        context = self._propagator.extract(carrier)
        span = self._tracer.start_span(str(scope["method"]), context, SpanKind.SERVER)
        with use_span(span, end_on_exit=True):
            try:
                await self._app(scope, receive, noticed)
            finally:
                if span.is_recording():
                    self._tell(span, scope, notes, status)

    def _tell(self, span: Span, scope: Scope, notes: Notes, status: int) -> None:
        route = getattr(scope.get("route"), "path", None)
        operation = _OPERATIONS.get(route or "")
        span.update_name(f"{operation} {self._model}" if operation else f"{scope['method']} {route or 'unknown'}")
        told: dict[str, Any] = {
            "http.request.method": scope["method"],
            "http.route": route,
            "http.response.status_code": None if status == _GONE else status,
            "error.type": _fault(notes, status),
            "forktree.request_id": scope["state"].get("request_id"),
            "forktree.tenant": scope["state"].get("tenant") or None,
        }
        if operation:
            told |= {"gen_ai.operation.name": operation, "gen_ai.provider.name": "forktree"}
        if operation or notes.usage is not None:
            told |= self._answer(notes)
        for name, value in told.items():
            if value is not None:
                span.set_attribute(name, value)
        if status >= 500 or (notes.fault is not None and status == 200):  # or a stream that broke off
            span.set_status(StatusCode.ERROR)

    def _answer(self, notes: Notes) -> Mapping[str, Any]:
        told: dict[str, Any] = {
            "gen_ai.request.model": notes.asked_model,
            "gen_ai.response.model": self._model,
            "gen_ai.response.finish_reasons": notes.reasons or None,
            "gen_ai.response.time_to_first_chunk": notes.first_s,
        }
        if notes.usage is not None:
            told |= {
                "gen_ai.usage.input_tokens": notes.usage.prompt_tokens,
                "gen_ai.usage.output_tokens": notes.usage.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": notes.usage.cached_tokens,
            }
        return told


def _fault(notes: Notes, status: int) -> str | None:
    """What went wrong: the error's own kind where one was answered, the status, or that the client went away."""
    if notes.fault is not None:
        return notes.fault
    if status == _GONE:
        return "client_disconnected"
    return str(status) if status >= 400 else None
