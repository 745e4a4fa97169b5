"""Triton kernels under its interpreter, on the CPU; on a CUDA device with `TRITON_INTERPRET=0 pytest -m gpu`.

The interpreter is chosen when triton is imported, so `tests/conftest.py` sets the variable before anything else.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed here")

from forktree.kernels.triton_mode import is_interpreted


@pytest.fixture
def interpreter() -> torch.device:
    """The device of tensors that interpreted kernels take."""
    if not is_interpreted():
        pytest.skip("TRITON_INTERPRET is off: these tests run kernels on the CPU")
    return torch.device("cpu")


@pytest.fixture
def cuda() -> torch.device:
    """A real device, for tests that are marked `gpu`."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    if is_interpreted():
        pytest.skip("kernels are interpreted here: run with TRITON_INTERPRET=0")
    return torch.device("cuda")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Both in turn: each test that takes this runs interpreted, and under the marker `gpu` on a device."""
    return request.getfixturevalue("interpreter" if request.param == "cpu" else "cuda")
