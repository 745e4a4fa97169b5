"""The application: every route over one engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.local import Local
from forktree.backend.server.endpoints import Endpoint
from forktree.backend.server.errors import answer_http_error
from forktree.backend.server.openapi import document
from forktree.backend.server.origins import Origins
from forktree.backend.server.request_log import RequestLog
from forktree.backend.server.routes import (
    chat,
    completions,
    embeddings,
    generate,
    health,
    messages,
    models,
    operations,
    programs,
    responses,
    score,
    tokens,
)
from forktree.backend.server.served import Served
from forktree.backend.server.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

FAMILIES = (
    chat,
    completions,
    embeddings,
    messages,
    responses,
    programs,
    score,
    generate,
    models,
    tokens,
    operations,
    health,
)


def build(backend: Local, settings: Settings, *, version: str = "0", traces: TracerProvider | None = None) -> Starlette:
    """An ASGI application that serves the backend; `app.state.served` is what its routes share.

    Args:
        version: of the OpenAPI document.
        traces: OpenTelemetry's provider, whose spans tell of every request.
    """
    served = Served(backend, settings)
    endpoints = [endpoint for family in FAMILIES for endpoint in family.routes()]
    described = document(endpoints, version=version, has_keys=bool(settings.api_keys))

    async def describe(served: Served, request: Request, body: None) -> JSONResponse:
        return JSONResponse(described)

    own = Endpoint(method="GET", path="/openapi.json", answer=describe, summary="This document", is_open=True)
    app = Starlette(
        routes=[endpoint.route(served) for endpoint in (*endpoints, own)],
        exception_handlers={HTTPException: answer_http_error},
    )
    app.state.served = served
    app.add_middleware(Origins, allowed=settings.cors_origins)
    app.add_middleware(RequestLog, metrics=served.metrics)
    if traces is not None:
        from forktree.backend.server.traces import Traces

        app.add_middleware(Traces, provider=traces, model=settings.model_names[0], version=version)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    return app
