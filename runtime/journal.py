"""The journal of a map: an SQLite file that a killed run resumes from.

Each finished row is one commit, made before anybody sees its result, so that after a kill at any moment a row is
either wholly there or not at all. Failed rows are not kept: resuming tries them again. The file remembers the
program, part by part, and each row by its place and content; a change of either is refused unless the caller says
what to do. Whatever is said, a finished row answers only for a row of the same place and content.

A new file is readable by its owner alone, since it holds what was asked and answered; one that is there keeps its mode.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forktree.lang.errors import IncompleteError, JournalError, LanguageError
from forktree.runtime.cursor import Cursor
from forktree.runtime.record import Meta
from forktree.runtime.run import Run
from forktree.runtime.state import State
from forktree.runtime.stored import restore, restore_branch, store, store_branch
from forktree.runtime.values import Value

_FORMAT = "forktree.journal/2"
_CHOICES = ("refuse", "rerun", "keep")
_SHORT = 16
"""Digits of a row's checksum in the list of all rows; the row itself keeps the whole one."""

_MAX_NAMED = 4
"""Changed parts that a refusal names."""
_TABLES = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rows (
    idx INTEGER PRIMARY KEY, row TEXT NOT NULL, value TEXT NOT NULL, variables TEXT NOT NULL, branch TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Journal:
    """Where a map keeps its finished rows, for `journal=`.

    Attributes:
        on_change: when the program or the rows are not those of the file: "refuse" (the default); "rerun": run
            the rows that are new or changed, and all of them when the program changed; "keep": run the rows that
            are new or changed, and keep the others' results although the program changed.

    Raises:
        LanguageError: another `on_change`.
    """

    path: str | Path
    on_change: Literal["refuse", "rerun", "keep"] = "refuse"

    def __post_init__(self) -> None:
        if self.on_change not in _CHOICES:
            raise LanguageError(f'on_change must be "refuse", "rerun" or "keep", not {self.on_change!r}')


class JournalFile:
    """One open journal. Used by the thread or task that takes a map's results."""

    def __init__(self, journal: Journal, program: Mapping[str, str], rows: Iterable[Any]) -> None:
        """Open or create the file.

        Args:
            program: the checksum of each part of the program, by its name.
            rows: all of them; those of an iterator are compared when they come.

        Raises:
            LanguageError: the file is no journal, is in use, or belongs to another program or other rows.
        """
        self._path = Path(journal.path)
        self._on_change = journal.on_change
        try:
            _make_private(self._path)
            self._db = sqlite3.connect(self._path, timeout=1.0, check_same_thread=False, isolation_level=None)
            self._open()
            self._compare_program(dict(program))
            if isinstance(rows, Sequence):
                self._compare_rows([fingerprint(row)[:_SHORT] for row in rows])
        except (sqlite3.Error, OSError) as error:
            self.close()
            in_use = " (another run has it open)" if "locked" in str(error) else ""
            raise LanguageError(f"{self._path} cannot be used as a journal{in_use}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")  # enough for a killed process, whose writes the system keeps
        self._db.executescript(_TABLES)
        self._db.execute("INSERT OR IGNORE INTO about VALUES ('format', ?)", (_FORMAT,))
        if self._about("format") != _FORMAT:
            raise LanguageError(
                f"{self._path} has the format {self._about('format')!r}, not {_FORMAT!r}: another version of forktree "
                "wrote it; use another file"
            )

    def _about(self, key: str) -> str | None:
        found = self._db.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def _remember(self, key: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (key, json.dumps(value)))

    def _compare_program(self, program: dict[str, str]) -> None:
        known = self._about("program")
        before = program if known is None else json.loads(known)
        if before != program:
            self._refuse(
                f"the program has changed since {self._path} was written ({_changes(before, program)})",
                '"rerun" runs every row again, "keep" keeps the results of the old program',
            )
            if self._on_change == "rerun":
                self._db.execute("DELETE FROM rows")
        self._remember("program", program)

    def _compare_rows(self, rows: list[str]) -> None:
        known = self._about("rows")
        before = rows if known is None else json.loads(known)
        if before != rows:
            changed = sum(old != new for old, new in zip(before, rows, strict=False))
            more = len(rows) - len(before)
            told = [f"{changed} of {len(before)} changed" if changed else "", _count_of(more)]
            self._refuse(
                f"the rows have changed since {self._path} was written ({', '.join(filter(None, told))})",
                '"keep" runs just the rows that are new or changed, and takes the others from the file',
            )
        self._remember("rows", rows)

    def _refuse(self, what: str, remedy: str) -> None:
        if self._on_change == "refuse":
            raise LanguageError(f"{what}; use another file, or journal=ft.Journal(path, on_change=…): {remedy}")

    def find(self, index: int, row: Any) -> tuple[str, str, str] | None:
        """Value, variables and branch of a finished row, as stored.

        Raises:
            LanguageError: the row is another than the one that was finished, or cannot be compared.
            JournalError: the file cannot be read.
        """
        with self._using(f"whether row {index} is finished cannot be read from"):
            query = "SELECT row, value, variables, branch FROM rows WHERE idx = ?"
            found = self._db.execute(query, (index,)).fetchone()
        if found is None:
            return None
        if found[0] != fingerprint(row):
            self._refuse(
                f"row {index} has changed since {self._path} was written",
                '"keep" runs just the rows that are new or changed, and takes the others from the file',
            )
            return None
        return found[1], found[2], found[3]

    def write(self, index: int, row: Any, state: State, value: Any) -> None:
        """Keep a finished row: one commit.

        Raises:
            LanguageError: the row, the value or a variable cannot be stored.
            JournalError: the file cannot be written.
        """
        record = (index, fingerprint(row), *store_state(state, value))
        with self._using(f"row {index} is finished and cannot be written to"):
            self._db.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", record)

    @contextmanager
    def _using(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise JournalError(
                f"{what} the journal {self._path} ({error}): is the disk full? The rows written before are safe; "
                "run the map again with this journal"
            ) from error

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        with suppress(AttributeError):
            self._db.close()


def _make_private(path: Path) -> None:
    """Make the file, mode 0600 whatever the umask; what SQLite puts beside it takes its mode. One that exists is left
    as it is."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    path.chmod(0o600)


def store_state(state: State, value: Any) -> tuple[str, str, str]:
    """The value, the variables and the branch of a finished run, as text.

    Raises:
        LanguageError: the value or a variable cannot be stored.
    """
    return store(value), _store_variables(state), store_branch(state._branch())


def _store_variables(state: State) -> str:
    variables = {}
    for name, value in state._cursor.names.items():
        try:
            variables[name] = {"value": value.get(), "meta": value.meta}
        except IncompleteError as error:
            variables[name] = {"incomplete": str(error), "text": error.text, "meta": value.meta}
    return store(variables)


def restore_state(run: Run, stored: tuple[str, str, str]) -> State:
    """A finished state over `run`, as the journal kept it."""
    value, variables, branch = stored
    cursor = Cursor(run, 0, restored_names(variables), None)
    cursor.tip = restore_branch(branch)
    if cursor.tip is not None:
        cursor.feed.push(cursor.tip.text())
    run.finish_body(restore(value))
    return State(cursor)


def restored_names(variables: str) -> dict[str, Value]:
    """The variables that `store_state` kept, by name. Raises LanguageError: they are not what it writes."""
    stored = restore(variables)
    if not isinstance(stored, dict):
        raise LanguageError(f"stored variables are an object, not {type(stored).__name__}")
    return {name: _restored(name, kept) for name, kept in stored.items()}


def _restored(name: str, kept: Any) -> Value:
    if not isinstance(kept, dict) or not _is_whole(kept):
        raise LanguageError(f"the stored variable {name!r} cannot be read")
    value = Value()
    meta = kept["meta"] or Meta()
    if "incomplete" not in kept:
        value.set(kept["value"], meta)
        return value

    def fail() -> None:
        raise IncompleteError(kept["incomplete"], text=kept["text"])

    value.set_lazily(fail, meta)
    return value


def _is_whole(kept: dict[str, Any]) -> bool:
    is_cut = isinstance(kept.get("incomplete"), str) and isinstance(kept.get("text"), str)
    return (is_cut or "value" in kept) and "meta" in kept and isinstance(kept["meta"], Meta | None)


def fingerprint(value: Any) -> str:
    """A checksum of plain data or typed values. Raises LanguageError for what cannot be stored."""
    return hashlib.sha256(store(value).encode()).hexdigest()


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The names of parts that differ, the most telling first: code's own changes before what is new or gone."""
    common = [name for name in now if name in before and now[name] != before[name]]
    new = [f"{name} is new" for name in now if name not in before]
    gone = [f"{name} is gone" for name in before if name not in now]
    named = [*common, *new, *gone]
    more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    return ", ".join(named[:_MAX_NAMED]) + more


def _count_of(more: int) -> str:
    if more == 0:
        return ""
    return f"{more} were added at the end" if more > 0 else f"{-more} are gone from the end"
