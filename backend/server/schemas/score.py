"""`POST /v1/score`."""

from __future__ import annotations

from pydantic import Field

from forktree.backend.server.schemas.base import Model


class ScoreRequest(Model):
    """How likely the model finds each of several continuations of one text."""

    model: str | None = Field(None, description="one of the names that `/v1/models` lists")
    prompt: str | None = Field(None, description="absent is nothing but the start of a text")
    options: list[str] = Field(min_length=1, max_length=1024)
    unconditional: bool | None = Field(None, description="also how likely each is without the prompt")
