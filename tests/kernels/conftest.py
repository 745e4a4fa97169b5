"""Both paths of every kernel: the native library and the plain torch reference."""

from __future__ import annotations

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
