"""A linear layer over packed weights: quantised blocks, with activations in blocks of 32 along the row, or floats.

For a row x and an output with weights d · q + m (gemm_weights.py), block after block:

    scale = max|x| / top          qx = round(x · top / max|x|), ties to even           (of the 32 of this block)
    y += (Σ q · qx as an integer · d) · scale
    y += m · (scale · Σ qx)

`top` is 127 for 8-bit activations and 32512 = 127 · 256 for 16-bit ones, which are computed as two int8 digits: twice
the integer work, and nothing lost in practice (a few 1e-6 of the output's standard deviation where the weights are
exact, against about 0.5 % for 8 bits and smooth inputs).

Mixed activations are 16-bit ones whose low digit is computed only where it matters. The rounding error of a block goes
with the square of its scale, and in language models few blocks have most of the sum: those whose square is at least the
row's mean keep both digits, the others the high one, rounded. A fifth of the blocks removes four fifths of the error.

Scale and digits belong to a block of one row and the order of blocks is fixed: a row's result has the same bits beside
any others. The sum behind m is that of the quantised values, so that the rounding of x meets w as a whole; with the
sum of x itself it would meet d · q alone, which is the larger of the two.

A row with an infinity or a NaN gives NaN at every output. A block whose largest magnitude is below 1e-30 is zero.

Weights in fp16 or float32 go with float32 activations, unrounded: products in float32, added up in the order of the
inputs, so these rows do not know their neighbours either.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import NamedTuple

import torch

from forktree.kernels import structs
from forktree.kernels.checks import ShapeError, check_tensor
from forktree.kernels.gemm_weights import BLOCK_SIZE, Blocks, Dense, PackedWeights, Panels
from forktree.kernels.native import Native

_SMALLEST = 1e-30


class Activations(IntEnum):
    """The inputs are rounded to one int8 digit, to two, to two where a block's scale is large in its row, or not."""

    EIGHT_BIT = 1
    SIXTEEN_BIT = 2
    MIXED = 3
    FLOAT = 4

    @property
    def top(self) -> int:
        """The largest magnitude of a quantised value."""
        return 127 if self is Activations.EIGHT_BIT else 127 * 256


class QuantizedRows(NamedTuple):
    """x ≈ q · scale; `sums` is scale · Σ q.

    Attributes:
        q: [rows, blocks, 32] int32
        scales, sums: [rows, blocks] float32
    """

    q: torch.Tensor
    scales: torch.Tensor
    sums: torch.Tensor


def multiply_blocks(
    x: torch.Tensor,
    weights: PackedWeights,
    bias: torch.Tensor | None = None,
    *,
    activations: Activations = Activations.EIGHT_BIT,
    native: Native | None = None,
) -> torch.Tensor:
    """x · weightsᵀ + bias.

    Args:
        x:    [rows, in] float32
        bias: [out] float32
    Returns:
        [rows, out] float32
    Raises:
        ShapeError: shapes or types that do not fit, or panels without the library that made them.
        ValueError: quantised weights with float activations, or the reverse.
    """
    if weights.format.is_quantised == (activations is Activations.FLOAT):
        raise ValueError(f"{weights.format.name} weights do not go with {activations.name} activations")
    check_tensor("x", x, (None, weights.num_inputs), torch.float32)
    if bias is not None:
        check_tensor("bias", bias, (weights.num_outputs,), torch.float32)
    if isinstance(weights, Blocks):
        return _reference(x, weights, bias, activations)
    if isinstance(weights, Dense):
        return _float_reference(x, weights, bias)
    if native is None:
        raise ShapeError("these weights are packed for the native library; pass it, or pack them without it")
    out = x.new_empty(len(x), weights.num_outputs)
    layer = native_linear(weights, bias, activations)
    native.library.ft_gemm(x.data_ptr(), ctypes.byref(layer), out.data_ptr(), len(x), native.num_threads)
    return out


def native_linear(weights: Panels, bias: torch.Tensor | None, activations: Activations) -> structs.Linear:
    """The layer as the native library reads it; valid while both tensors live."""
    return structs.Linear(
        panels=weights.data.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        outputs=weights.num_outputs,
        blocks=weights.num_inputs // BLOCK_SIZE,
        format=int(weights.format),
        inputs=int(activations),
    )


def quantize_rows(x: torch.Tensor, activations: Activations = Activations.EIGHT_BIT) -> QuantizedRows:
    """The activations [rows, in] as the layer sees them; `in` is a multiple of 32."""
    blocks = x.view(len(x), x.shape[1] // BLOCK_SIZE, BLOCK_SIZE)
    top = blocks.abs().amax(-1)
    broken = ~blocks.isfinite().all(-1)
    used = ~broken & (top >= _SMALLEST)
    largest = torch.full_like(top, activations.top)  # a number over a tensor would be rounded twice
    by = torch.where(used, largest / torch.where(used, top, 1.0), 0.0)
    q = torch.where(used.unsqueeze(-1), blocks * by.unsqueeze(-1), 0.0).round()
    scales = torch.where(broken, torch.nan, torch.where(used, top / activations.top, 0.0))
    if activations is Activations.MIXED:
        q = torch.where(_keeps_low(scales).unsqueeze(-1), q, ((q + 128) / 256).floor() * 256)
    return QuantizedRows(q.to(torch.int32), scales, scales * q.sum(-1))


def _keeps_low(scales: torch.Tensor) -> torch.Tensor:
    """Which blocks [rows, blocks] keep their low digits. Squares of floats are exact in float64."""
    squares = scales.double().square()
    total = squares.cumsum(-1)[:, -1:]  # in the order of blocks
    return squares * scales.shape[1] >= total


def _reference(x: torch.Tensor, weights: Blocks, bias: torch.Tensor | None, activations: Activations) -> torch.Tensor:
    """Dots are exact in float64 and rounded once, so only the order of blocks decides the bits."""
    rows = quantize_rows(x, activations)
    dots = torch.einsum("rbk,obk->bro", rows.q.double(), weights.q.double()).float()
    out = x.new_zeros(len(x), weights.num_outputs)
    for block, dot in enumerate(dots):
        out += dot * weights.d[:, block] * rows.scales[:, block, None]
        out += weights.m[:, block] * rows.sums[:, block, None]
    return out if bias is None else out + bias


def _float_reference(x: torch.Tensor, weights: Dense, bias: torch.Tensor | None) -> torch.Tensor:
    """Products and sums input after input, as the native library has them; it fuses the two, which rounds once less."""
    weight = weights.weight.float()
    out = x.new_zeros(len(x), weights.num_outputs)
    for i in range(weights.num_inputs):
        out = torch.addcmul(out, x[:, i, None], weight[:, i])
    return out if bias is None else out + bias
