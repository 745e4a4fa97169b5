"""What holds prompts or answers is readable by its owner alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from forktree.backend.cache.addresses import page_addresses
from forktree.backend.cache.disk import DiskTier
from forktree.backend.fake import Fake
from forktree.backend.replay import Replay
from forktree.lang.expressions import gen
from forktree.runtime.function import function


@function
def program(s, q):
    s += gen("x")
    return s["x"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_journal_and_what_sqlite_puts_beside_it(tmp_path: Path, umask: int) -> None:
    results = program.using(backend=Fake(["a", "b"])).imap([("q",), ("r",)], journal=tmp_path / "rows.db")
    next(results)
    files = {path.name: mode(path) for path in tmp_path.iterdir()}
    results.close()
    assert files.keys() >= {"rows.db", "rows.db-wal"}
    assert set(files.values()) == {0o600}
    assert mode(tmp_path / "rows.db") == 0o600


def test_a_journal_that_was_there_keeps_the_mode_that_its_owner_gave_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    program.using(backend=Fake(["a"])).map([("q",)], journal=path)
    path.chmod(0o640)
    assert program.using(backend=Fake(["a"])).map([("q",)], journal=path)[0].replayed
    assert mode(path) == 0o640


def test_a_recording_new_or_replaced(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "run.jsonl"
    for _ in range(2):
        with Replay(path, Fake(["a"])) as recording:
            program.run("q", backend=recording)
        assert mode(path) == 0o600
        path.chmod(0o644)


def test_the_pages_of_the_disk_tier_and_its_folders(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "cache"
    disk = DiskTier(root, "model", limit_bytes=1 << 20)
    (address,) = page_addresses("", [1, 2], 2, 2)
    assert disk.write(address, b"keys and values")
    path = disk.path_of(address)
    assert mode(path) == 0o600
    assert [mode(folder) for folder in (path.parent, path.parent.parent, root)] == [0o700] * 3
    disk.write_notes("which prompts recur")
    files = [file for file in root.rglob("*") if file.is_file()]
    assert [mode(file) for file in files] == [0o600] * 2
