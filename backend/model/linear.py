"""Linear layers whose rows do not know each other: a row's result is the same, to the bit, beside any others.

The native library's layers have one order of operations for any number of rows, and need no check. Where there is no
compiler, or a width is no multiple of 32, a library's packed layers take their place. Which of these keep rows apart
was measured (one row against 1 to 64 rows, at the shapes of small and large layers): fbgemm's packed fp16 holds for
every count, oneDNN's packed fp32 from two rows on, plain `torch.nn.functional.linear` at almost none. So that a longer
chunk needs no further proof, these compute rows in blocks of at most 64, and every layer shape is checked when a model
is loaded. Where no packed path holds on a machine, rows are computed one by one: slow, and exact by construction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Protocol, get_args

import torch

from forktree.kernels.gemm import Activations, multiply_blocks
from forktree.kernels.gemm_weights import (
    BLOCK_SIZE,
    Format,
    PackedWeights,
    can_pack,
    keep_weights,
    recover_weights,
    round_weights,
)
from forktree.kernels.native import Native
from forktree.lang.errors import ModelError

_log = logging.getLogger("forktree.model")

Quantize = Literal["auto", "none", "fp16", "int8", "mixed", "q4"]
QUANTIZE: tuple[str, ...] = get_args(Quantize)

MAX_ROWS = 64
_ACTIVATIONS: Mapping[str, Activations] = {
    "auto": Activations.SIXTEEN_BIT,
    "mixed": Activations.MIXED,
    "int8": Activations.EIGHT_BIT,
    "q4": Activations.EIGHT_BIT,
}
"""Of the layers in blocks. The same in every part of a model: no part is spared by 8 bits (docs/performance.md)."""
_EXACT_BLOCKS = ("auto", "mixed")
_CHECKED_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 15, 16, 17, 24, 31, 32, 33, 47, 48, 63, 64)
_LARGEST_FP16 = 65504.0


class Linear(Protocol):
    """x [tokens, in] float32 → [tokens, out] float32."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Fp16Linear:
    """Weights packed as fp16, products and sums in fp32 (fbgemm)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _in_blocks(x, lambda rows: torch.ops.quantized.linear_dynamic_fp16(rows, self._packed))


class PackedLinear:
    """Weights packed as fp32 (oneDNN); one row is computed as two, since the path for one sums differently."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), MAX_ROWS)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _in_blocks(x, self._block)

    def _block(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) == 1:
            return self._block(rows.expand(2, -1).contiguous())[:1]
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return out


class RowwiseLinear:
    """One row at a time: the same call for every row, whatever the library does."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight.contiguous()
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(len(x), len(self._weight))
        for row, result in zip(x, out, strict=True):
            result.copy_(torch.nn.functional.linear(row.unsqueeze(0), self._weight, self._bias)[0])
        return out


def _in_blocks(x: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    if 0 < len(x) <= MAX_ROWS:
        return compute(x)
    if len(x) == 0:
        return compute(x.new_zeros(1, x.shape[1]))[:0]
    return torch.cat([compute(block) for block in torch.split(x, MAX_ROWS)])


class BlockLinear:
    """Weights packed for kernels/gemm.py: quantised blocks with quantised activations, or floats with floats."""

    def __init__(
        self,
        weights: PackedWeights,
        bias: torch.Tensor | None,
        native: Native | None,
        activations: Activations = Activations.SIXTEEN_BIT,
    ) -> None:
        self.weights = weights
        self.bias = bias
        self.activations = activations
        self._native = native

    @property
    def format(self) -> Format:
        return self.weights.format

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return multiply_blocks(x, self.weights, self.bias, activations=self.activations, native=self._native)


class LinearFactory:
    """Makes every linear layer of one model, and checks each new shape once.

    Args:
        quantize: one of `QUANTIZE`.
            "none"  float32.
            "fp16"  weights in fp16, products and sums in float32.
            "int8"  weights rounded to 8-bit blocks, activations in 8-bit blocks.
            "q4"    like "int8", but a layer whose weights were made of 4-bit blocks keeps just these.
            "auto"  a layer whose weights were made of 4-bit or 8-bit blocks keeps just these, with activations of 16
                    bits; other layers, and all of them where there are no native kernels, are fp16 where the weights
                    fit (and, without native kernels, the library has it), else float32.
            "mixed" like "auto", but activations have 16 bits where a block's scale is large in its row, 8 elsewhere.
            A layer whose inputs are no multiple of 32 is never in blocks; it is fp16 or float32 likewise.
        native: the library that makes blocks fast; without it they take the plain torch path, which is slow.
    """

    def __init__(self, quantize: Quantize, native: Native | None = None) -> None:
        if quantize not in QUANTIZE:
            names = ", ".join(f'"{name}"' for name in QUANTIZE[:-1])
            raise ValueError(f'quantize must be {names} or "{QUANTIZE[-1]}", not {quantize!r}')
        self._quantize = quantize
        self._native = native
        self._holds: dict[tuple[type[Linear], tuple[int, ...]], bool] = {}

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """The first kind that is exact here for this shape: weight [out, in], bias [out].

        Raises:
            ModelError: fp16 was asked for and cannot be had.
        """
        for linear in self._candidates(weight.contiguous(), bias):
            if self._holds_for(linear, weight):
                return linear
        if self._quantize == "fp16":
            raise ModelError("fp16 weights cannot be used exactly on this machine; use quantize='none'")
        _log.info("no packed linear path is exact here for %s; computing row by row", list(weight.shape))
        return RowwiseLinear(weight, bias)

    def _candidates(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Iterator[Linear]:
        """Kinds in order of preference, each made when it is asked for."""
        if (blocks := self._quantised(weight)) is not None:
            yield BlockLinear(blocks, bias, self._native, _ACTIVATIONS[self._quantize])
        is_half = self._quantize != "none" and float(weight.abs().max()) <= _LARGEST_FP16
        if self._quantize == "fp16" and not is_half:
            raise ModelError(
                f"weights cannot be packed as fp16: a weight exceeds {_LARGEST_FP16:g}; use quantize='none'"
            )
        if self._native is not None and weight.shape[1] % BLOCK_SIZE == 0:
            kept = keep_weights(weight, Format.HALF if is_half else Format.FLOAT, native=self._native)
            yield BlockLinear(kept, bias, self._native, Activations.FLOAT)
        if is_half and "fbgemm" in torch.backends.quantized.supported_engines:
            yield Fp16Linear(weight, bias)
        elif self._quantize == "fp16":
            raise ModelError("weights cannot be packed as fp16: fbgemm is missing; use quantize='none'")
        if self._quantize != "fp16" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            yield PackedLinear(weight, bias)

    def _quantised(self, weight: torch.Tensor) -> PackedWeights | None:
        """The weights in quantised blocks; None where this quantisation has none for them."""
        if self._quantize not in _ACTIVATIONS or not can_pack(weight):
            return None
        if self._quantize in _EXACT_BLOCKS:
            if self._native is None:
                return None
            formats = (format for format in Format if format.is_quantised)
            found = (recover_weights(weight, format, native=self._native) for format in formats)
            return next((packed for packed in found if packed is not None), None)
        if self._quantize == "q4" and (packed := recover_weights(weight, Format.FOUR_BIT, native=self._native)):
            return packed
        return round_weights(weight, native=self._native)

    def _holds_for(self, linear: Linear, weight: torch.Tensor) -> bool:
        """A library's path is tried out; ours has one order of operations by construction."""
        if isinstance(linear, BlockLinear):
            return True
        key = (type(linear), tuple(weight.shape))
        if key not in self._holds:
            self._holds[key] = is_row_invariant(linear, weight.shape[1])
        return self._holds[key]


def is_row_invariant(linear: Linear, in_features: int) -> bool:
    """Whether every row of 1 to 64 comes out with the same bits as in a block of two."""
    x = torch.randn(MAX_ROWS, in_features, generator=torch.Generator().manual_seed(0))
    pairs = torch.cat([linear(x[i : i + 2]) for i in range(0, MAX_ROWS, 2)])
    if not all(torch.equal(linear(x[i : i + 1]), pairs[i : i + 1]) for i in range(4)):
        return False
    return all(torch.equal(linear(x[:rows]), pairs[:rows]) for rows in _CHECKED_ROWS)
