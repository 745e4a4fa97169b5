"""One line a request, as JSON, with its id; of what was asked and answered it has sizes and times alone, no text."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Mapping, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forktree.backend.server.metrics import Metrics

_log = logging.getLogger("forktree.requests")
_IS_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_QUIET = frozenset(["/health", "/ready", "/metrics"])


class RequestLog:
    """Middleware: gives every request an id, its client's own where that is a plain word, and notes how it went."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = _id_of(scope)
        begun, seen = time.perf_counter(), {"status": 499, "bytes": 0}

        async def noticed(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen["status"] = message["status"]
                header = (b"x-request-id", state["request_id"].encode())
                message = {**message, "headers": [*message.get("headers", ()), header]}
            else:
                seen["bytes"] += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, noticed)
        finally:
            self._note(scope, state, seen, time.perf_counter() - begun)

    def _note(self, scope: Scope, state: MutableMapping[str, Any], seen: Mapping[str, int], seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None)
        self._metrics.answered(route or "unknown", seen["status"])
        level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
        if not _log.isEnabledFor(level):
            return
        line = {
            "request_id": state["request_id"],
            "method": scope["method"],
            "route": route,
            "status": seen["status"],
            "seconds": round(seconds, 4),
            "response_bytes": seen["bytes"],
            "tenant": state.get("tenant", ""),
            "client": (scope.get("client") or ("",))[0],
        }
        if "fault" in state:
            line["fault"] = state["fault"]  # of a stream: the status went out before
        _log.log(level, json.dumps(line))


def _id_of(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given = value.decode("latin-1")
            if _IS_ID.fullmatch(given):
                return given
    return uuid.uuid4().hex
