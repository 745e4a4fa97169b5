"""The body of a request: read within bounds, parsed as strict JSON, checked against its schema."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from forktree.backend.server.errors import ApiError
from forktree.lang.keywords import did_you_mean

Body = TypeVar("Body", bound=BaseModel)

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_body(request: Request, schema: type[Body], *, max_bytes: int) -> Body:
    """
    Raises:
        ApiError: 413 too long, 415 no JSON by its type, 400 what it holds is wrong.
        ClientDisconnect: the client went away before the end.
    """
    data = await _read(request, max_bytes)
    if not data and not any(field.is_required() for field in schema.model_fields.values()):
        return checked(schema, {})  # nothing has to be said, so that nothing need be sent
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(415, f"the body must be application/json, not {kind!r}", code="unsupported_media_type")
    return checked(schema, parsed(data))


async def _read(request: Request, max_bytes: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_long(max_bytes)
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > max_bytes:
            raise _too_long(max_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def _too_long(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is longer than {max_bytes} bytes", code="request_too_large")


def parsed(data: bytes) -> Any:
    """JSON as a value. Raises ApiError: it is none, by RFC 8259, or it has text that is not Unicode."""
    if not data.strip():
        raise ApiError(400, "the body is empty: send a JSON object", code="invalid_json")
    try:
        value = json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)  # strictly: no lone surrogates
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(400, "the body has a lone surrogate, which no Unicode text holds", code="invalid_json") from None
    except (ValueError, RecursionError) as error:  # ValueError has bad UTF-8 too
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ApiError(400, f"the body is not JSON: {reason}", code="invalid_json") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def checked(schema: type[Body], value: Any) -> Body:
    """Raises ApiError 400, with the field that is wrong."""
    if not isinstance(value, dict):
        raise ApiError(400, f"the body must be a JSON object, not {_named(value)}")
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise _refusal(error, value, schema) from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None


def _refusal(error: ValidationError, body: Any, schema: type[BaseModel]) -> ApiError:
    first = error.errors(include_url=False)[0]
    param = _path(first["loc"], body, is_missing=first["type"] == "missing")
    message = str(first["msg"]).removeprefix("Value error, ")
    match first["type"]:
        case "extra_forbidden":
            hint = did_you_mean(param, schema.model_fields) if len(first["loc"]) == 1 else ""
            message = f"unknown field {param}{hint or ': leave it out'}"
            return ApiError(400, message, param=param, code="unknown_parameter")
        case "missing":
            return ApiError(400, f"{param} is required", param=param, code="missing_required_parameter")
        case "too_short" | "too_long":
            return ApiError(400, f"{param} {_wrong_length(first)}", param=param, code="invalid_value")
    shown = _shown(first.get("input"))
    said = message if message.startswith(param) else f"{param}: {message}" if param else message
    seen = "" if shown in said else f", not {shown}"
    return ApiError(400, said + seen, param=param or None, code="invalid_value")


def _wrong_length(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    bound, count = ("least", context["min_length"]) if "min_length" in context else ("most", context["max_length"])
    return f"must have at {bound} {count} {'item' if count == 1 else 'items'}, not {context['actual_length']}"


def _path(location: Sequence[int | str], body: Any, *, is_missing: bool) -> str:
    """Where in the body: what pydantic says, without the names of the cases of unions that it puts between."""
    path, at = "", body
    for position, key in enumerate(location):
        is_wanted = is_missing and position == len(location) - 1
        if isinstance(key, int):
            if isinstance(at, list) and key < len(at):
                path, at = f"{path}[{key}]", at[key]
        elif isinstance(at, dict) and (key in at or is_wanted):
            path, at = f"{path}.{key}" if path else key, at.get(key)
    return path


def _named(value: Any) -> str:
    kinds = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list"}
    return kinds.get(type(value), "an object")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}…"
