"""Processes that are told to end, or are killed, in the middle of a map, a stream and the writing of a page."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fault_programs
import pytest
from engine_fakes import run_alone
from fault_programs import LONG, ask, over_a_folder

from forktree.backend.cache.disk import page_files, verify

WAIT_S = 60


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, fault_programs.__file__, *arguments]
    env = {**os.environ, "PYTHONPATH": str(Path(fault_programs.__file__).parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_map_that_is_ended_with_rows_under_way_resumes_without_the_finished_ones(tmp_path, number) -> None:
    with running("killed_map", str(tmp_path), "hang") as process:
        seen = [process.stdout.readline().split() for _ in range(8)]
        process.send_signal(number)
        assert process.wait(WAIT_S) == -number
    assert seen == [[str(index), "False"] for index in range(8)]
    with running("killed_map", str(tmp_path), "go") as process:
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    assert out.splitlines() == [f"{index} {index < 8}" for index in range(12)]
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert [calls.count(f"row {index} ") for index in range(8)] == [1] * 8


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_process_ends_at_once_in_the_middle_of_a_stream(number) -> None:
    with running("killed_stream") as process:
        for _ in range(3):
            assert process.stdout.readline() == "token\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT_S)
    if number == signal.SIGINT:
        assert out.splitlines()[-1] == "told: the engine is closed", err
        assert process.returncode == 0
    else:
        assert process.returncode == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_page_whose_writing_was_ended_is_not_there_and_is_computed_again(tmp_path, number, caplog) -> None:
    with running("killed_write", str(tmp_path), "3", number.name) as process:
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == -number, err
    assert len(list(page_files(tmp_path))) == 2
    assert verify(tmp_path) == []
    (begun,) = tmp_path.rglob(".*.tmp")
    os.utime(begun, (0, 0))  # long ago: nobody writes it any more
    one = over_a_folder(str(tmp_path))
    ids, num_cached = ask(one, LONG)
    one.core.close()
    assert ids == list(run_alone(LONG, max_tokens=3).ids)
    assert num_cached <= 4  # the two pages before it, if reading them is worth it
    assert not begun.exists()
    assert not caplog.records


def test_a_file_that_a_crash_of_the_machine_tore_is_skipped_with_a_warning(tmp_path, caplog) -> None:
    one = over_a_folder(str(tmp_path))
    right, _ = ask(one, LONG)
    one.core.close()
    first = min(page_files(tmp_path), key=lambda file: file.used_s).path
    first.write_bytes(first.read_bytes()[:50])
    two = over_a_folder(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert ask(two, LONG)[0] == right
    two.core.close()
    assert "cut short" in caplog.text
    assert json.dumps(verify(tmp_path)) == "[]"
