"""A route: its path, what it takes, and what carries it out, with errors answered in one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from forktree.backend.server.bodies import read_body
from forktree.backend.server.callers import Caller
from forktree.backend.server.errors import api_error
from forktree.backend.server.served import Served
from forktree.backend.server.wire import OPENAI, Wire

Answer = Callable[[Served, Request, Any], Awaitable[Any]]
_GONE = 499  # nobody reads it: the client has closed the connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """
    Attributes:
        answer: takes what is served, the request and its checked body; returns an ASGI response.
        body: the model of the request's body; None has none.
        is_open: needs no key.
        gives: JSON schema of a plain answer, for the OpenAPI document.
        streams: it may answer with server-sent events.
        wire: how its protocol writes errors.
        media_type: of a plain answer.
    """

    method: str
    path: str
    answer: Answer
    summary: str
    body: type[BaseModel] | None = None
    is_open: bool = False
    gives: dict[str, Any] | None = None
    streams: bool = False
    wire: Wire = OPENAI
    media_type: str = "application/json"

    def route(self, served: Served) -> Route:
        return Route(self.path, _Carrier(self, served), methods=[self.method])


def post(
    path: str,
    answer: Answer,
    body: type[BaseModel],
    summary: str,
    *,
    gives: tuple[str, ...],
    streams: bool = False,
    wire: Wire = OPENAI,
) -> Endpoint:
    """A route that takes a body and needs a key. `gives`: what a plain answer, an object, always has."""
    return Endpoint(
        method="POST",
        path=path,
        answer=answer,
        summary=summary,
        body=body,
        gives=_object(gives),
        streams=streams,
        wire=wire,
    )


def get(path: str, answer: Answer, summary: str, *, gives: tuple[str, ...], is_open: bool = False) -> Endpoint:
    """A route without a body, whose answer is an object as well."""
    return Endpoint(method="GET", path=path, answer=answer, summary=summary, gives=_object(gives), is_open=is_open)


def _object(gives: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "object", "required": list(gives)}


class _Carrier:
    """The ASGI application of one endpoint."""

    def __init__(self, endpoint: Endpoint, served: Served) -> None:
        self._endpoint = endpoint
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._answer(request)
        await response(scope, request.receive, send)

    async def _answer(self, request: Request) -> Any:
        endpoint, served = self._endpoint, self._served
        notes = request.scope.get("state", {}).get("notes")
        try:
            tenant = "" if endpoint.is_open else served.keys.check(request.headers)
            request_id = request.scope.get("state", {}).get("request_id", "")
            request.scope.setdefault("state", {})["tenant"] = tenant
            if endpoint.body is not None:
                served.limits.take(tenant)
                body = await read_body(request, endpoint.body, max_bytes=served.settings.max_body_bytes)
            else:
                body = None
            return await endpoint.answer(served.by(Caller(tenant, request_id, request.receive, notes)), request, body)
        except ClientDisconnect:
            return Response(status_code=_GONE)
        except Exception as error:
            refusal = api_error(error)
            if notes is not None:
                notes.fault = refusal.code or refusal.type
            return endpoint.wire.refuse(refusal)
