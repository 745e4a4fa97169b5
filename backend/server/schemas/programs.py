"""`POST /v1/programs`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from forktree.backend.server.schemas.base import Model


class ProgramsRequest(Model):
    """A program as `Program.to_json` writes it, and the rows to run it on, each stored as a journal stores a dict."""

    program: dict[str, Any]
    rows: list[dict[str, Any]] = Field(min_length=1, max_length=10_000)
    branch: list[list[Any]] | None = Field(None, description="what stands before the program, as a journal stores it")
    sampling: dict[str, Any] | None = Field(None, description="parameters of `forktree.Sampling`, by name")
    model: str | None = Field(None, description="one of the names that `/v1/models` lists")
