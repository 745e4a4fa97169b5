"""Many rows through one program: bounded concurrency, bounded memory, each row's failure kept as its result.

A batch is driven by whoever takes its results: rows start while fewer than `concurrency` run and while not too
many finished ones wait for their turn. So a slow reader of `imap` holds back new rows, and nothing piles up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forktree.lang import ir
from forktree.lang.errors import JournalError, LanguageError, ParameterError
from forktree.runtime.executor import MAX_BODY_THREADS, get_executor
from forktree.runtime.journal import Journal, JournalFile, restore_state
from forktree.runtime.order import depth_first
from forktree.runtime.progress import ProgressBar
from forktree.runtime.values import Callback

if TYPE_CHECKING:
    from forktree.runtime.mappable import Mappable
    from forktree.runtime.run import Run
    from forktree.runtime.state import State

Row = Mapping[str, Any] | tuple[Any, ...]
AnyJournal = Journal | str | Path | None
OnError = Literal["return", "raise"]

_ASYNC_CONCURRENCY = 256
_MOST_AHEAD = 32  # rows that the backend is told of before they start
_WINDOW = 4
"""Finished rows that may wait for an earlier one, as a multiple of the concurrency."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one row.

    Attributes:
        state: the finished state; None for a row that could not even start.
        value: what the body returned.
        error: what the row failed with, else None.
        replayed: it came from a journal, at no call.
    """

    ok: bool
    state: State | None
    value: Any
    error: BaseException | None
    row: Row
    index: int
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class MapOptions:
    """How rows are run; see `Mappable.map` for what each means.

    Raises:
        ParameterError: a concurrency under one.
        LanguageError: an unknown `on_error`.
    """

    concurrency: int | None = None
    progress: bool = False
    journal: AnyJournal = None
    on_error: OnError = "return"
    ordered: bool = True

    def __post_init__(self) -> None:
        limit = self.concurrency
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            where = ir.at(ir.caller_source())
            raise ParameterError(f"concurrency must be a whole number of at least 1, not {limit!r}{where}")
        if not isinstance(self.journal, Journal | str | Path | None):
            raise LanguageError(f"journal= takes a file's path or ft.Journal(path), not {self.journal!r}")
        if self.on_error not in ("return", "raise"):
            raise LanguageError(f'on_error must be "return" or "raise", not {self.on_error!r}')

    def limit_for(self, program: Mappable) -> int:
        """How many of the program's rows run at once."""
        if self.concurrency is not None:
            return self.concurrency
        return _ASYNC_CONCURRENCY if program.is_async else MAX_BODY_THREADS


class Batch:
    """The rows of one map in flight. Owned by the thread or task that takes the results."""

    def __init__(
        self,
        program: Mappable,
        rows: Iterable[tuple[int, Row]],
        concurrency: int,
        *,
        ordered: bool,
        journal: JournalFile | None,
        notify: Callable[[Result], None],
        looks_ahead: bool = False,
    ) -> None:
        self._program = program
        self._journal = journal
        self._rows = iter(rows)
        self._ahead: deque[tuple[int, Row]] | None = deque() if looks_ahead else None
        self._concurrency = concurrency
        self._ordered = ordered
        self._notify = notify
        self._running: dict[int, Run] = {}
        self._waiting: dict[int, Result] = {}
        self._next_index = 0
        self._is_exhausted = False

    def fill(self) -> None:
        """Start rows while there is room."""
        room = _WINDOW * self._concurrency
        while (
            not self._is_exhausted
            and len(self._running) < self._concurrency
            and len(self._running) + len(self._waiting) < room
        ):
            try:
                index, row = self._ahead.popleft() if self._ahead else next(self._rows)
            except StopIteration:
                self._is_exhausted = True
                return
            self._start(index, row)
        if self._ahead is not None and len(self._ahead) < min(self._concurrency, _MOST_AHEAD) // 2 + 1:
            self._look_ahead(self._ahead)

    def _look_ahead(self, ahead: deque[tuple[int, Row]]) -> None:
        """Let the backend know of rows that start when others have ended."""
        more = list(itertools.islice(self._rows, min(self._concurrency, _MOST_AHEAD)))
        ahead.extend(more)
        coming = [row for index, row in more if isinstance(row, Mapping | tuple) and not self._is_stored(index, row)]
        if coming:
            self._program.announce(coming)

    def _is_stored(self, index: int, row: Row) -> bool:
        return self._journal is not None and self._journal.find(index, row) is not None

    def _start(self, index: int, row: Row) -> None:
        args, kwargs = row_arguments(row, index)
        stored = None if self._journal is None else self._journal.find(index, row)
        if stored is not None:
            self._waiting[index] = _replayed(self._program.idle_run(), stored, row, index)
            return

        def adopt(run: Run) -> None:
            self._running[index] = run  # from here on an interrupt, whenever it comes, finds the run and stops it

        try:
            run, state = self._program.start(args, kwargs, adopt)
        except Exception as error:
            self._running.pop(index, None)
            self._waiting[index] = Result(False, None, None, error, row, index)
            return
        run.on_settled(lambda: self._notify(_result_of(run, state, row, index)))

    def ready(self) -> Iterator[Result]:
        """Results whose turn it is."""
        if not self._ordered:
            waiting, self._waiting = self._waiting, {}
            yield from waiting.values()
            return
        while self._next_index in self._waiting:
            yield self._waiting.pop(self._next_index)
            self._next_index += 1

    def finish(self, result: Result) -> None:
        """A row that `notify` reported; it is in the journal before anybody sees it.

        Raises:
            JournalError: it cannot be written; it waits with the others.
        """
        del self._running[result.index]
        self._waiting[result.index] = result
        self._waiting[result.index] = self._kept(result)

    def _kept(self, result: Result) -> Result:
        if self._journal is None or not result.ok:
            return result
        assert result.state is not None
        try:
            self._journal.write(result.index, result.row, result.state, result.value)
        except JournalError:
            raise
        except Exception as error:  # our own, or one of a value's class that says how it is stored
            return replace(result, ok=False, value=None, error=error)
        return result

    @property
    def unseen(self) -> list[Result]:
        """Finished rows whose turn has not come."""
        return list(self._waiting.values())

    @property
    def has_ready(self) -> bool:
        """Is there a result whose turn it is?"""
        return self._next_index in self._waiting if self._ordered else bool(self._waiting)

    @property
    def is_over(self) -> bool:
        return self._is_exhausted and not self._running and not self._waiting

    def cancel(self) -> None:
        """Stop what still runs."""
        for run in self._running.values():
            run.cancel()


class Mailbox:
    """Finished rows on their way to the thread that takes them; a body that waits here helps nested ones."""

    def __init__(self) -> None:
        self._results: deque[Result] = deque()
        self._waiters: list[Callback] = []

    def put(self, result: Result) -> None:
        """From any thread."""
        self._results.append(result)
        waiters, self._waiters = self._waiters, []
        for callback in waiters:
            callback()

    def take(self) -> Result:
        """The next one; waits for it."""
        get_executor().wait(lambda: bool(self._results), self._on_put, instead="await f.amap(...)")
        return self._results.popleft()

    def _on_put(self, callback: Callback) -> None:
        self._waiters.append(callback)
        if self._results:
            callback()


def row_arguments(row: Row, index: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a row gives its program. Raises LanguageError: it is no dict and no tuple."""
    if isinstance(row, Mapping):
        return (), dict(row)
    if isinstance(row, tuple):
        return row, {}
    raise LanguageError(f"row {index} is a dict of arguments or a tuple, not {row!r}; write ({_shown(row)},)")


def _shown(row: object) -> str:
    text = repr(row)
    return text if len(text) <= 40 else "row"


def check_rows(rows: object) -> None:
    """Raises LanguageError: one row where a list of rows is wanted, or no rows at all."""
    if isinstance(rows, Mapping):
        raise LanguageError(f"a map takes a list of rows, not one row; write [{_shown(rows)}]")
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable | Sequence):
        raise LanguageError(f"a map takes a list of rows, each a dict of arguments or a tuple, not {rows!r}")


def _replayed(run: Run, stored: tuple[str, str, str], row: Row, index: int) -> Result:
    try:
        state = restore_state(run, stored)
    except LanguageError as error:
        return Result(False, None, None, error, row, index, replayed=True)
    return Result(True, state, run.body.get(), None, row, index, replayed=True)


def _result_of(run: Run, state: State, row: Row, index: int) -> Result:
    try:
        run.raise_unhandled()
        return Result(True, state, run.body.get(), None, row, index)
    except BaseException as error:
        return Result(False, state, None, error, row, index)


def run_map(program: Mappable, rows: Iterable[Row], options: MapOptions) -> list[Result]:
    """All results. What ends a map early, Ctrl-C or a JournalError, carries what is done as `.results`."""
    results: list[Result] = []
    try:
        for result in iterate_map(program, rows, _unwaiting(options)):
            results.append(result)
    except KeyboardInterrupt as interrupt:
        interrupt.results = _in_order(results, options)  # type: ignore[attr-defined]
        interrupt.add_note(f"{len(results)} rows were finished; they are in this exception's .results")
        raise
    except JournalError as error:
        error.results = _in_order([*results, *error.results], options)
        raise
    return _in_order(results, options)


async def run_map_async(program: Mappable, rows: Iterable[Row], options: MapOptions) -> list[Result]:
    """As `run_map`, in any event loop."""
    results: list[Result] = []
    try:
        async for result in iterate_map_async(program, rows, _unwaiting(options)):
            results.append(result)
    except JournalError as error:
        error.results = _in_order([*results, *error.results], options)
        raise
    return _in_order(results, options)


def _unwaiting(options: MapOptions) -> MapOptions:
    """For a map that keeps all results: none has to wait for its turn, but the first failure is the first in order."""
    return options if options.on_error == "raise" else replace(options, ordered=False)


def _in_order(results: list[Result], options: MapOptions) -> list[Result]:
    return sorted(results, key=lambda result: result.index) if options.ordered else results


def _numbered(program: Mappable, rows: Iterable[Row], options: MapOptions) -> Iterable[tuple[int, Row]]:
    """Rows with their numbers, in the order in which they start: as they come, where each waits for its turn."""
    if options.ordered or not isinstance(rows, Sequence):
        return enumerate(rows)
    for index, row in enumerate(rows):
        row_arguments(row, index)
    return ((index, rows[index]) for index in depth_first(program.beginnings(rows)))


def iterate_map(program: Mappable, rows: Iterable[Row], options: MapOptions) -> Iterator[Result]:
    """Results one after another. Leaving the iteration cancels what still runs.

    Raises:
        LanguageError: on the loop's thread, at once.
    """
    if get_executor().is_loop_thread:
        raise LanguageError("map would block the loop here: await f.amap(...), or async for over f.aimap(...)")
    return _iterate(program, rows, options)


def _iterate(program: Mappable, rows: Iterable[Row], options: MapOptions) -> Iterator[Result]:
    finished = Mailbox()
    with _batch(program, rows, options, finished.put) as (batch, bar):
        while True:
            batch.fill()
            if batch.is_over:
                break
            if not batch.has_ready:
                batch.finish(finished.take())
            for result in batch.ready():
                _advance(bar, result)
                yield _checked(result, options.on_error)


async def iterate_map_async(program: Mappable, rows: Iterable[Row], options: MapOptions) -> AsyncIterator[Result]:
    """As `iterate_map`, in any event loop."""
    loop = asyncio.get_running_loop()
    finished: asyncio.Queue[Result] = asyncio.Queue()

    def notify(result: Result) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(finished.put_nowait, result)

    with _batch(program, rows, options, notify) as (batch, bar):
        while True:
            batch.fill()
            if batch.is_over:
                break
            if not batch.has_ready:
                batch.finish(await finished.get())
            for result in batch.ready():
                _advance(bar, result)
                yield _checked(result, options.on_error)


@contextlib.contextmanager
def _batch(
    program: Mappable, rows: Iterable[Row], options: MapOptions, notify: Callable[[Result], None]
) -> Iterator[tuple[Batch, ProgressBar | None]]:
    """The rows in flight, with their journal and bar; at the end, whatever it is, what still runs is stopped."""
    check_rows(rows)
    kept = _open_journal(program, rows, options.journal)
    numbered = _numbered(program, rows, options)
    batch = Batch(
        program,
        numbered,
        options.limit_for(program),
        ordered=options.ordered,
        journal=kept,
        notify=notify,
        looks_ahead=isinstance(rows, Sequence),  # other rows may be long in coming
    )
    try:
        with _bar(program, rows, options.progress) as bar:
            yield batch, bar
    except JournalError as error:
        error.results = batch.unseen
        raise
    finally:
        batch.cancel()
        if kept is not None:
            kept.close()


def _open_journal(program: Mappable, rows: Iterable[Row], journal: AnyJournal) -> JournalFile | None:
    if journal is None:
        return None
    given = journal if isinstance(journal, Journal) else Journal(journal)
    return JournalFile(given, program.fingerprint(), rows)


def _bar(
    program: Mappable, rows: Iterable[Row], progress: bool
) -> contextlib.AbstractContextManager[ProgressBar | None]:
    if not progress:
        return contextlib.nullcontext()
    return ProgressBar(program.name, len(rows) if isinstance(rows, Sequence) else None)


def _advance(bar: ProgressBar | None, result: Result) -> None:
    if bar is not None:
        bar.advance(failed=not result.ok)


def _checked(result: Result, on_error: OnError) -> Result:
    if on_error == "raise" and result.error is not None:
        raise result.error
    return result
