"""Packed masks over logits, for a GPU. Bytes a row: vocab / 8 read; only what is forbidden is written."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from forktree.kernels.triton_aot import POINTER_TYPES, AotSpec

_BLOCK = 4096


@triton.jit
def apply_bitmask_kernel(logits, masks, width, words, vocab_size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = (ids < vocab_size) & (ids < words * 32)
    word = tl.load(masks + row * words + ids // 32, mask=known, other=0)
    legal = ((word >> (ids % 32)) & 1) != 0
    nothing = tl.full((BLOCK,), float("-inf"), tl.float32).to(logits.dtype.element_ty)
    tl.store(logits + row * width + ids, nothing, mask=(ids < width) & (legal == 0))


def apply_bitmask(logits: torch.Tensor, masks: torch.Tensor, *, vocab_size: int) -> torch.Tensor:
    """`kernels.bitmask.apply_bitmask`, whose checks the caller has made."""
    rows, width = logits.shape
    if rows:
        grid = (rows, triton.cdiv(width, _BLOCK))
        apply_bitmask_kernel[grid](logits, masks, width, masks.shape[1], vocab_size, BLOCK=_BLOCK, num_warps=4)
    return logits


def aot_specs() -> Iterator[AotSpec]:
    """For float32 logits."""
    yield AotSpec(
        name="apply_bitmask float32",
        kernel=apply_bitmask_kernel,
        arguments={"logits": "*fp32", "masks": POINTER_TYPES[torch.int32]}
        | dict.fromkeys(("width", "words", "vocab_size"), "i32"),
        constants={"BLOCK": _BLOCK},
        enable_fp_fusion=True,
    )
