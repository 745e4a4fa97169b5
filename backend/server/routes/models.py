"""`GET /v1/models` and `GET /v1/models/{model}`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.server.endpoints import Endpoint, get
from forktree.backend.server.served import Served


def routes() -> list[Endpoint]:
    return [
        get("/v1/models", list_models, "What the model is called", gives=("object", "data")),
        get(
            "/v1/models/{model:path}",
            show_model,
            "The model of one name",
            gives=("id", "object", "created", "owned_by"),
        ),
    ]


async def list_models(served: Served, request: Request, body: None) -> JSONResponse:
    names = served.settings.model_names
    return JSONResponse({"object": "list", "data": [await _model(served, name) for name in names]})


async def show_model(served: Served, request: Request, body: None) -> JSONResponse:
    name = served.model_of(request.path_params["model"])
    return JSONResponse(await _model(served, name))


async def _model(served: Served, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "forktree",
        "max_model_len": await served.backend.context_limit(),
    }
