"""Every error that forktree raises on purpose, in one tree.

    ForktreeError
    ├── LanguageError                  the program is wrong
    │   ├── ParameterError             a parameter's value is out of range (also a ValueError)
    │   ├── UndefinedVariableError     a name that was never assigned is read (also a KeyError)
    │   ├── TraceError                 a line that cannot be traced
    │   └── RoleError                  a turn order that the chat template forbids
    ├── ConstraintError                a constraint cannot be honoured in full (also a ValueError)
    ├── IncompleteError                a constrained output was cut, so it has no value
    ├── JournalError                   a map's journal cannot be written or read any more; `.results` holds what is done
    ├── BackendError                   the backend could not answer
    │   ├── AuthenticationError        a key is missing or refused
    │   ├── RateLimitError             too many requests; `.retry_after` seconds
    │   ├── ContextLengthError         the request can never fit; `.limit` and `.tokens`
    │   ├── TimeoutError               no answer in time (also the builtin TimeoutError)
    │   ├── UnsupportedError           the backend cannot do what was asked
    │   └── ServerError                the other side failed
    ├── EngineError                    the local engine or its model failed
    │   └── ModelError                 a model is missing, broken or unusable
    └── RunCancelledError              the run was cancelled before this value existed

A user's own exception is never wrapped: it comes out of `run` as itself.
"""

from __future__ import annotations

import builtins
from typing import Any


class ForktreeError(Exception):
    """Root of everything that forktree raises on purpose."""


class LanguageError(ForktreeError):
    """The program is wrong: the message names the line and what would be right."""


class ParameterError(LanguageError, ValueError):
    """A parameter's value is out of range: the message names it, the value and the range."""


class UndefinedVariableError(LanguageError, KeyError):
    """A variable is read that no path of the program assigned."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class TraceError(LanguageError):
    """The program does something that only a run can know."""


class RoleError(LanguageError):
    """The model's chat template forbids this order of turns."""


class ConstraintError(ForktreeError, ValueError):
    """A constraint cannot be honoured in full, or nothing can satisfy it.

    Attributes:
        pointer: JSON pointer into the schema, or the position in a pattern or grammar; "" is the whole.
        reason: what is wrong there, without the pointer.
    """

    def __init__(self, reason: str, *, pointer: str = "") -> None:
        super().__init__(f"{reason} (at {pointer})" if pointer else reason)
        self.pointer = pointer
        self.reason = reason


class IncompleteError(ForktreeError):
    """A constrained output was cut (by `max_tokens`, say) before it was legal; `.text` holds what there is."""

    def __init__(self, message: str, *, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class JournalError(ForktreeError):
    """The journal of a map that runs cannot be written or read, because the disk is full, say. The map has stopped.

    Attributes:
        results: the finished rows that nobody has seen: from `map` all of them, from `imap` those not yet yielded.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.results: list[Any] = []


class BackendError(ForktreeError):
    """The backend could not answer; the cause, where there is one, is chained."""


class AuthenticationError(BackendError):
    """A key is missing or was refused."""


class RateLimitError(BackendError):
    """Too many requests. `.retry_after` is the wait that the service asked for, in seconds, or None."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ContextLengthError(BackendError):
    """The request can never fit. `.limit` and `.tokens` are counts of tokens."""

    def __init__(self, message: str, *, limit: int, tokens: int) -> None:
        super().__init__(message)
        self.limit = limit
        self.tokens = tokens


class TimeoutError(BackendError, builtins.TimeoutError):
    """No answer in the time allowed."""


class UnsupportedError(BackendError):
    """The backend cannot do what was asked; it says so before any work is done."""


class ServerError(BackendError):
    """The service on the other side failed."""


class EngineError(ForktreeError):
    """The local engine or its model failed."""


class ModelError(EngineError):
    """A model is missing, broken or unusable; the message says what to do."""


class RunCancelledError(ForktreeError):
    """The run was cancelled before this value existed."""
