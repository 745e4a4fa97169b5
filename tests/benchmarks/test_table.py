"""The documentation's tables, from rows."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from forktree.benchmarks import table
from forktree.benchmarks.floors import Machine
from forktree.benchmarks.harness import Row

MACHINE = Machine(2e10, 2e11)


def row(engine: str, case: str, seconds: float, **notes: object) -> Row:
    return Row(engine, case, units=4, seconds=[seconds], num_tokens=100, notes=dict(notes))


def test_engines_stand_side_by_side_with_floor_and_ratio():
    rows = [row("forktree", "W2/1x2048", 4.0), row("forktree", "W5/free", 2.0), row("vllm fp32", "W2/1x2048", 8.0)]
    lines = list(table.speed_table(rows, MACHINE))
    assert lines[0] == "| case | forktree, s | floor, s | units/s | vllm fp32 | forktree / best other |"
    first, second = (line.strip("| ").split(" | ") for line in lines[2:])
    assert (first[0], first[1], first[3:]) == ("W2/1x2048", "4.00", ["1", "0.5", "2.00"])
    assert 0 < float(first[2]) < 4
    assert second[:2] == ["W5/free", "2.00"]


def test_forktree_alone_has_no_ratio():
    lines = list(table.speed_table([row("forktree none", "W5/free", 2.0)], MACHINE))
    assert lines == [
        "| case | forktree none, s | floor, s | units/s |",
        "|---|---|---|---|",
        "| W5/free | 2.00 |  | 2 |",
    ]


def test_kinds_have_hit_rates():
    lines = list(
        table.sharing_table([row("forktree", "mmlu", 1, prompt=1363, computed=7, least=6, hit="1%", best="2%")])
    )
    assert lines[-1] == "| mmlu | 4 | 1,363 | 7 | 6 | 1% | 2% |"


def test_the_script_reads_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([asdict(row("forktree", "W5/free", 2.0))]))
    monkeypatch.setattr(sys, "argv", ["table", str(path), "--gb", "20", "--gflops", "200"])
    table.main()
    assert "Floors at 20.0 GB/s and 200 GFLOP/s" in capsys.readouterr().out


def test_a_file_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "rows.json").write_text('{"no": "rows"}')
    monkeypatch.setattr(sys, "argv", ["table", str(tmp_path / "rows.json")])
    with pytest.raises(SystemExit, match="not a file of rows"):
        table.main()
