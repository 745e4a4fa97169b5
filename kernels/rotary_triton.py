"""Rotary positions and the write to the paged pool, for a GPU: one program for each head of each token.

Bytes a token: its queries, keys and values are read once and written once; cosines and sines are shared by the heads.
Slots are int64 throughout: a pool may hold more than 2³¹ numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from forktree.kernels.checks import FLOATS, ShapeError, check_floats, check_tensor
from forktree.kernels.rotary import HeadNorms, RotaryTable
from forktree.kernels.triton_aot import POINTER_TYPES, AotSpec


@triton.jit
def rotate_and_write_kernel(
    qkv,
    cos,
    sin,
    positions,
    slots,
    q_weight,
    k_weight,
    q_out,
    k_pages,
    v_pages,
    q_heads,
    kv_heads,
    eps,
    HEAD_DIM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    HAS_NORMS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = tl.arange(0, HALF_BLOCK)
    inside = half < HEAD_DIM // 2
    source = qkv + (token * (q_heads + 2 * kv_heads) + head) * HEAD_DIM
    a = tl.load(source + half, mask=inside, other=0.0)
    b = tl.load(source + HEAD_DIM // 2 + half, mask=inside, other=0.0)
    slot = tl.load(slots + token).to(tl.int64)
    written = half < tl.where(slot >= 0, HEAD_DIM // 2, 0)  # a padding row has no slot
    if head >= q_heads + kv_heads:
        target = v_pages + (slot * kv_heads + (head - q_heads - kv_heads)) * HEAD_DIM
        tl.store(target + half, a.to(v_pages.dtype.element_ty), mask=written)
        tl.store(target + HEAD_DIM // 2 + half, b.to(v_pages.dtype.element_ty), mask=written)
    else:
        x = a.to(tl.float32)
        y = b.to(tl.float32)
        if HAS_NORMS:
            mean = tl.sum(x * x + y * y, 0) / HEAD_DIM
            scale = 1.0 / tl.sqrt_rn(mean + eps)
            weight = q_weight if head < q_heads else k_weight
            x = x * scale * tl.load(weight + half, mask=inside, other=0.0).to(tl.float32)
            y = y * scale * tl.load(weight + HEAD_DIM // 2 + half, mask=inside, other=0.0).to(tl.float32)
        position = tl.load(positions + token).to(tl.int64)
        c = tl.load(cos + position * (HEAD_DIM // 2) + half, mask=inside, other=0.0)
        s = tl.load(sin + position * (HEAD_DIM // 2) + half, mask=inside, other=0.0)
        if head < q_heads:
            target = q_out + (token * q_heads + head) * HEAD_DIM
            tl.store(target + half, (x * c - y * s).to(q_out.dtype.element_ty), mask=inside)
            tl.store(target + HEAD_DIM // 2 + half, (y * c + x * s).to(q_out.dtype.element_ty), mask=inside)
        else:
            target = k_pages + (slot * kv_heads + (head - q_heads)) * HEAD_DIM
            tl.store(target + half, (x * c - y * s).to(k_pages.dtype.element_ty), mask=written)
            tl.store(target + HEAD_DIM // 2 + half, (y * c + x * s).to(k_pages.dtype.element_ty), mask=written)


def rotate_and_write(
    qkv: torch.Tensor,
    table: RotaryTable,
    positions: torch.Tensor,
    slots: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    *,
    q_heads: int,
    norms: HeadNorms | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`kernels.rotary.rotate_and_write` for any float type.

    A negative slot writes nothing: the row is padding. Rotation and norms are float32 between reading and writing.

    Raises:
        ShapeError: shapes or types that do not fit, or an odd head_dim.
    """
    check_floats("k_pages", k_pages, (None, None, None, None))
    check_tensor("v_pages", v_pages, tuple(k_pages.shape), k_pages.dtype)
    kv_heads, head_dim = k_pages.shape[2:]
    tokens = qkv.shape[0]
    check_floats("qkv", qkv, (None, (q_heads + 2 * kv_heads) * head_dim))
    check_tensor("positions", positions, (tokens,), torch.int64)
    check_tensor("slots", slots, (tokens,), torch.int64)
    if head_dim % 2:
        raise ShapeError(f"head_dim must be even to be rotated, not {head_dim}")
    check_tensor("table.cos", table.cos, (None, head_dim // 2), torch.float32)
    check_tensor("table.sin", table.sin, tuple(table.cos.shape), torch.float32)
    if out is None:
        out = qkv.new_empty(tokens, q_heads, head_dim)
    check_tensor("out", out, (tokens, q_heads, head_dim), qkv.dtype)
    if tokens:
        rotate_and_write_kernel[(tokens, q_heads + 2 * kv_heads)](
            qkv,
            table.cos,
            table.sin,
            positions,
            slots,
            qkv if norms is None else norms.q_weight,
            qkv if norms is None else norms.k_weight,
            out,
            k_pages,
            v_pages,
            q_heads,
            kv_heads,
            0.0 if norms is None else norms.eps,
            HEAD_DIM=head_dim,
            HALF_BLOCK=triton.next_power_of_2(head_dim // 2),
            HAS_NORMS=norms is not None,
            num_warps=1,
        )
    return out


def aot_specs() -> Iterator[AotSpec]:
    """For each type at head sizes 64 and 128, without head norms and with them."""
    for dtype in FLOATS:
        kind = POINTER_TYPES[dtype]
        for head_dim, has_norms in ((64, False), (128, True)):
            yield AotSpec(
                name=f"rotate_and_write {str(dtype).removeprefix('torch.')} d{head_dim}{' norms' if has_norms else ''}",
                kernel=rotate_and_write_kernel,
                arguments=dict.fromkeys(("qkv", "q_weight", "k_weight", "q_out", "k_pages", "v_pages"), kind)
                | {"cos": "*fp32", "sin": "*fp32", "positions": "*i64", "slots": "*i64"}
                | {"q_heads": "i32", "kv_heads": "i32", "eps": "fp32"},
                constants={"HEAD_DIM": head_dim, "HALF_BLOCK": head_dim // 2, "HAS_NORMS": has_norms},
                num_warps=1,
                enable_fp_fusion=True,
            )
