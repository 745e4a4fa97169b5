"""SiLU of the gate times the other half, for a GPU. Bytes a token: 2 · intermediate read, intermediate written."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from forktree.kernels.checks import FLOATS, ShapeError, check_floats, check_tensor
from forktree.kernels.triton_aot import POINTER_TYPES, AotSpec

_BLOCK = 1024


@triton.jit
def silu_mul_kernel(gate_up, out, inner, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inner
    gate = tl.load(gate_up + row * 2 * inner + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * inner + inner + columns, mask=inside, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * inner + columns, y.to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`kernels.activation.silu_mul` for any float type; computed in float32.

    Raises:
        ShapeError: an odd width, or a tensor that does not fit.
    """
    check_floats("gate_up", gate_up, (None, None))
    tokens, width = gate_up.shape
    if width % 2:
        raise ShapeError(f"gate_up must have an even width, not {width}")
    if out is None:
        out = gate_up.new_empty(tokens, width // 2)
    check_tensor("out", out, (tokens, width // 2), gate_up.dtype)
    if tokens:
        grid = (tokens, triton.cdiv(width // 2, _BLOCK))
        silu_mul_kernel[grid](gate_up, out, width // 2, BLOCK=_BLOCK, num_warps=4)
    return out


def aot_specs() -> Iterator[AotSpec]:
    """For each type."""
    for dtype in FLOATS:
        yield AotSpec(
            name=f"silu_mul {str(dtype).removeprefix('torch.')}",
            kernel=silu_mul_kernel,
            arguments={"gate_up": POINTER_TYPES[dtype], "out": POINTER_TYPES[dtype], "inner": "i32"},
            constants={"BLOCK": _BLOCK},
            enable_fp_fusion=True,
        )
