"""A full disk loses nothing that was done, and is told as what it is. (A limit on files' sizes stands for it.)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fault_programs
import pytest


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
