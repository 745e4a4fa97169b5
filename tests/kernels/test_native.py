"""The native library is built once, says when it cannot be had, and never fails a program."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from forktree.kernels.native import Native, load_native


def compiler(folder: Path, script: str) -> str:
    path = folder / "fake-c++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_second_load_finds_the_first_ones_library(
    native: Native, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="forktree.kernels")
    first = load_native(tmp_path, num_threads=1)
    built = list(tmp_path.glob("*/kernels.so"))
    second = load_native(tmp_path, num_threads=1)
    assert first is not None
    assert second is not None
    assert len(built) == 1
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert [path.name for path in built[0].parent.iterdir() if path.is_dir()] == []


def test_a_machine_without_compiler_gets_the_reference_and_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load_native(tmp_path, num_threads=1) is None
    assert [record.getMessage()[:60] for record in caplog.records] == [
        "no native kernels (no C++ compiler: looked for g++, c++, cla"
    ]


def test_a_failed_build_leaves_nothing_behind_and_says_what_the_compiler_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = '[ "$1" = --version ] && exit 0; echo "out of disk" >&2; exit 1'
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    assert load_native(tmp_path / "cache", num_threads=1) is None
    assert "the compiler failed: out of disk" in caplog.text
    assert list((tmp_path / "cache").rglob("kernels.so")) == []


def test_a_library_that_does_not_load_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = '[ "$1" = --version ] && exit 0; while [ "$1" != -o ]; do shift; done; echo junk > "$2"'
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    assert load_native(tmp_path / "cache", num_threads=1) is None
    assert "no native kernels" in caplog.text
    assert list((tmp_path / "cache").rglob("kernels.so")) == []


def test_the_environment_turns_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKTREE_NATIVE", "0")
    assert load_native(tmp_path, num_threads=1) is None
    assert list(tmp_path.iterdir()) == []


def test_the_process_has_one_pool_of_threads(native: Native) -> None:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        pytest.skip("no /proc here")
    paths = {line.split()[-1] for line in maps.splitlines() if "libgomp" in line}
    assert str(native.library._name) in maps
    assert len(paths) <= 1
