"""Advice about memory changes no value and refuses no tensor."""

from __future__ import annotations

import pytest
import torch

from forktree.kernels.memory import advise_huge_pages


@pytest.mark.parametrize("num", [0, 1, 5_000, 3_000_000])
def test_any_tensor_may_be_advised(num: int) -> None:
    tensor = torch.empty(num)
    advise_huge_pages(tensor)
    tensor.fill_(3.0)
    advise_huge_pages(tensor)
    assert torch.equal(tensor, torch.full((num,), 3.0))
