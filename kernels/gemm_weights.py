"""Weights packed for the GEMM in gemm.py: in blocks of 32 inputs, recovered from float32 or rounded, or as floats.

A quantised block is 32 neighbouring weights of one output, w = d · q + m with d and m in fp16:

    4-bit   q in 0..15                 5 bits a weight; the Q4_1 of GGUF files
    8-bit   q in −127..127, m = 0      8.5 bits a weight; their Q8_0

Models are loaded as float32. Where such a file was their source, its blocks are recovered here to the bit; that is
checked weight by weight, so nothing is lost by it. Other weights are packed as fp16, rounded to nearest, or as float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import torch

from forktree.kernels.checks import ShapeError, check_tensor
from forktree.kernels.memory import advise_huge_pages
from forktree.kernels.native import Native

BLOCK_SIZE = 32
_ALIGNMENT = 64
LARGEST_HALF = 65504.0


class Format(IntEnum):
    """How a weight is stored; the value is its bits."""

    FOUR_BIT = 4
    EIGHT_BIT = 8
    HALF = 16
    FLOAT = 32

    @property
    def is_quantised(self) -> bool:
        """Whether weights are small integers with a scale for every block."""
        return self in (Format.FOUR_BIT, Format.EIGHT_BIT)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Quantised weights as the plain torch path reads them.

    Attributes:
        q: [out, blocks, 32] int8
        d: [out, blocks] float32, values of fp16
        m: [out, blocks] float32, values of fp16
    """

    format: Format
    q: torch.Tensor
    d: torch.Tensor
    m: torch.Tensor

    @property
    def num_outputs(self) -> int:
        return self.q.shape[0]

    @property
    def num_inputs(self) -> int:
        return self.q.shape[1] * BLOCK_SIZE

    def dequantize(self) -> torch.Tensor:
        """[out, in] float32."""
        return (self.q * self.d.unsqueeze(-1) + self.m.unsqueeze(-1)).flatten(1)


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Floats as the plain torch path reads them: [out, in] float16 or float32."""

    weight: torch.Tensor

    @property
    def format(self) -> Format:
        return Format.HALF if self.weight.dtype == torch.float16 else Format.FLOAT

    @property
    def num_outputs(self) -> int:
        return self.weight.shape[0]

    @property
    def num_inputs(self) -> int:
        return self.weight.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """Weights in the native library's layout (gemm.h); opaque bytes, 64-byte aligned."""

    format: Format
    num_outputs: int
    num_inputs: int
    data: torch.Tensor


PackedWeights = Blocks | Dense | Panels


def can_pack(weight: torch.Tensor) -> bool:
    """Whether blocks of 32 fit the inputs, and fp16 scales the weights."""
    return weight.numel() > 0 and weight.shape[1] % BLOCK_SIZE == 0 and _largest(weight) / 127 <= LARGEST_HALF


def recover_weights(weight: torch.Tensor, format: Format, *, native: Native | None = None) -> PackedWeights | None:
    """The blocks that `weight` [out, in] float32 was made of, or None where it is not exactly made of such.

    Raises:
        ShapeError: `in` is no multiple of 32, or the tensor does not fit.
    """
    packed, num_inexact = _pack(weight, format, native)
    return None if num_inexact else packed


def round_weights(weight: torch.Tensor, *, native: Native | None = None) -> PackedWeights:
    """The nearest 8-bit blocks of `weight` [out, in] float32.

    Raises:
        ShapeError: `in` is no multiple of 32, or the tensor does not fit.
        ValueError: a weight is not finite, or too large for a scale in fp16.
    """
    if not (largest := _largest(weight)) / 127 <= LARGEST_HALF:
        raise ValueError(f"weights must be finite and at most {127 * LARGEST_HALF:g}; one has magnitude {largest:g}")
    return _pack(weight, Format.EIGHT_BIT, native)[0]


def keep_weights(weight: torch.Tensor, format: Format, *, native: Native | None = None) -> PackedWeights:
    """`weight` [out, in] float32 as it is, or rounded to fp16.

    Raises:
        ShapeError: `in` is no multiple of 32, or the tensor does not fit.
        ValueError: a format of quantised blocks, or a weight that fp16 does not reach.
    """
    if format.is_quantised:
        raise ValueError(f"{format.name} weights are blocks: recover or round them")
    if format is Format.HALF and not (largest := _largest(weight)) <= LARGEST_HALF:
        raise ValueError(f"fp16 weights must be finite and at most {LARGEST_HALF:g}; one has magnitude {largest:g}")
    return _pack(weight, format, native)[0]


def gather_panels(layers: Sequence[Panels]) -> list[Panels]:
    """The same panels, one behind another in memory of their own, in the order in which a step reads them."""
    ends = list(itertools.accumulate(-(-len(panels.data) // _ALIGNMENT) * _ALIGNMENT for panels in layers))
    memory = torch.empty(ends[-1] if ends else 0, dtype=torch.uint8)
    advise_huge_pages(memory)
    gathered = []
    for panels, begin in zip(layers, [0, *ends], strict=False):
        data = memory[begin : begin + len(panels.data)].copy_(panels.data)
        gathered.append(replace(panels, data=data))
    return gathered


def _largest(weight: torch.Tensor) -> float:
    """The largest magnitude, in one pass and without a copy; NaN where there is one."""
    if not weight.numel():
        return 0.0
    least, most = weight.aminmax()
    return float(torch.maximum(-least, most))


def _pack(weight: torch.Tensor, format: Format, native: Native | None) -> tuple[PackedWeights, int]:
    """The packed weights, and how many blocks are not exactly the weights."""
    check_tensor("weight", weight, (None, None), torch.float32)
    outputs, inputs = weight.shape
    if inputs % BLOCK_SIZE or not inputs or not outputs:
        raise ShapeError(f"weight must be [out, in] with in a multiple of {BLOCK_SIZE}, not {list(weight.shape)}")
    if native is None:
        return _PACK_PLAINLY[format](weight)
    num_blocks = inputs // BLOCK_SIZE
    data = torch.empty(native.library.ft_gemm_bytes(outputs, num_blocks, int(format)), dtype=torch.uint8)
    if data.data_ptr() % _ALIGNMENT:
        raise MemoryError("torch gave memory that is not 64-byte aligned")
    num_inexact = native.library.ft_gemm_pack(
        weight.data_ptr(), outputs, num_blocks, data.data_ptr(), int(format), native.num_threads
    )
    return Panels(format, outputs, inputs, data), num_inexact


def _recover_four_bit(weight: torch.Tensor) -> tuple[Blocks, int]:
    """m is the least weight, d the range by 15; where a block's largest q is less than 15, by less."""
    weight = _in_blocks(weight)
    least, most = weight.amin(-1), weight.amax(-1)
    m = _to_half(least)
    q, d = torch.zeros_like(weight), torch.zeros_like(least)
    found = torch.zeros_like(least, dtype=torch.bool)
    for top in range(15, 0, -1):
        scale = _to_half((most - least) / top)
        steps = torch.nan_to_num((weight - least.unsqueeze(-1)) / scale.unsqueeze(-1), posinf=math.inf).round()
        fits = (steps * scale.unsqueeze(-1) + m.unsqueeze(-1) == weight).all(-1) & (steps.amax(-1) <= 15) & ~found
        q, d = torch.where(fits.unsqueeze(-1), steps, q), torch.where(fits, scale, d)
        found |= fits
    return Blocks(Format.FOUR_BIT, q.to(torch.int8), d, m), int((~found).sum())


def _round_eight_bit(weight: torch.Tensor) -> tuple[Blocks, int]:
    weight = _in_blocks(weight)
    d = _to_half(weight.abs().amax(-1) / 127)
    q = torch.where(d.unsqueeze(-1) > 0, weight / d.unsqueeze(-1), 0.0).round().clamp(-127, 127)
    num_inexact = int((q * d.unsqueeze(-1) != weight).any(-1).sum())
    return Blocks(Format.EIGHT_BIT, q.to(torch.int8), d, torch.zeros_like(d)), num_inexact


def _round_to_half(weight: torch.Tensor) -> tuple[Dense, int]:
    half = weight.to(torch.float16)
    return Dense(half), int((_in_blocks(half.float()) != _in_blocks(weight)).any(-1).sum())


def _keep_float(weight: torch.Tensor) -> tuple[Dense, int]:
    return Dense(weight), 0


_PACK_PLAINLY: Mapping[Format, Callable[[torch.Tensor], tuple[PackedWeights, int]]] = {
    Format.FOUR_BIT: _recover_four_bit,
    Format.EIGHT_BIT: _round_eight_bit,
    Format.HALF: _round_to_half,
    Format.FLOAT: _keep_float,
}


def _in_blocks(weight: torch.Tensor) -> torch.Tensor:
    return weight.view(len(weight), -1, BLOCK_SIZE)


def _to_half(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float16).to(torch.float32)
