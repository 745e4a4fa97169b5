"""`POST /v1/score`: continuations of one text, all scored in one pass over their trie."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.server.endpoints import Endpoint, post
from forktree.backend.server.presence import unless_disconnected
from forktree.backend.server.schemas.score import ScoreRequest
from forktree.backend.server.served import Served
from forktree.runtime import protocol


def routes() -> list[Endpoint]:
    return [
        post(
            "/v1/score",
            answer,
            ScoreRequest,
            "Log-probabilities of several continuations",
            gives=("object", "model", "data", "usage"),
        ),
    ]


async def answer(served: Served, request: Request, body: ScoreRequest) -> JSONResponse:
    """See `Endpoint`."""
    model = served.model_of(body.model)
    branch = protocol.Branch(None, protocol.Text(body.prompt)) if body.prompt else None
    asked = protocol.ScoreRequest(branch=branch, options=tuple(body.options), unconditional=bool(body.unconditional))
    flight = await served.admit(1)
    try:
        result = await unless_disconnected(request.receive, flight.carry(served.engine().score(asked)))
    finally:
        flight.abandon()
    usage = result.usage
    if served.caller.notes is not None:
        served.caller.notes.add_usage(usage)
    return JSONResponse(
        {
            "object": "list",
            "model": model,
            "data": [_scored(index, option) for index, option in enumerate(result.options)],
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            },
        }
    )


def _scored(index: int, option: protocol.OptionScore) -> dict[str, Any]:
    """`score` is the sum of the log-probabilities (natural log) of the tokens from the first that differs."""
    alone = option.unconditional_logprobs
    return {
        "object": "score",
        "index": index,
        "score": sum(option.logprobs),
        "tokens": list(option.ids),
        "token_logprobs": list(option.logprobs),
        **({} if alone is None else {"unconditional_score": sum(alone)}),
    }
