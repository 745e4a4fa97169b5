"""Whatever fails, in the shape that OpenAI's clients read: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.local_generation import AskError
from forktree.lang.errors import (
    AuthenticationError,
    BackendError,
    ConstraintError,
    ContextLengthError,
    EngineError,
    ForktreeError,
    LanguageError,
    RateLimitError,
    ServerError,
    TimeoutError,
    UnsupportedError,
)

_log = logging.getLogger("forktree.server")

_NAMED_FIRST = frozenset(
    ["logit_bias", "stop_token_ids", "min_tokens"]
)  # fields that the engine's own messages begin with


class ApiError(Exception):
    """A request is answered with an error.

    Attributes:
        status: of HTTP.
        param: the field that is wrong, as in `messages[0].content`.
        code: for programs: what is wrong.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def api_error(error: BaseException, *, param: str | None = None) -> ApiError:
    """How an error is answered. `param`: the field that it is about, where the error itself does not say."""
    match error:
        case ApiError():
            return error
        case AskError():
            return api_error(error.__cause__ or error, param=param)
        case ConstraintError():
            where = f"{param}{error.pointer}" if param and error.pointer.startswith("/") else param
            return ApiError(400, str(error), param=where, code="invalid_constraint")
        case ContextLengthError():
            return ApiError(400, str(error), param=param, code="context_length_exceeded")
        case LanguageError():  # a RoleError: the chat template refuses
            return ApiError(400, str(error), param=param)
        case AuthenticationError():
            return ApiError(401, str(error), type="authentication_error", code="invalid_api_key")
        case RateLimitError():
            wait = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:.0f}"}
            return ApiError(429, str(error), type="rate_limit_error", code="rate_limit_exceeded", headers=wait)
        case TimeoutError():
            return ApiError(504, str(error), type="timeout_error", code="timeout")
        case UnsupportedError():
            return ApiError(400, str(error), param=param, code="unsupported")
        case ServerError():
            return ApiError(502, str(error), type="server_error")
        case BackendError() | ValueError():
            first = str(error).split(" ", 1)[0]
            return ApiError(400, str(error), param=first if first in _NAMED_FIRST else param)
        case EngineError():
            return ApiError(503, str(error), type="server_error", code="engine_unavailable")
        case ForktreeError():
            return ApiError(500, str(error), type="server_error")
    _log.error("a request failed because of a mistake in the server", exc_info=error)
    return ApiError(500, f"the server failed: {type(error).__name__}", type="server_error", code="internal_error")


def not_found(path: str) -> ApiError:
    return ApiError(404, f"there is no route {path}", code="unknown_url")


def not_allowed(method: str, path: str, allowed: str) -> ApiError:
    return ApiError(
        405, f"{path} does not take {method}, but {allowed}", code="method_not_allowed", headers={"Allow": allowed}
    )


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """An exception handler of starlette's."""
    return api_error(error).response()


async def answer_http_error(request: Request, error: Exception) -> JSONResponse:
    """The same for what starlette itself refuses: an unknown path, a method that a path does not take."""
    status = getattr(error, "status_code", 500)
    if status == 404:
        return not_found(request.url.path).response()
    if status == 405:
        allowed = (getattr(error, "headers", None) or {}).get("Allow", "")
        return not_allowed(request.method, request.url.path, allowed).response()
    return ApiError(status, str(getattr(error, "detail", error))).response()
