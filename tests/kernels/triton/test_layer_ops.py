"""Norm, rotary and SiLU for a GPU, against their plain references, on odd sizes with poisoned memory."""

from __future__ import annotations

import pytest
import torch

from forktree.kernels.activation import silu_mul as plain_silu_mul
from forktree.kernels.activation_triton import silu_mul
from forktree.kernels.checks import ShapeError
from forktree.kernels.norm import add_rms_norm as plain_norm
from forktree.kernels.norm_triton import add_rms_norm
from forktree.kernels.rotary import HeadNorms, RotaryTable
from forktree.kernels.rotary import rotate_and_write as plain_rotate
from forktree.kernels.rotary_triton import rotate_and_write

pytestmark = pytest.mark.usefixtures("interpreter")
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _close(found: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(found.float(), right.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("hidden", [1, 33, 576])
def test_norm_equals_its_reference(dtype: torch.dtype, hidden: int) -> None:
    residual, delta = _random(3, hidden), _random(3, hidden, dtype=dtype, seed=1)
    weight, out = _random(hidden, dtype=dtype, seed=2), torch.full((3, hidden), torch.nan, dtype=dtype)
    right_residual = residual.clone()
    right = plain_norm(right_residual, delta.float(), weight.float(), eps=1e-5)
    assert add_rms_norm(residual, delta, weight, eps=1e-5, out=out) is out
    assert torch.equal(residual, right_residual)
    _close(out, right, dtype)


def test_norm_without_delta_leaves_the_residual() -> None:
    residual = _random(2, 40)
    before = residual.clone()
    found = add_rms_norm(residual, None, torch.ones(40), eps=1e-6)
    assert torch.equal(residual, before)
    _close(found, plain_norm(before, None, torch.ones(40), eps=1e-6), torch.float32)


def test_a_row_of_a_norm_has_the_same_bits_alone_and_among_others() -> None:
    rows, weight = _random(7, 100), _random(100, seed=1)
    together = add_rms_norm(rows.clone(), None, weight, eps=1e-5)
    alone = [add_rms_norm(rows[i : i + 1].clone(), None, weight, eps=1e-5) for i in range(7)]
    assert torch.equal(together, torch.cat(alone))


def test_a_normed_row_with_a_nan_spoils_no_other() -> None:
    rows = _random(3, 20)
    rows[1, 4] = torch.nan
    found = add_rms_norm(rows, None, torch.ones(20), eps=1e-5)
    assert found.isnan().any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("has_norms", [False, True])
def test_rotation_equals_its_reference_and_writes_its_slots_alone(
    dtype: torch.dtype, head_dim: int, has_norms: bool
) -> None:
    q_heads, kv_heads, page_size = 3, 1, 2
    qkv = _random(5, (q_heads + 2 * kv_heads) * head_dim, dtype=dtype)
    angles = _random(50, head_dim // 2, seed=1)
    table = RotaryTable(angles.cos(), angles.sin())
    positions, slots = torch.tensor([0, 7, 49, 3, 3]), torch.tensor([5, 0, 9, 2, 3])
    norms = HeadNorms(_random(head_dim, seed=2), _random(head_dim, seed=3), 1e-6) if has_norms else None
    pages = [torch.full((6, page_size, kv_heads, head_dim), torch.nan, dtype=dtype) for _ in range(2)]
    plain = [torch.full_like(each, torch.nan, dtype=torch.float32) for each in pages]
    found = rotate_and_write(qkv, table, positions, slots, *pages, q_heads=q_heads, norms=norms)
    right = plain_rotate(qkv.float(), table, positions, slots, *plain, q_heads=q_heads, norms=norms)
    _close(found, right, dtype)
    for have, want in zip(pages, plain, strict=True):
        flat = have.view(-1, kv_heads, head_dim)
        _close(flat[slots], want.view(-1, kv_heads, head_dim)[slots], dtype)
        untouched = [slot for slot in range(12) if slot not in slots.tolist()]
        assert flat[untouched].isnan().all()


def test_a_padding_row_has_no_slot_and_writes_nothing() -> None:
    pages = [torch.full((2, 1, 1, 4), torch.nan) for _ in range(2)]
    table = RotaryTable(torch.ones(3, 2), torch.zeros(3, 2))
    rotate_and_write(torch.ones(2, 12), table, torch.tensor([0, 0]), torch.tensor([-1, 1]), *pages, q_heads=1)
    for each in pages:
        assert each[0].isnan().all()
        assert torch.equal(each[1].flatten(), torch.ones(4))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("inner", [1, 48, 1300])
def test_silu_equals_its_reference(dtype: torch.dtype, inner: int) -> None:
    gate_up = 4 * _random(3, 2 * inner, dtype=dtype)
    out = torch.full((3, inner), torch.nan, dtype=dtype)
    assert silu_mul(gate_up, out=out) is out
    _close(out, plain_silu_mul(gate_up.float()), dtype)


def test_misshapen_tensors_are_named() -> None:
    with pytest.raises(ShapeError, match=r"weight must be \[4\], not \[5\]"):
        add_rms_norm(torch.ones(1, 4), None, torch.ones(5), eps=1e-5)
    with pytest.raises(ShapeError, match="gate_up must have an even width, not 3"):
        silu_mul(torch.ones(1, 3))
    with pytest.raises(ShapeError, match="gate_up must be float32, bfloat16 or float16"):
        silu_mul(torch.ones(1, 4, dtype=torch.float64))
