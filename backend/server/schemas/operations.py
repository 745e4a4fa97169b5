"""`POST /flush_cache` and `POST /abort`."""

from __future__ import annotations

from pydantic import Field

from forktree.backend.server.schemas.base import Model


class FlushRequest(Model):
    """Nothing is to be said."""


class AbortRequest(Model):
    """A request that is to stop."""

    request_id: str = Field(min_length=1, description="the `X-Request-Id` that it was sent with, or answered with")
