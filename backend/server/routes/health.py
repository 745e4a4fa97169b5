"""`GET /health`: the server answers. `GET /ready`: it takes requests."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.server.endpoints import Endpoint, get
from forktree.backend.server.served import Served
from forktree.lang.errors import EngineError


def routes() -> list[Endpoint]:
    return [
        get("/health", say_health, "Whether the server answers", gives=("status",), is_open=True),
        get(
            "/ready",
            say_ready,
            "Whether the server takes requests: 503 while it drains, or without its engine",
            gives=("status",),
            is_open=True,
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
