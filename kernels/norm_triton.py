"""RMS norm with the residual's addition, for a GPU: one program a row, so that a row's sum knows no other row.

Bytes a row of `hidden` numbers: residual read and written, delta read, result written; the weight stays in cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from forktree.kernels.checks import FLOATS, check_floats
from forktree.kernels.triton_aot import POINTER_TYPES, AotSpec


@triton.jit
def add_rms_norm_kernel(
    residual,
    delta,
    weight,
    out,
    hidden,
    eps,
    HAS_DELTA: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    x = tl.load(residual + row * hidden + columns, mask=inside, other=0.0)
    if HAS_DELTA:
        x = (x.to(tl.float32) + tl.load(delta + row * hidden + columns, mask=inside, other=0.0).to(tl.float32)).to(
            residual.dtype.element_ty
        )
        tl.store(residual + row * hidden + columns, x, mask=inside)
    wide = x.to(tl.float32)
    mean = tl.sum(wide * wide, 0) / hidden
    scale = 1.0 / tl.sqrt_rn(mean + eps)
    y = wide * scale * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + columns, y.to(out.dtype.element_ty), mask=inside)


def add_rms_norm(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    *,
    eps: float,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`kernels.norm.add_rms_norm` for any float type.

    Args:
        residual: [tokens, hidden]; holds the sum, rounded to its type, afterwards.
        delta:    [tokens, hidden] or None
        weight:   [hidden]
        dtype:    of the result; the residual's by default.
        out:      where to write it, [tokens, hidden].
    Raises:
        ShapeError: shapes or types that do not fit.
    """
    check_floats("residual", residual, (None, None))
    tokens, hidden = residual.shape
    check_floats("weight", weight, (hidden,))
    if delta is not None:
        check_floats("delta", delta, (tokens, hidden))
    if out is None:
        out = torch.empty_like(residual, dtype=dtype or residual.dtype)
    check_floats("out", out, (tokens, hidden))
    if tokens:
        block = triton.next_power_of_2(hidden)
        add_rms_norm_kernel[(tokens,)](
            residual,
            residual if delta is None else delta,
            weight,
            out,
            hidden,
            eps,
            HAS_DELTA=delta is not None,
            BLOCK=block,
            num_warps=min(16, max(1, block // 512)),
        )
    return out


def aot_specs() -> Iterator[AotSpec]:
    """For each type of activations beside a float32 residual, at 576 and 4,096 numbers a row."""
    for dtype in FLOATS:
        for hidden in (576, 4096):
            block, kind = triton.next_power_of_2(hidden), POINTER_TYPES[dtype]
            yield AotSpec(
                name=f"add_rms_norm {str(dtype).removeprefix('torch.')} {hidden}",
                kernel=add_rms_norm_kernel,
                arguments={"residual": "*fp32", **dict.fromkeys(("delta", "weight", "out"), kind)}
                | {"hidden": "i32", "eps": "fp32"},
                constants={"HAS_DELTA": True, "BLOCK": block},
                num_warps=min(16, max(1, block // 512)),
                enable_fp_fusion=True,
            )
