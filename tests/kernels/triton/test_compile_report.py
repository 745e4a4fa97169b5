"""Kernels compile for real chips without one, in a process of its own: this one interprets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed here")

from forktree.benchmarks.gpu.compile_report import Compiled, kernel_specs, one_of_each, render


def report(*arguments: str, interpret: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "forktree.benchmarks.gpu.compile_report", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def compile_to(file: Path, *arguments: str) -> list[dict[str, object]]:
    done = report("--json", str(file), *arguments)
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text(encoding="utf-8"))
    for each in results:
        assert 0 < each["registers"] <= 255
        assert each["shared_bytes"] <= 163 * 1024  # of an A100
        assert each["cubin_bytes"] > 0
    return results


def test_every_kernel_compiles_for_two_generations_of_chips(tmp_path: Path) -> None:
    """In one variant each; a row's bits in attention are the same whichever way it goes, so are the instructions."""
    results = compile_to(tmp_path / "report.json", "--brief")
    chosen = one_of_each(list(kernel_specs()))
    assert [(each["name"], each["arch"]) for each in results] == [(spec.name, a) for spec in chosen for a in (80, 90)]
    by_kernel = {(each["name"].split()[0], each["arch"]): each["products"] for each in results}
    for arch, instruction in ((80, "mma.sync"), (90, "wgmma.mma_async")):
        assert by_kernel["attend_items", arch] == by_kernel["attend_chunks", arch]
        assert all(name.startswith(instruction) for name in by_kernel["attend_items", arch])


@pytest.mark.slow
def test_every_variant_compiles_for_two_generations_of_chips(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "slow" not in request.config.getoption("-m"):
        pytest.skip("minutes of compilation: run by `make test-long`")
    names = [(spec.name, arch) for spec in kernel_specs() for arch in (80, 90)]
    assert [(each["name"], each["arch"]) for each in compile_to(tmp_path / "report.json")] == names


def test_every_kernel_is_listed_under_a_name_of_its_own() -> None:
    specs = list(kernel_specs())
    names = [spec.name for spec in specs]
    assert len(set(names)) == len(names)
    for spec in specs:
        assert sorted([*spec.arguments, *spec.constants]) == sorted(spec.kernel.arg_names), spec.name


def test_an_interpreted_report_is_refused() -> None:
    done = report(interpret=True)
    assert done.returncode == 2
    assert "TRITON_INTERPRET is set, so nothing would be compiled; unset it" in done.stderr


def test_the_table_has_a_line_for_each_kernel_and_chip() -> None:
    lines = render([Compiled("attend_items bfloat16 d64", 90, 182, 0, 40960, 78600, 4)]).splitlines()
    assert lines[0] == "| kernel | chip | warps | registers | spilled, B | shared memory, KB | cubin, KB |"
    assert lines[2] == "| attend_items bfloat16 d64 | sm_90 | 4 | 182 | 0 | 40.0 | 77 |"
