"""Pages in a browser: those of other origins may ask where that is allowed, and not otherwise.

A browser sends some requests of any page to any address, this machine's own included, and asks nobody first; that
their answers are kept from the page undoes nothing. Every such request names its page's origin.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from forktree.backend.server.errors import ApiError
from forktree.backend.server.wire import OPENAI


class Origins:
    """Middleware: a request that names an origin which is not allowed is answered 403 and goes no further.

    Args:
        allowed: origins as browsers write them (`https://app.example`); "*" is any.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = _origin_of(scope) if scope["type"] == "http" else None
        if origin is None or "*" in self._allowed or origin in self._allowed:
            await self._app(scope, receive, send)
            return
        message = f"pages of {origin[:200]!r} may not ask this server; `forktree serve --cors-origin` allows an origin"
        refusal = OPENAI.refuse(ApiError(403, message, type="permission_error", code="origin_not_allowed"))
        await refusal(scope, receive, send)


def _origin_of(scope: Scope) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"), None)
