"""The backend that programs use when they name none."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable

from forktree.lang.errors import LanguageError, UnsupportedError
from forktree.runtime.protocol import (
    Backend,
    Branch,
    Capabilities,
    Completion,
    Delta,
    GenerateRequest,
    ScoreRequest,
    ScoreResult,
)


class NoBackend:
    """Stands in a finished state that was restored without one: it can be read, and not continued."""

    name = "no backend"
    capabilities = Capabilities()

    def stream(self, request: GenerateRequest) -> AsyncIterator[Delta | Completion]:
        raise UnsupportedError("this state was restored from a journal; run the program to continue it")

    async def score(self, request: ScoreRequest) -> ScoreResult:
        raise UnsupportedError("this state was restored from a journal; run the program to continue it")

    async def prefill(self, branch: Branch) -> None:
        """Nothing to compute."""

    async def tokens(self, branch: Branch | None) -> tuple[int, ...]:
        raise UnsupportedError("this state was restored from a journal, without a backend that knows its tokens")

    def close(self) -> None:
        """Nothing to release."""


class Defaults:
    """The process's default backend: the one given by `use`, else what the factory makes, once."""

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self._factory: Callable[[], Backend] | None = None

    def set_factory(self, factory: Callable[[], Backend]) -> None:
        """What makes the backend of a process that chose none; called at the first run."""
        self._factory = factory

    def use(self, backend: Backend | None) -> None:
        self._backend = backend

    def backend(self) -> Backend:
        """The default backend.

        Raises:
            LanguageError: there is none and nothing to make one.
        """
        if self._backend is None:
            if self._factory is None:
                raise LanguageError("no backend: call ft.use(backend), or give backend= to run")
            self._backend = self._factory()
        return self._backend


@functools.cache
def get_defaults() -> Defaults:
    """The process's defaults."""
    return Defaults()


def use(backend: Backend | None) -> None:
    """Programs that name no backend use this one from now on; None goes back to the built-in default.

    Raises:
        LanguageError: it is not a backend.
    """
    get_defaults().use(None if backend is None else checked_backend(backend))


def checked_backend(backend: Backend) -> Backend:
    """The backend itself. Raises LanguageError: it is not one, or it is the class of one."""
    if isinstance(backend, type):
        name = backend.__name__
        own = f"ft.{name}" if backend.__module__.startswith("forktree.") else name
        arguments = "script" if name == "Fake" else ""
        raise LanguageError(f"{name} is a class, and a backend is made of it; write {own}({arguments})")
    if not callable(getattr(backend, "stream", None)) or not hasattr(backend, "capabilities"):
        raise LanguageError(f"{backend!r} is not a backend; give ft.Local(), ft.Fake(script) or another")
    return backend
