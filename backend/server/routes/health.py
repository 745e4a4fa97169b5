"""`GET /health`: the server answers. `GET /ready`: it takes requests."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.server.endpoints import Endpoint
from forktree.backend.server.served import Served
from forktree.lang.errors import EngineError

_STATUS = {"type": "object", "required": ["status"]}


def routes() -> list[Endpoint]:
    return [
        Endpoint(
            method="GET",
            path="/health",
            answer=say_health,
            summary="Whether the server answers",
            is_open=True,
            gives=_STATUS,
        ),
        Endpoint(
            method="GET",
            path="/ready",
            answer=say_ready,
            summary="Whether the server takes requests: 503 while it drains, or without its engine",
            is_open=True,
            gives=_STATUS,
        ),
    ]


async def say_health(served: Served, request: Request, body: None) -> JSONResponse:
    return JSONResponse({"status": "ok"})


async def say_ready(served: Served, request: Request, body: None) -> JSONResponse:
    if served.is_draining:
        return JSONResponse({"status": "draining"}, status_code=503)
    try:
        await served.backend.context_limit()
    except EngineError as error:
        return JSONResponse({"status": f"no engine: {error}"}, status_code=503)
    return JSONResponse({"status": "ready"})
