"""`POST /v1/embeddings`: texts as vectors, the directions of the model's final hidden states."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from forktree.backend.local_embeddings import Embedding, Pooling, shortened
from forktree.backend.server.endpoints import Endpoint, post
from forktree.backend.server.errors import ApiError, api_error
from forktree.backend.server.presence import unless_disconnected
from forktree.backend.server.prompts import Prompt, prompts_of
from forktree.backend.server.schemas.embeddings import EmbeddingsRequest
from forktree.backend.server.served import Served
from forktree.lang.errors import ContextLengthError, TimeoutError

_NUM_AT_ONCE = 32
"""Texts that take a turn together: other tenants' requests wait for no more than these."""


def routes() -> list[Endpoint]:
    return [
        post(
            "/v1/embeddings", answer, EmbeddingsRequest, "Texts as vectors", gives=("object", "data", "model", "usage")
        )
    ]


async def answer(served: Served, request: Request, body: EmbeddingsRequest) -> Response:
    """See `Endpoint`."""
    model = served.model_of(body.model)
    await _check(served, body)
    prompts = await asyncio.to_thread(prompts_of, "input", body.input, served.tokenizer)
    _check_lengths(prompts, await served.backend.context_limit())
    made = await unless_disconnected(request.receive, _embedded(served, body, prompts))
    return Response(await asyncio.to_thread(_written, body, model, made), media_type="application/json")


async def _check(served: Served, body: EmbeddingsRequest) -> None:
    """Raises ApiError: too many inputs, or more dimensions than there are."""
    most = served.settings.max_inputs
    if isinstance(body.input, list) and not isinstance(body.input[0], int) and len(body.input) > most:
        raise ApiError(400, f"input has {len(body.input)} texts, above the {most} allowed", param="input")
    size = await served.backend.hidden_size()
    if body.dimensions is not None and body.dimensions > size:
        message = f"dimensions is {body.dimensions}, and this model's embeddings have {size}"
        raise ApiError(400, message, param="dimensions", code="invalid_value")


def _check_lengths(prompts: Sequence[Prompt], limit: int) -> None:
    """Raises ApiError: one does not fit. Checked for all before any is computed."""
    for prompt in prompts:
        num_tokens = len(prompt.ids)
        if num_tokens > limit:
            message = f"{prompt.param} has {num_tokens} tokens, and the model's context holds {limit}: shorten it"
            raise api_error(ContextLengthError(message, limit=limit, tokens=num_tokens), param=prompt.param)


async def _embedded(served: Served, body: EmbeddingsRequest, prompts: Sequence[Prompt]) -> list[Embedding]:
    """In the caller's turns, some at a time. Raises TimeoutError: all of them took too long."""
    pooling: Pooling = body.pooling or "last"
    engine, begun, limit = served.engine(body.cache_salt), time.perf_counter(), served.settings.timeout_s
    made: list[Embedding] = []
    for start in range(0, len(prompts), _NUM_AT_ONCE):
        group = prompts[start : start + _NUM_AT_ONCE]
        left = None if limit is None else limit - (time.perf_counter() - begun)
        if left is not None and left <= 0:
            raise TimeoutError(f"the answer was not complete within {limit:g} s")
        flight = await served.admit(len(group), priority=body.priority or 0, timeout_s=left)
        try:
            made += await flight.carry(engine.embed_ids([prompt.ids for prompt in group], pooling=pooling))
        finally:
            flight.abandon()
        _note(served, made[start:])
    return made


def _note(served: Served, made: Sequence[Embedding]) -> None:
    for one in made:
        served.metrics.prompt_length.observe(one.usage.prompt_tokens)
        if served.caller.notes is not None:
            served.caller.notes.add_usage(one.usage)


def _written(body: EmbeddingsRequest, model: str, made: Sequence[Embedding]) -> bytes:
    """The answer as JSON; takes a while where it is long, so not on the loop."""
    num_tokens = sum(one.usage.prompt_tokens for one in made)
    answer = {
        "object": "list",
        "data": [_item(index, one, body) for index, one in enumerate(made)],
        "model": model,
        "usage": {
            "prompt_tokens": num_tokens,
            "total_tokens": num_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(one.usage.cached_tokens for one in made)},
        },
    }
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def _item(index: int, one: Embedding, body: EmbeddingsRequest) -> dict[str, Any]:
    values = one.values if body.dimensions is None else shortened(one.values, body.dimensions)
    written: Any = values
    if body.encoding_format == "base64":
        written = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode("ascii")
    return {"object": "embedding", "index": index, "embedding": written}
