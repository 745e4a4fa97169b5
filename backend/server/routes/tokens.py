"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.server.conversation import conversation_ids
from forktree.backend.server.endpoints import Endpoint
from forktree.backend.server.errors import ApiError
from forktree.backend.server.schemas.tokens import DetokenizeRequest, TokenizeRequest
from forktree.backend.server.served import Served
from forktree.lang.errors import ModelError


def routes() -> list[Endpoint]:
    return [
        Endpoint(
            method="POST",
            path="/tokenize",
            answer=tokenize,
            summary="The ids of a text or a conversation",
            body=TokenizeRequest,
            gives={"type": "object", "required": ["tokens", "count", "max_model_len"]},
        ),
        Endpoint(
            method="POST",
            path="/detokenize",
            answer=detokenize,
            summary="The text of ids",
            body=DetokenizeRequest,
            gives={"type": "object", "required": ["prompt"]},
        ),
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
    for index, id in enumerate(body.tokens):
        if not 0 <= id < served.tokenizer.size:
            where = f"tokens[{index}]"
            known = f"this model's token ids are 0 to {served.tokenizer.size - 1}"
            raise ApiError(400, f"{where} is {id}, and {known}", param=where, code="invalid_value")
    text = await asyncio.to_thread(served.tokenizer.decode, body.tokens)
    return JSONResponse({"prompt": text})
