"""What stands between the linear layers: each against torch's own in float64, and each row for itself."""

from __future__ import annotations

import math

import pytest
import torch

from forktree.kernels.activation import silu_mul
from forktree.kernels.checks import ShapeError
from forktree.kernels.exact import exp, tree_sum
from forktree.kernels.logits import logsumexp_rows
from forktree.kernels.native import Native
from forktree.kernels.norm import add_rms_norm
from forktree.kernels.rotary import HeadNorms, RotaryTable, rotate_and_write

WIDTHS = [1, 8, 16, 33, 576]


def noise(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("width", WIDTHS)
def test_norm_adds_the_delta_and_normalises(width: int, path: Native | None) -> None:
    residual, delta, weight = noise(7, width), noise(7, width, seed=1), noise(width, seed=2)
    total = residual + delta
    out = add_rms_norm(residual, delta, weight, eps=1e-5, native=path)
    exact = total.double() * (total.double().pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    assert torch.equal(residual, total)
    torch.testing.assert_close(out, exact.float(), atol=1e-6, rtol=1e-5)


def test_norm_without_delta_leaves_the_stream_alone(path: Native | None) -> None:
    stream = noise(3, 32)
    before = stream.clone()
    add_rms_norm(stream, None, torch.ones(32), eps=1e-5, native=path)
    assert torch.equal(stream, before)


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul_equals_torch(width: int, path: Native | None) -> None:
    gate_up = noise(5, 2 * width, scale=9.0)
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = (torch.nn.functional.silu(gate) * up).float()
    torch.testing.assert_close(silu_mul(gate_up, native=path), expected, atol=1e-6, rtol=1e-5)


def test_silu_of_huge_gates_is_finite(path: Native | None) -> None:
    gate_up = torch.tensor([[-1e30, -200.0, 200.0, 1e30, 1.0, 1.0, 1.0, 1.0]])
    out = silu_mul(gate_up, native=path)
    assert out.isfinite().all()
    torch.testing.assert_close(out[0, 2:], torch.tensor([200.0, 1e30]))


@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("head_dim", [2, 20, 64])
def test_rotation_writes_each_token_to_its_slot_and_nowhere_else(
    head_dim: int, with_norms: bool, path: Native | None
) -> None:
    q_heads, kv_heads, tokens = 4, 2, 6
    angles = torch.arange(50.0).unsqueeze(1) * torch.rand(head_dim // 2)
    table = RotaryTable(angles.cos(), angles.sin())
    norms = HeadNorms(noise(head_dim, seed=4), noise(head_dim, seed=5), 1e-6) if with_norms else None
    qkv, positions = noise(tokens, (q_heads + 2 * kv_heads) * head_dim), torch.tensor([0, 7, 49, 3, 3, 20])
    slots = torch.tensor([5, 0, 11, 2, 7, 9])
    k, v = torch.full((3, 4, kv_heads, head_dim), math.nan), torch.full((3, 4, kv_heads, head_dim), math.nan)
    q = rotate_and_write(qkv, table, positions, slots, k, v, q_heads=q_heads, norms=norms, native=path)

    heads = qkv.view(tokens, -1, head_dim).double()
    normed = heads * (heads.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
    q_in = normed[:, :q_heads] * norms.q_weight if norms else heads[:, :q_heads]
    k_in = normed[:, q_heads:-kv_heads] * norms.k_weight if norms else heads[:, q_heads:-kv_heads]
    spin = torch.complex(table.cos.double(), table.sin.double())[positions].unsqueeze(1)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(*x.chunk(2, dim=-1)) * spin
        return torch.cat([turned.real, turned.imag], dim=-1).float()

    torch.testing.assert_close(q, rotate(q_in), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(k.flatten(0, 1)[slots], rotate(k_in), atol=2e-6, rtol=1e-5)
    assert torch.equal(v.flatten(0, 1)[slots], heads[:, -kv_heads:].float())
    untouched = [slot for slot in range(12) if slot not in slots.tolist()]
    assert k.flatten(0, 1)[untouched].isnan().all()
    assert v.flatten(0, 1)[untouched].isnan().all()


def test_every_row_has_the_same_bits_alone(path: Native | None) -> None:
    x, gate_up = noise(65, 576, scale=3.0), noise(65, 2 * 88, scale=3.0)
    norms = add_rms_norm(x.clone(), None, torch.ones(576), eps=1e-5, native=path)
    gates, sums = silu_mul(gate_up, native=path), logsumexp_rows(x, list(range(65)), native=path)
    for row in range(65):
        one = slice(row, row + 1)
        assert torch.equal(add_rms_norm(x[one].clone(), None, torch.ones(576), eps=1e-5, native=path), norms[one])
        assert torch.equal(silu_mul(gate_up[one].clone(), native=path), gates[one])
        assert logsumexp_rows(x, [row], native=path) == [sums[row]]


@pytest.mark.parametrize("vocab", [1, 15, 131, 49152])
def test_logsumexp_equals_torch_in_double(vocab: int, path: Native | None) -> None:
    logits = noise(3, vocab, scale=8.0)
    expected = torch.logsumexp(logits.double(), dim=-1)[[2, 0, 2]]
    torch.testing.assert_close(
        torch.tensor(logsumexp_rows(logits, [2, 0, 2], native=path), dtype=torch.float64), expected, atol=2e-6, rtol=0
    )


def test_logsumexp_tells_broken_rows(path: Native | None) -> None:
    logits = torch.zeros(4, 40)
    logits[0, 39], logits[1, 5] = math.nan, math.inf
    logits[2] = -math.inf
    logits[3, :39] = -math.inf
    broken, infinite, empty, one = logsumexp_rows(logits, [0, 1, 2, 3], native=path)
    assert math.isnan(broken)
    assert math.isnan(infinite)
    assert empty == -math.inf
    assert one == 0.0


def test_exact_exponential_is_close_and_one_at_zero() -> None:
    x = torch.linspace(-87, 88, 5001)
    torch.testing.assert_close(exp(x), x.double().exp().float(), rtol=3e-7, atol=0)
    assert exp(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 128])
def test_tree_sum_adds_every_element_once(n: int) -> None:
    assert tree_sum(torch.arange(2.0 * n).view(2, n)).tolist() == [n * (n - 1) / 2, n * n + n * (n - 1) / 2]


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(ShapeError, match="gate_up must have an even width, not 5"):
        silu_mul(torch.zeros(1, 5))
    with pytest.raises(ShapeError, match=r"weight must be \[4\], not \[5\]"):
        add_rms_norm(torch.zeros(2, 4), None, torch.ones(5), eps=1e-5)
    with pytest.raises(ShapeError, match=r"residual must be torch.float32, not torch.float64"):
        add_rms_norm(torch.zeros(2, 4, dtype=torch.float64), None, torch.ones(4), eps=1e-5)
    with pytest.raises(ShapeError, match="residual must be contiguous"):
        add_rms_norm(torch.zeros(4, 2).t(), None, torch.ones(4), eps=1e-5)
    with pytest.raises(IndexError, match=r"rows must be in \[0, 2\)"):
        logsumexp_rows(torch.zeros(2, 4), [2])
