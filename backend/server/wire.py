"""How a protocol writes errors and events: the routes of one differ from another's in nothing else here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse

from forktree.backend.server.errors import ApiError

_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """
    Attributes:
        refusal: the body of a request that failed before its answer began.
        fault: the event that tells of a failure in the middle of a stream.
        names_events: each event has a name, which is its `type`.
        error_name, error_schema: of a refusal, for the OpenAPI document.
        last: the data of the event behind the last one; None has none.
    """

    refusal: Callable[[ApiError], dict[str, Any]] = ApiError.body
    fault: Callable[[ApiError], dict[str, Any]] = ApiError.body
    names_events: bool = False
    error_name: str = "Error"
    error_schema: Mapping[str, Any] = field(default_factory=lambda: _ERROR)
    last: str | None = None

    def refuse(self, error: ApiError) -> JSONResponse:
        return JSONResponse(self.refusal(error), status_code=error.status, headers=error.headers)

    def event(self, data: Mapping[str, Any]) -> bytes:
        name = f"event: {data['type']}\n" if self.names_events else ""
        return f"{name}data: {_written(data)}\n\n".encode()

    def end(self) -> bytes:
        return b"" if self.last is None else f"data: {self.last}\n\n".encode()


_written = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode

OPENAI = Wire(last="[DONE]")
