"""Blocks are recovered to the bit or refused; rounding takes the nearest."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.kernels.checks import ShapeError
from forktree.kernels.gemm import multiply_blocks
from forktree.kernels.gemm_weights import (
    Blocks,
    Format,
    PackedWeights,
    Panels,
    can_pack,
    gather_panels,
    recover_weights,
    round_weights,
)
from forktree.kernels.native import Native


def read_back(packed: PackedWeights | None, native: Native | None) -> torch.Tensor:
    """The weights [out, in] that a layer multiplies by: one row of input for each column."""
    assert packed is not None
    return multiply_blocks(torch.eye(packed.num_inputs) * 127, packed, native=native).t() / 127


def test_plain_blocks_give_back_the_weights() -> None:
    q = torch.arange(32).remainder(16).view(1, 1, 32)
    weight = (q * 0.25 - 1.5).flatten(1)
    packed = recover_weights(weight, Format.FOUR_BIT)
    assert isinstance(packed, Blocks)
    assert torch.equal(packed.q, q.to(torch.int8))
    assert (packed.d.item(), packed.m.item()) == (0.25, -1.5)
    assert torch.equal(packed.dequantize(), weight)


@pytest.mark.parametrize("top", range(1, 16))
def test_a_block_that_does_not_reach_its_largest_step_is_recovered(top: int, path: Native | None) -> None:
    weight = torch.arange(32.0).remainder(top + 1).view(1, 32) * 0.00312042236328125 + 0.0625
    packed = recover_weights(weight, Format.FOUR_BIT, native=path)
    assert packed is not None
    torch.testing.assert_close(read_back(packed, path), weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [0.0, 0.5, -0.25])
def test_a_constant_block_is_recovered(value: float, path: Native | None) -> None:
    weight = torch.full((3, 64), value)
    torch.testing.assert_close(read_back(recover_weights(weight, Format.FOUR_BIT, native=path), path), weight)


@pytest.mark.parametrize("format", [Format.FOUR_BIT, Format.EIGHT_BIT])
def test_weights_that_were_never_blocks_are_refused(format: Format, path: Native | None) -> None:
    weight = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    assert recover_weights(weight, format, native=path) is None


def test_one_weight_off_the_grid_is_found(path: Native | None) -> None:
    weight = torch.arange(32.0).remainder(16).repeat(20, 3)
    assert recover_weights(weight, Format.FOUR_BIT, native=path) is not None
    weight[13, 70] += 1e-6
    assert recover_weights(weight, Format.FOUR_BIT, native=path) is None


@settings(max_examples=60, deadline=None)
@given(
    scale=st.floats(2.0**-14, 100.0, width=16),
    least=st.floats(-8.0, 8.0, width=16),
    q=st.lists(st.integers(0, 15), min_size=30, max_size=30),
)
def test_any_four_bit_block_that_spans_its_range_is_recovered(scale: float, least: float, q: list[int]) -> None:
    steps = torch.tensor([[0, 15, *q]])
    packed = recover_weights(steps * torch.tensor(scale) + torch.tensor(least), Format.FOUR_BIT)
    assert isinstance(packed, Blocks)
    assert torch.equal(packed.dequantize(), steps * torch.tensor(scale) + torch.tensor(least))


@pytest.mark.parametrize("exponent", [-24, -16, -14, -10, 0, 9])
def test_scales_of_every_size_of_fp16_survive(exponent: int, path: Native | None) -> None:
    d = 2.0**exponent * (1.0 if exponent == -24 else 1.25)
    weight = (torch.arange(32.0) * 4 - 60).view(1, 32) * d
    weight[0, 0] = 127 * d
    packed = recover_weights(weight, Format.EIGHT_BIT, native=path)
    torch.testing.assert_close(read_back(packed, path), weight, rtol=1e-6, atol=0)


def test_rounding_is_off_by_half_a_step_at_most(path: Native | None) -> None:
    weight = torch.randn(33, 96, generator=torch.Generator().manual_seed(0))
    back = read_back(round_weights(weight, native=path), path)
    steps = weight.view(33, 3, 32).abs().amax(-1, keepdim=True) / 127
    assert ((back - weight).view(33, 3, 32).abs() <= 0.505 * steps + 1e-6).all()


def test_what_cannot_be_packed_is_said() -> None:
    assert not can_pack(torch.zeros(4, 33))
    assert not can_pack(torch.full((4, 32), 1e7))
    assert not can_pack(torch.full((4, 32), torch.nan))
    assert can_pack(torch.zeros(1, 32))
    with pytest.raises(ShapeError, match=r"in a multiple of 32, not \[4, 33\]"):
        round_weights(torch.zeros(4, 33))
    with pytest.raises(ValueError, match=r"at most 8\.31901e\+06; one has magnitude 1e\+07"):
        round_weights(torch.full((4, 32), 1e7))


def test_gathered_panels_lie_behind_one_another_and_multiply_alike(native: Native) -> None:
    layers = [round_weights(torch.randn(out, 64), native=native) for out in (20, 16, 33)]
    gathered = gather_panels([layer for layer in layers if isinstance(layer, Panels)])
    x = torch.randn(5, 64)
    for before, after in zip(layers, gathered, strict=True):
        assert torch.equal(multiply_blocks(x, after, native=native), multiply_blocks(x, before, native=native))
    starts = [panels.data.data_ptr() for panels in gathered]
    assert starts == sorted(starts)
    assert all(start % 64 == 0 for start in starts)
    assert starts[-1] + len(gathered[-1].data) - starts[0] < sum(len(panels.data) + 64 for panels in gathered)
    assert gather_panels([]) == []
