"""The GPU benchmark goes its whole way on a CPU, with kernels interpreted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed here")

from forktree.benchmarks.gpu import __main__ as command
from forktree.benchmarks.gpu import kernel_cases
from forktree.benchmarks.gpu.limits import time_s
from forktree.kernels.triton_mode import is_interpreted

needs_interpreter = pytest.mark.skipif(not is_interpreted(), reason="TRITON_INTERPRET is off")


@needs_interpreter
def test_every_kernel_is_checked_and_timed_at_a_tiny_size() -> None:
    import torch

    shapes = kernel_cases.Shapes(32, 48, 2, 1, 16, 40, (1,), 4, 8, 16, 2)
    names = []
    for case in kernel_cases.kernel_cases(shapes, torch.device("cpu"), torch.float32):
        if "top-k" not in case.name:  # seconds under the interpreter; the long run has it
            assert case.check() < 1e-4, case.name
        assert case.num_bytes > 0
        names.append(case.name.split(",")[0].split(" [")[0])
    assert len(set(names)) == 8
    assert time_s(lambda: None, torch.device("cpu")) >= 0.0


def test_an_unknown_part_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--parts", "kernels,engines"])
    assert "--parts takes kernels, engine, transformers, not engines" in capsys.readouterr().err


@needs_interpreter
def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    assert command.main([]) == 2
    assert "torch finds no CUDA device here; --toy runs the whole way on a CPU" in capsys.readouterr().err


@pytest.mark.slow
@needs_interpreter
def test_a_toy_run_goes_the_whole_way(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, "-m", "forktree.benchmarks.gpu", "--toy", "--json", str(out)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert {row["engine"] for row in rows if "engine" in row} == {"forktree", "transformers generate"}
    assert sum("error" in row for row in rows) > 15
