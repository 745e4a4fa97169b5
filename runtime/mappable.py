"""`Mappable`: what a `@function` and a `Program` have in common, running over many rows."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from forktree.lang.keywords import unknown_keyword
from forktree.lang.sampling import Sampling
from forktree.runtime.map import (
    AnyJournal,
    MapOptions,
    OnError,
    Result,
    Row,
    iterate_map,
    iterate_map_async,
    run_map,
    run_map_async,
)
from forktree.runtime.order import Path, paths_by_values

if TYPE_CHECKING:
    from forktree.runtime.run import Run
    from forktree.runtime.state import State


P = ParamSpec("P")
T = TypeVar("T")


def _keywords_checked(method: Callable[P, T]) -> Callable[P, T]:
    """The method, with an error for what a run takes and a map does not: it says where that goes."""
    known = [name for name in inspect.signature(method).parameters if name != "self"]

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if len(args) > 2:
            names = ", ".join(f"{name}=" for name in known[1:])
            raise TypeError(f"{method.__name__}() takes rows alone without a name; name the others: {names}")
        for key in kwargs:
            if key not in known:
                raise TypeError(_explained(args[0], method.__name__, key, known))
        return method(*args, **kwargs)

    return call


def _explained(program: Any, verb: str, key: str, known: list[str]) -> str:
    what = f"{program.name}.{verb}()"
    if key not in ("backend", "sampling", "seed") and key not in _SAMPLING:
        return unknown_keyword(what, key, known)
    if hasattr(program, "using"):
        return f"{what} takes no {key}=; write {program.name}.using({key}=…).{verb}(rows)"
    return f"{what} takes no {key}=; give it in each row, as {{{key!r}: …}}"


_SAMPLING = frozenset(field.name for field in fields(Sampling))


class Mappable(ABC):
    """Something that starts a run for one row, and therefore runs over many."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The program's name."""

    @property
    @abstractmethod
    def is_async(self) -> bool:
        """A run of it occupies no thread."""

    @abstractmethod
    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any], adopt: Callable[[Run], None]) -> tuple[Run, State]:
        """Start a row's run and return at once; `adopt` is given the run before anything of it goes on."""

    @abstractmethod
    def idle_run(self) -> Run:
        """A run that has not begun and has no branch yet, for a row that comes from a journal."""

    @abstractmethod
    def fingerprint(self) -> Mapping[str, str]:
        """A checksum of each part of the program and its backend, by the part's name."""

    def beginnings(self, rows: Sequence[Row]) -> list[Path]:
        """How the prompt of each row begins, as far as that is known without running anything."""
        return paths_by_values(rows)

    def announce(self, rows: Sequence[Row]) -> None:  # noqa: B027  (nothing is known of a Python body)
        """Tell the backend how the prompts of rows that start soon begin, as far as that is known."""

    @_keywords_checked
    def map(
        self,
        rows: Iterable[Row],
        *,
        concurrency: int | None = None,
        progress: bool = False,
        journal: AnyJournal = None,
        on_error: OnError = "return",
        ordered: bool = True,
    ) -> list[Result]:
        """Run once for each row (a dict of arguments, or a tuple); results in the order of the rows.

        Rows of a list that begin alike are started one after another, whatever their order (see `runtime/order.py`).
        A row may also hold `backend`, `sampling` and `seed`, as `run` takes them; `f.using(…)` says them for all.

        Args:
            concurrency: most rows at once; by default 64, and 256 for programs that occupy no thread.
            progress: a bar on stderr, with the rate and what is left.
            journal: a file (or a `Journal`) from which a map that was killed resumes.
            on_error: "return" keeps a row's failure as its result; "raise" raises the first.
            ordered: False gives results as they are completed.

        Raises:
            KeyboardInterrupt: Ctrl-C; what runs is stopped, and `.results` holds what is done.
            LanguageError: in an async program, or a journal of another program or other rows.
        """
        return run_map(self, rows, MapOptions(concurrency, progress, journal, on_error, ordered))

    @_keywords_checked
    def imap(
        self,
        rows: Iterable[Row],
        *,
        concurrency: int | None = None,
        progress: bool = False,
        journal: AnyJournal = None,
        on_error: OnError = "return",
        ordered: bool = True,
    ) -> Iterator[Result]:
        """As `map`, one result after another with bounded memory."""
        return iterate_map(self, rows, MapOptions(concurrency, progress, journal, on_error, ordered))

    @_keywords_checked
    async def amap(
        self,
        rows: Iterable[Row],
        *,
        concurrency: int | None = None,
        progress: bool = False,
        journal: AnyJournal = None,
        on_error: OnError = "return",
        ordered: bool = True,
    ) -> list[Result]:
        """As `map`, awaited."""
        return await run_map_async(self, rows, MapOptions(concurrency, progress, journal, on_error, ordered))

    @_keywords_checked
    def aimap(
        self,
        rows: Iterable[Row],
        *,
        concurrency: int | None = None,
        progress: bool = False,
        journal: AnyJournal = None,
        on_error: OnError = "return",
        ordered: bool = True,
    ) -> AsyncIterator[Result]:
        """As `imap`, for `async for`."""
        return iterate_map_async(self, rows, MapOptions(concurrency, progress, journal, on_error, ordered))
