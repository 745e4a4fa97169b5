"""Both paths of every kernel: the native library and the plain torch reference."""

from __future__ import annotations

import platform
import shutil

import pytest
import torch

from forktree.backend.model.store import cache_root
from forktree.kernels.native import Native, load_native


@pytest.fixture(scope="session")
def native() -> Native:
    if not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        pytest.skip("no C++ compiler here")
    library = load_native(cache_root() / "native", num_threads=torch.get_num_threads())
    if library is None:
        pytest.skip("native kernels are off (FORKTREE_NATIVE=0)")
    return library


@pytest.fixture(params=["native", "reference"])
def path(request: pytest.FixtureRequest) -> Native | None:
    return request.getfixturevalue("native") if request.param == "native" else None


@pytest.fixture(scope="session", params=["x86-64-v3", "x86-64"])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Native:
    """The library as it is built for an older processor, which this one understands."""
    if platform.machine() != "x86_64" or not (real := shutil.which("g++")):
        pytest.skip("the older instruction sets are tried with g++ on x86-64")
    folder = tmp_path_factory.mktemp(request.param)
    compiler = folder / "older-g++"
    compiler.write_text(f'#!/bin/sh\nexec {real} "$@" -march={request.param} -w\n')
    compiler.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(compiler))
        library = load_native(folder, num_threads=1)
    assert library is not None
    return library
