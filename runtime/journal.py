"""The journal of a map: an SQLite file that a killed run resumes from.

Each finished row is one commit, made before anybody sees its result, so that after a kill at any moment a row is
either wholly there or not at all. Failed rows are not kept: resuming tries them again. The file remembers the
program and the rows; a change of either is refused unless the caller says what to do.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forktree.lang.errors import IncompleteError, LanguageError
from forktree.runtime.cursor import Cursor
from forktree.runtime.record import Meta
from forktree.runtime.run import Run
from forktree.runtime.state import State
from forktree.runtime.stored import restore, restore_branch, store, store_branch
from forktree.runtime.values import Value

_FORMAT = "forktree.journal/1"
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
        on_change: when the program or the rows are not those of the file: "refuse" (the default), "rerun" the
            rows that changed (all of them, when the program did), or "keep" the finished rows as they are.
    """

    path: str | Path
    on_change: Literal["refuse", "rerun", "keep"] = "refuse"


class JournalFile:
    """One open journal. Used by the thread or task that takes a map's results."""

    def __init__(self, journal: Journal, program: str, rows: str | None) -> None:
        """Open or create the file.

        Args:
            program: fingerprint of the program.
            rows: fingerprint of all rows, or None where they come one by one and are compared then.

        Raises:
            LanguageError: the file is no journal, is in use, or belongs to another program or other rows.
        """
        self._path = Path(journal.path)
        self._on_change = journal.on_change
        if journal.on_change not in ("refuse", "rerun", "keep"):
            raise LanguageError(f'on_change must be "refuse", "rerun" or "keep", not {journal.on_change!r}')
        try:
            self._db = sqlite3.connect(self._path, timeout=1.0, check_same_thread=False, isolation_level=None)
            self._open()
            self._compare(program, rows)
        except sqlite3.Error as error:
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
            raise LanguageError(f"{self._path} has the format {self._about('format')!r}, not {_FORMAT!r}")

    def _about(self, key: str) -> str | None:
        found = self._db.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def _compare(self, program: str, rows: str | None) -> None:
        known = self._about("program")
        if known is not None and known != program:
            self._refuse("the program has changed")
            if self._on_change == "rerun":
                self._db.execute("DELETE FROM rows")
        known_rows = self._about("rows")
        if rows is not None and known_rows is not None and known_rows != rows:
            self._refuse("the rows have changed")
        self._db.execute("INSERT OR REPLACE INTO about VALUES ('program', ?)", (program,))
        if rows is not None:
            self._db.execute("INSERT OR REPLACE INTO about VALUES ('rows', ?)", (rows,))

    def _refuse(self, what: str) -> None:
        if self._on_change == "refuse":
            raise LanguageError(
                f"{what} since {self._path} was written; use another file, or "
                'journal=Journal(path, on_change="rerun" or "keep")'
            )

    def find(self, index: int, row: Any) -> tuple[str, str, str] | None:
        """Value, variables and branch of a finished row, as stored.

        Raises:
            LanguageError: the row is another than the one that was finished, or cannot be compared.
        """
        found = self._db.execute("SELECT row, value, variables, branch FROM rows WHERE idx = ?", (index,)).fetchone()
        if found is None:
            return None
        if found[0] != fingerprint(row):
            self._refuse(f"row {index} has changed")
            if self._on_change == "rerun":
                return None
        return found[1], found[2], found[3]

    def write(self, index: int, row: Any, state: State, value: Any) -> None:
        """Keep a finished row: one commit.

        Raises:
            LanguageError: the row, the value or a variable cannot be stored.
        """
        record = (index, fingerprint(row), store(value), _store_variables(state), store_branch(state._branch()))
        self._db.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", record)

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        with suppress(AttributeError):
            self._db.close()


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
    names = {name: _restored(kept) for name, kept in restore(variables).items()}
    cursor = Cursor(run, 0, names, None)
    cursor.tip = restore_branch(branch)
    if cursor.tip is not None:
        cursor.feed.push(cursor.tip.text())
    run.finish_body(restore(value))
    return State(cursor)


def _restored(kept: dict[str, Any]) -> Value:
    value = Value()
    meta = kept["meta"] or Meta()
    if "incomplete" not in kept:
        value.set(kept["value"], meta)
        return value

    def fail() -> None:
        raise IncompleteError(kept["incomplete"], text=kept["text"])

    value.set_lazily(fail, meta)
    return value


def fingerprint(value: Any) -> str:
    """A checksum of plain data or typed values. Raises LanguageError for what cannot be stored."""
    return hashlib.sha256(store(value).encode()).hexdigest()


def fingerprint_rows(rows: Any) -> str | None:
    """Of a list of rows; None for rows that come one by one."""
    return fingerprint(list(rows)) if isinstance(rows, Sequence) else None
