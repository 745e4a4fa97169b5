"""What operators ask: `GET /metrics`, `POST /flush_cache`, `POST /abort`."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from forktree.backend.server.endpoints import Endpoint, post
from forktree.backend.server.errors import ApiError
from forktree.backend.server.schemas.operations import AbortRequest, FlushRequest
from forktree.backend.server.served import Served


def routes() -> list[Endpoint]:
    return [
        Endpoint(
            method="GET",
            path="/metrics",
            answer=say_metrics,
            summary="Metrics in Prometheus's text format",
            is_open=True,
            media_type="text/plain",
        ),
        post(
            "/flush_cache",
            flush,
            FlushRequest,
            "Forget every cached token that no running request uses",
            gives=("pages_freed",),
        ),
        post(
            "/abort",
            abort,
            AbortRequest,
            "Stop one of the caller's requests, which is then answered with an error",
            gives=("aborted",),
        ),
    ]


async def say_metrics(served: Served, request: Request, body: None) -> Response:
    text = await asyncio.to_thread(served.metrics.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def flush(served: Served, request: Request, body: FlushRequest) -> JSONResponse:
    return JSONResponse({"pages_freed": await asyncio.to_thread(served.backend.flush_cache)})


async def abort(served: Served, request: Request, body: AbortRequest) -> JSONResponse:
    """Other tenants' requests are as unknown as those that never were."""
    flights = [flight for flight in served.flights.get(body.request_id, ()) if flight.tenant == served.caller.tenant]
    for flight in flights:
        flight.stop(ApiError(409, "the request was aborted", type="aborted", code="aborted"))
    return JSONResponse({"aborted": len(flights)})
