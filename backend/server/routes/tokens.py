"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.server.conversation import conversation_ids
from forktree.backend.server.endpoints import Endpoint, post
from forktree.backend.server.errors import ApiError
from forktree.backend.server.prompts import check_ids
from forktree.backend.server.schemas.tokens import DetokenizeRequest, TokenizeRequest
from forktree.backend.server.served import Served
from forktree.lang.errors import ModelError


def routes() -> list[Endpoint]:
    return [
        post(
            "/tokenize",
            tokenize,
            TokenizeRequest,
            "The ids of a text or a conversation",
            gives=("tokens", "count", "max_model_len"),
        ),
        post("/detokenize", detokenize, DetokenizeRequest, "The text of ids", gives=("prompt",)),
    ]


async def tokenize(served: Served, request: Request, body: TokenizeRequest) -> JSONResponse:
    served.model_of(body.model)
    ids = await asyncio.to_thread(_ids, served, body)
    limit = await served.backend.context_limit()
    return JSONResponse({"tokens": list(ids), "count": len(ids), "max_model_len": limit})


def _ids(served: Served, body: TokenizeRequest) -> list[int] | tuple[int, ...]:
    tokenizer = served.tokenizer
    if body.messages is None:
        encode = tokenizer.encode if body.add_special_tokens is False else tokenizer.encode_prompt
        return encode(body.prompt or "")
    try:
        return conversation_ids(
            body.messages,
            body.tools or [],
            tokenizer,
            served.hidden,
            add_generation_prompt=body.add_generation_prompt is not False,
        )
    except ModelError as error:  # it has no template
        raise ApiError(400, str(error), param="messages", code="unsupported") from None


async def detokenize(served: Served, request: Request, body: DetokenizeRequest) -> JSONResponse:
    served.model_of(body.model)
    check_ids("tokens", body.tokens, served.tokenizer)
    text = await asyncio.to_thread(served.tokenizer.decode, body.tokens)
    return JSONResponse({"prompt": text})
