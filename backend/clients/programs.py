"""Whole programs to a forktree server: `POST /v1/programs`, a row a request (docs/backends.md has the form)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from forktree.backend.clients.account import Account
from forktree.backend.clients.http import Transport
from forktree.lang import errors
from forktree.lang.errors import BackendError, ForktreeError, ServerError
from forktree.lang.sampling import Sampling
from forktree.runtime.protocol import StoredRun, Usage

PATH = "programs"
_TOKENS = 1024
"""What the governor counts a program with until it has ended."""


def program_body(program: str, arguments: str, sampling: Sampling | None, branch: Sequence[Any] = ()) -> dict[str, Any]:
    """The body for one row.

    Args:
        program: as `Program.to_json` writes it; `arguments`: an object as a journal stores one.
        branch: what stands before the program, as `steps.stored_branch` writes it.
    """
    body = {"program": json.loads(program), "rows": [json.loads(arguments)]}
    if branch:
        body["branch"] = list(branch)
    return body if sampling is None else {**body, "sampling": sampling_data(sampling)}


def sampling_data(sampling: Sampling) -> dict[str, Any]:
    """The parameters that are given, as JSON data."""
    given = {item.name: getattr(sampling, item.name) for item in fields(sampling)}
    return {name: value for name, value in given.items() if value is not None}


async def run_program(transport: Transport, account: Account, body: Mapping[str, Any]) -> StoredRun:
    """The one row's outcome.

    Raises:
        ForktreeError: what the program failed with there, as the error that it is.
        ServerError: the answer ends without the row.
    """
    spent = Usage()

    def used() -> int | None:
        return spent.prompt_tokens + spent.completion_tokens or None

    async with (
        transport.exchange(PATH, body, _TOKENS, used) as answer,
        contextlib.aclosing(answer.events()) as events,
    ):
        async for event in events:
            if event.kind == "row":
                row = transport.parsed(event.data)
                spent = _usage_of(row)
                account.note_answer(spent)
                return _outcome(transport, row, spent)
            if event.kind == "error":
                raise error_of(transport.parsed(event.data))
    raise ServerError(f"{transport.place} ended its answer to a program without its row")


def _outcome(transport: Transport, row: Any, usage: Usage) -> StoredRun:
    try:
        if row["ok"]:
            return StoredRun(row["value"], row["variables"], row["branch"], usage)
        error = row["error"]
    except (KeyError, TypeError) as problem:
        raise transport.unreadable(row) from problem
    raise error_of(error)


def _usage_of(row: Any) -> Usage:
    given = row.get("usage") if isinstance(row, dict) else None
    counts = given if isinstance(given, dict) else {}
    return Usage(*(int(counts.get(item.name) or 0) for item in fields(Usage)))


_FIELDS = ("pointer", "text", "retry_after", "limit", "tokens")


def error_data(error: BaseException) -> dict[str, Any]:
    """An error as JSON data: its class, its message, and its own fields."""
    data: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    return {**data, **{name: getattr(error, name) for name in _FIELDS if hasattr(error, name)}}


def error_of(data: Any) -> BaseException:
    """The inverse; what is no error of ours is a BackendError that names it."""
    data = data if isinstance(data, Mapping) else {"message": str(data)}
    name, message = str(data.get("type") or "error"), str(data.get("message") or "")
    cls = getattr(errors, name, None)
    if not (isinstance(cls, type) and issubclass(cls, ForktreeError)):
        return BackendError(f"the program failed on the server: {name}: {message}")
    if cls is errors.ContextLengthError:
        return cls(message, limit=int(data.get("limit") or 0), tokens=int(data.get("tokens") or 0))
    error = cls(message)
    for field in ("pointer", "text", "retry_after"):
        if data.get(field) is not None and hasattr(error, field):
            setattr(error, field, data[field])
    return error
