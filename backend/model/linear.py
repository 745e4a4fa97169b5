"""Linear layers whose rows do not know each other: a row's result is the same, to the bit, beside any others.

Which library paths keep that was measured (one row against 1 to 64 rows, at the shapes of small and large
layers): fbgemm's packed fp16 holds for every count, oneDNN's packed fp32 from two rows on, plain
`torch.nn.functional.linear` at almost none. So that a longer chunk needs no further proof, rows are computed
in blocks of at most 64, and every layer shape is checked when a model is loaded. Where no packed path holds on
a machine, rows are computed one by one: slow, and exact by construction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

import torch

from forktree.lang.errors import ModelError

_log = logging.getLogger("forktree.model")

Kind = Literal["fp32", "fp16"]
MAX_ROWS = 64
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


Maker = Callable[[torch.Tensor, "torch.Tensor | None"], Linear]


class LinearFactory:
    """Makes every linear layer of one model, and checks each new shape once.

    Args:
        quantize: "none" keeps fp32; "fp16" packs weights as fp16; "auto" is fp16 where the library has it and
            the weights fit, else fp32.
    """

    def __init__(self, quantize: Literal["auto", "none", "fp16"]) -> None:
        if quantize not in ("auto", "none", "fp16"):
            raise ValueError(f'quantize must be "auto", "none" or "fp16", not {quantize!r}')
        self._quantize = quantize
        self._holds: dict[tuple[Maker, tuple[int, ...]], bool] = {}

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """The first kind that is exact here for this shape: weight [out, in], bias [out].

        Raises:
            ModelError: fp16 was asked for and cannot be had.
        """
        for maker in self._candidates(weight):
            if self._check(maker, weight, bias):
                return maker(weight, bias)
        if self._quantize == "fp16":
            raise ModelError("fp16 weights cannot be used exactly on this machine; use quantize='none'")
        _log.info("no packed linear path is exact here for %s; computing row by row", list(weight.shape))
        return RowwiseLinear(weight, bias)

    def _candidates(self, weight: torch.Tensor) -> Iterator[Maker]:
        if self._quantize != "none":
            fits = float(weight.abs().max()) <= _LARGEST_FP16
            if fits and "fbgemm" in torch.backends.quantized.supported_engines:
                yield Fp16Linear
            elif self._quantize == "fp16":
                why = "fbgemm is missing" if fits else f"a weight exceeds {_LARGEST_FP16:g}"
                raise ModelError(f"weights cannot be packed as fp16: {why}; use quantize='none'")
        if self._quantize != "fp16" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            yield PackedLinear

    def _check(self, maker: Maker, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        key = (maker, tuple(weight.shape))
        if key not in self._holds:
            self._holds[key] = is_row_invariant(maker(weight, bias), weight.shape[1])
        return self._holds[key]


def is_row_invariant(linear: Linear, in_features: int) -> bool:
    """Whether every row of 1 to 64 comes out with the same bits as in a block of two."""
    x = torch.randn(MAX_ROWS, in_features, generator=torch.Generator().manual_seed(0))
    pairs = torch.cat([linear(x[i : i + 2]) for i in range(0, MAX_ROWS, 2)])
    if not all(torch.equal(linear(x[i : i + 1]), pairs[i : i + 1]) for i in range(4)):
        return False
    return all(torch.equal(linear(x[:rows]), pairs[:rows]) for rows in _CHECKED_ROWS)
