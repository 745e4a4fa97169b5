"""`forktree bench`: what it measures, how it shows it, and what it says to a wrong argument."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from forktree.benchmarks import charts, harness, peers, programs
from forktree.benchmarks.harness import Bench, Row
from forktree.commands import bench as command
from forktree.commands.main import main


def row(engine: str, case: str, seconds: float, **more: Any) -> Row:
    return Row(engine, case, units=4, seconds=[seconds], num_tokens=more.pop("num_tokens", 100), **more)


def test_the_command_knows_every_kind_and_every_peer() -> None:
    assert tuple(programs.KINDS) == command.KINDS
    assert set(command.PEERS) == set(peers.PEERS)
    assert len(command.KINDS) == 11


@pytest.mark.parametrize("option", [["--only", "W1,W9"], ["--only", ""], ["--against", "sglang"], ["--reps", "0"]])
def test_a_wrong_argument_is_a_usage_error_that_lists_what_would_be_right(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", *option])
    assert exit_.value.code == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert any(name in shown for name in ("is none of W1, W2", "is none of transformers, llama.cpp", "at least 1"))


def test_a_case_is_timed_over_its_repetitions_and_reported_as_soon_as_it_is_measured() -> None:
    calls: list[int] = []
    told: list[Row] = []

    def run() -> dict[str, Any]:
        calls.append(1)
        return {"tokens": 7, "valid_pct": 50.0}

    bench = Bench("e", reps=3, warmup=1, budget_s=60, on_row=told.append)
    bench.case("c", run, units=2, facts=lambda facts: {**facts, "more": 1})
    assert len(calls) == 4
    assert [(one.case, len(one.seconds), one.num_tokens, one.notes) for one in told] == [
        ("c", 3, 7, {"valid_pct": 50.0, "more": 1})
    ]
    assert bench.rows == told


def test_a_case_that_would_exceed_its_budget_stops_early() -> None:
    bench = Bench("e", reps=50, warmup=0, budget_s=0.0, on_row=lambda row: None)
    bench.case("c", dict, units=1)
    assert len(bench.rows[0].seconds) == 1


def test_a_log_is_told_what_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    command._tell_file("forktree: measuring W1")
    assert capsys.readouterr() == ("", "forktree: measuring W1\n")


def test_rows_survive_a_file(tmp_path: Path) -> None:
    rows = [row("a", "W1/1", 2.0, cores=(1.0, 0.1, 0.0), notes={"hit": "50.0%"})]
    harness.write_json(tmp_path / "rows.json", rows)
    assert harness.read_json(tmp_path / "rows.json") == rows


def test_engines_are_compared_case_by_case_and_one_alone_in_tokens() -> None:
    both = [row("forktree", "W1", 1.0), row("other", "W1", 2.0), row("forktree", "W2", 8.0), row("other", "W2", 2.0)]
    assert [bar.length for bar in charts.lengths(both)] == [1.0, 0.5, 0.25, 1.0]
    ratios = [(own.case, rival.engine, ratio) for own, rival, ratio in charts.ratios(both, {"forktree"})]
    assert ratios == [("W1", "other", 2.0), ("W2", "other", 0.25)]
    alone = [row("forktree", "W1", 1.0), row("forktree", "W2", 2.0), row("forktree", "W3", 2.0, num_tokens=0)]
    assert [(bar.row.case, bar.length) for bar in charts.lengths(alone)] == [("W1", 1.0), ("W2", 0.5)]


def test_bars_are_grouped_by_case() -> None:
    rows = [row("a", "W1", 1.0), row("a", "W2", 1.0), row("b", "W1", 2.0)]
    assert [line.split()[:2] for line in charts.bars(rows)] == [["W1", "a"], ["W1", "b"], ["W2", "a"]]


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    charts.draw([row("a", "W1", 1.0), row("b", "W1", 2.0)], tmp_path / "rows.png")
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


GHOST = peers.Peer("ghost", "forktree.benchmarks.ghost", "no_such_module", "pip install ghost", ("W1",))
SLEEP = "import time; time.sleep(600)"
ECHO = """
import json, sys, time
lines = sys.argv[sys.argv.index("--lines") + 1]
row = {"engine": "echo", "case": "W1/1", "units": 1, "seconds": [2.0], "num_tokens": 4, "cores": [1, 0, 0], "notes": {}}
with open(lines, "a") as file:
    print(json.dumps(row), file=file)
print("what it says last")
"""


def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str) -> peers.Peer:
    """An engine of one row that then does what `more` says."""
    (tmp_path / "echo_peer.py").write_text(ECHO + more)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return peers.Peer("echo", "echo_peer", "json", "", ("W1",))


def run_echo(peer: peers.Peer, timeout_s: float = 60.0, workloads: tuple[str, ...] = ("W1",)) -> peers.Outcome:
    return peers.run_peer(peer, list(workloads), ["--quick"], python=sys.executable, timeout_s=timeout_s)


def test_a_peer_that_is_not_installed_is_left_out_and_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(peers.PEERS, "ghost", GHOST)
    assert command._peers_here(Namespace(against=["ghost"], ghost_python=None)) == []
    told = capsys.readouterr().err
    assert f"ghost is not installed for {sys.executable} and is left out; `pip install ghost` there" in told
    assert "--ghost-python or FORKTREE_GHOST_PYTHON" in told


def test_an_interpreter_that_is_not_there_has_nothing_installed() -> None:
    assert not GHOST.is_installed("/no/such/python")


def test_a_peers_interpreter_is_the_option_s_or_the_variable_s_or_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = peers.PEERS["llama.cpp"]
    monkeypatch.delenv(peer.variable, raising=False)
    assert peer.python() == sys.executable
    monkeypatch.setenv("FORKTREE_LLAMA_CPP_PYTHON", "/one")
    assert peer.python() == "/one"
    assert peer.python("/two") == "/two"


@pytest.mark.parametrize("name", command.PEERS)
def test_the_command_and_the_peers_call_an_interpreter_the_same(name: str) -> None:
    peer = peers.PEERS[name]
    assert command._names_of(name) == (peer.option, peer.variable)


def test_rows_of_a_peer_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_echo(echo(tmp_path, monkeypatch, ""))
    assert outcome == peers.Outcome([Row("echo", "W1/1", 1, [2.0], 4, (1, 0, 0), {})])


def test_a_peer_that_fails_keeps_its_rows_and_says_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run_echo(echo(tmp_path, monkeypatch, "raise SystemExit(3)"))
    assert len(outcome.rows) == 1
    assert "echo failed with exit code 3, with 1 rows measured" in outcome.trouble
    assert "what it says last" in outcome.trouble


def test_a_peer_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_echo(echo(tmp_path, monkeypatch, "time.sleep(600)"), timeout_s=1.0)
    assert outcome.trouble.startswith("echo was ended after 1 s")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system must tell of a parent's death")
def test_a_peer_ends_with_whoever_reads_its_lines(tmp_path: Path) -> None:
    """The script's parent is killed; what waits for the script to end sees its pipe close."""
    script = f"from forktree.benchmarks import harness\nharness.arguments('x')\nprint('up', flush=True)\n{SLEEP}"
    (tmp_path / "peer.py").write_text(script)
    child = [sys.executable, str(tmp_path / "peer.py"), "--lines", str(tmp_path / "lines")]
    parent = f"import subprocess, sys\nsubprocess.Popen({child!r})\n{SLEEP}"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.kill()
        assert process.stdout.read() == ""  # the script held the pipe too: it has ended


def test_a_peer_without_the_workload_is_not_started() -> None:
    assert run_echo(GHOST, workloads=("W2",)) == peers.Outcome([])


def test_another_interpreter_is_lent_this_package(tmp_path: Path) -> None:
    environment = peers._environment(GHOST, str(tmp_path / "bin" / "python"), tmp_path)
    assert (Path(environment["PYTHONPATH"]) / "forktree" / "benchmarks" / "peers.py").samefile(peers.__file__)


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    whole = json.dumps({"engine": "e", "case": "c", "units": 1, "seconds": [1.0], "cores": [0, 0, 0]})
    (tmp_path / "lines").write_text(f"{whole}\n{whole[:20]}")
    assert [found.case for found in harness.read_lines(tmp_path / "lines")] == ["c"]
    assert harness.read_lines(tmp_path / "none") == []


def test_precisions_are_measured_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(arguments: Any, cases: list[str], rows: list[Row]) -> None:
        rows.append(row(command._engine_name(arguments.quantize), cases[0], 1.0))

    monkeypatch.setattr(command, "_measure_own", measure)
    rows: list[Row] = []
    command._measure(Namespace(only=["W1"], against=None, quantize="auto", also=["auto", "none"]), rows)
    assert [one.engine for one in rows] == ["forktree", "forktree none"]


def test_ctrl_c_shows_what_is_done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(arguments: Any, rows: list[Row]) -> None:
        rows.append(row("forktree", "W1/1", 1.0))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_measure", measure)
    assert main(["bench", "--quick"]) == 130
    shown = capsys.readouterr()
    assert "W1/1" in shown.out
    assert "done: 1 row" in shown.err


@pytest.mark.model
def test_a_kind_is_measured_with_its_hit_rate_beside_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model_dir: Path
) -> None:
    assert main(["bench", "--quick", "--only", "mmlu,judge", "--json", str(tmp_path / "rows.json")]) == 0
    shown = capsys.readouterr().out
    assert "hit" in shown
    found = {one["case"]: one for one in json.loads((tmp_path / "rows.json").read_text())}
    assert list(found) == ["mmlu", "judge"]
    for one in found.values():
        assert one["notes"]["computed"] == one["notes"]["least"] < one["notes"]["prompt"]
