"""A full disk loses nothing that was done, and is told as what it is. (A limit on files' sizes stands for it.)"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import fault_programs
import pytest
from fault_programs import ROWS

import forktree as ft
from forktree.backend.fake import Fake


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    command = [sys.executable, fault_programs.__file__, "full_disk"]
    folder = tmp_path_factory.mktemp("full")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(fault_programs.__file__).parent)}


def test_a_map_whose_journal_cannot_be_written_stops_with_what_is_done_and_resumes(report) -> None:
    found = report["journal"]
    assert "rows.db" in found["message"]
    assert "is the disk full?" in found["message"]
    finished = found["finished"]
    assert finished == list(range(len(finished)))  # the row that could not be written too
    assert 1 < len(finished) < 12
    assert [row[0] for row in found["again"]] == list(range(12))
    assert [row[1] for row in found["again"]] == [index < len(finished) - 1 for index in range(12)]
    assert [row[2] for row in found["again"]] == [f"row {index}"[:5] for index in range(12)]


def test_a_recording_that_cannot_be_written_says_so_and_stays_whole(report) -> None:
    found = report["replay"]
    assert "run.jsonl" in found["message"]
    assert "could not be recorded" in found["message"]
    assert found["replayed"] == [True, True]


def test_a_tier_that_cannot_be_written_costs_a_warning_and_leaves_no_file(report) -> None:
    found = report["tier"]
    assert found["same"]
    assert found["files"] == []
    assert "not kept" in found["warnings"][0]


class FullDatabase:
    """A connection whose rows can be written only so often, or not be read at all."""

    def __init__(self, database: sqlite3.Connection, num_writes: int, *, reads: bool) -> None:
        self._database, self._num_writes, self._reads = database, num_writes, reads

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        if statement.startswith("INSERT OR REPLACE INTO rows"):
            self._num_writes -= 1
            if self._num_writes < 0:
                raise sqlite3.OperationalError("database or disk is full")
        if "FROM rows WHERE idx" in statement and not self._reads:
            raise sqlite3.OperationalError("disk I/O error")
        return self._database.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch):
    """Let journals take so many rows."""
    connect = sqlite3.connect

    def limit(num_writes: int, *, reads: bool = True) -> None:
        def connect_full(*args: Any, **options: Any) -> FullDatabase:
            return FullDatabase(connect(*args, **options), num_writes, reads=reads)

        monkeypatch.setattr(sqlite3, "connect", connect_full)

    return limit


BOUND = fault_programs.program.using(backend=Fake(lambda request: request.prompt))


def test_a_map_in_order_yields_what_was_written_and_then_stops_with_the_rest(tmp_path, fill) -> None:
    fill(2)
    seen = []

    def take() -> None:
        seen.extend(result.index for result in BOUND.imap(ROWS, journal=tmp_path / "rows.db", concurrency=1))

    with pytest.raises(ft.JournalError, match="row 2 is finished and cannot be written to the journal") as caught:
        take()
    assert seen == [0, 1]
    assert [(result.index, result.value) for result in caught.value.results] == [(2, "row 2 ")]
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)


async def test_the_asynchronous_map_stops_with_what_is_done_too(tmp_path, fill) -> None:
    fill(3)
    with pytest.raises(ft.JournalError) as caught:
        await BOUND.amap(ROWS, journal=tmp_path / "rows.db", concurrency=1)
    assert [result.index for result in caught.value.results] == [0, 1, 2, 3]


def test_a_journal_that_cannot_be_read_starts_no_row(tmp_path, fill) -> None:
    fill(9, reads=False)
    with pytest.raises(ft.JournalError, match="whether row 0 is finished cannot be read"):
        BOUND.map(ROWS, journal=tmp_path / "rows.db")


def test_a_value_that_raises_while_it_is_stored_is_its_own_rows_error(tmp_path) -> None:
    @ft.function
    def returns(s, q):
        value: list[object] = [q]
        if q:
            value.append(value)  # holds itself
        return value

    results = returns.using(backend=Fake([])).map([{"q": 0}, {"q": 1}], journal=tmp_path / "rows.db")
    assert [result.ok for result in results] == [True, False]
