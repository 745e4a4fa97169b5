"""A row-invariant product with dense weights, for a GPU.

The weights' rows are the tile's first axis and the tokens its second, for one token as for thousands: so a tensor
core always runs the same instruction shape but for its width, and sixteen tokens waste nothing. Every output is one
chain of sums along the inner axis (`kernels.matmul` says how it is cut), so neither the width nor the number of
tiles can change a bit of it.

    few tokens     programs = tiles of outputs × segments, partial sums in float32, added by a second kernel
    a prompt       one program walks all segments of its tile

Bytes for few tokens: the weights once; partial sums are segments · tokens · outputs · 8 bytes beside that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from forktree.kernels.checks import FLOATS
from forktree.kernels.matmul import BLOCK_K, check_multiply, segment_length
from forktree.kernels.triton_aot import POINTER_TYPES, AotSpec
from forktree.kernels.triton_mode import is_interpreted

_GROUP = 8
_REDUCE_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a product is cut for a number of tokens: nothing here reaches the order of sums."""

    outputs: int
    tokens: int
    num_warps: int
    num_stages: int


FEW = Tiles(outputs=64, tokens=16, num_warps=4, num_stages=5)
MANY = Tiles(outputs=64, tokens=64, num_warps=4, num_stages=4)
PROMPT = Tiles(outputs=128, tokens=128, num_warps=8, num_stages=3)
MAX_SPLIT_TOKENS = 64
"""Most tokens whose segments are computed by programs of their own."""


@triton.jit
def multiply_kernel(
    x,
    weight,
    bias,
    out,
    num_tokens,
    num_outputs,
    num_inputs,
    segment,
    HAS_BIAS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    ONE_SEGMENT: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Split: out is [segments, tokens, outputs] float32, a program is (tile, segment). Else: [tokens, outputs].

    WIDEN is for the interpreter (`triton_mode.is_interpreted`).
    """
    tiles_n = tl.cdiv(num_outputs, TILE_N)
    tiles_m = tl.cdiv(num_tokens, TILE_M)
    pid = tl.program_id(0)
    group = pid // (GROUP * tiles_m)  # GROUP tiles of weights stay in cache while all tokens pass them
    width = tl.minimum(tiles_n - group * GROUP, GROUP)
    tile_n = group * GROUP + pid % (GROUP * tiles_m) % width
    tile_m = pid % (GROUP * tiles_m) // width
    outputs = (tile_n * TILE_N + tl.arange(0, TILE_N)).to(tl.int64)
    tokens = (tile_m * TILE_M + tl.arange(0, TILE_M)).to(tl.int64)
    inner = tl.arange(0, TILE_K)
    w_rows = weight + outputs[:, None] * num_inputs
    x_rows = x + tokens[None, :] * num_inputs
    has_output = outputs[:, None] < num_outputs
    has_token = tokens[None, :] < num_tokens
    begin = tl.program_id(1) * segment if IS_SPLIT else 0
    end = tl.minimum(begin + segment, num_inputs) if IS_SPLIT else num_inputs
    total = tl.zeros((TILE_N, TILE_M), tl.float32)
    if ONE_SEGMENT or IS_SPLIT:
        for start in range(begin, end, TILE_K):
            k = start + inner
            w_tile = tl.load(w_rows + k[None, :], mask=has_output & (k[None, :] < num_inputs), other=0.0)
            x_tile = tl.load(x_rows + k[:, None], mask=has_token & (k[:, None] < num_inputs), other=0.0)
            if WIDEN:
                w_tile = w_tile.to(tl.float32)
                x_tile = x_tile.to(tl.float32)
            total = tl.dot(w_tile, x_tile, total, input_precision="ieee")
    else:
        for first in range(begin, end, segment):
            part = tl.zeros((TILE_N, TILE_M), tl.float32)
            for start in range(first, tl.minimum(first + segment, end), TILE_K):
                k = start + inner
                w_tile = tl.load(w_rows + k[None, :], mask=has_output & (k[None, :] < num_inputs), other=0.0)
                x_tile = tl.load(x_rows + k[:, None], mask=has_token & (k[:, None] < num_inputs), other=0.0)
                if WIDEN:
                    w_tile = w_tile.to(tl.float32)
                    x_tile = x_tile.to(tl.float32)
                part = tl.dot(w_tile, x_tile, part, input_precision="ieee")
            total += part
    if HAS_BIAS:
        total += tl.load(bias + outputs, mask=outputs < num_outputs, other=0.0).to(tl.float32)[:, None]
    target = out + tokens[None, :] * num_outputs + outputs[:, None]
    if IS_SPLIT:
        target += tl.program_id(1).to(tl.int64) * num_tokens * num_outputs
    tl.store(target, total.to(out.dtype.element_ty), mask=has_output & has_token)


@triton.jit
def add_segments_kernel(parts, bias, out, num_outputs, size, segments, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """parts [segments, size] float32 → out [size], the segments added in order; size = tokens · outputs."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.zeros((BLOCK,), tl.float32)
    for segment in range(segments):
        total += tl.load(parts + segment * size + at, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + at % num_outputs, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def choose_tiles(num_tokens: int, dtype: torch.dtype) -> Tiles:
    """Float32 has no matrix instruction: its larger tiles would spill, and gain nothing."""
    if num_tokens <= FEW.tokens or dtype == torch.float32:
        return FEW
    return MANY if num_tokens <= MAX_SPLIT_TOKENS else PROMPT


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`kernels.matmul.multiply` on a device.

    Raises:
        ShapeError: shapes or types that do not fit.
    """
    check_multiply(x, weight, bias)
    num_tokens, (num_outputs, num_inputs) = x.shape[0], weight.shape
    out = torch.empty(num_tokens, num_outputs, dtype=dtype or x.dtype, device=x.device)
    if not out.numel():
        return out
    length = segment_length(num_outputs, num_inputs)
    segments = triton.cdiv(num_inputs, length)
    if segments > 1 and num_tokens <= MAX_SPLIT_TOKENS:
        parts = torch.empty(segments, num_tokens, num_outputs, dtype=torch.float32, device=x.device)
        _launch(x, weight, None, parts, length, segments, is_split=True)
        size = num_tokens * num_outputs
        add_segments_kernel[(triton.cdiv(size, _REDUCE_BLOCK),)](
            parts,
            out if bias is None else bias,
            out,
            num_outputs,
            size,
            segments,
            HAS_BIAS=bias is not None,
            BLOCK=_REDUCE_BLOCK,
        )
    else:
        _launch(x, weight, bias, out, length, segments, is_split=False)
    return out


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    length: int,
    segments: int,
    *,
    is_split: bool,
) -> None:
    num_tokens, (num_outputs, num_inputs) = x.shape[0], weight.shape
    tiles = choose_tiles(num_tokens, x.dtype)
    grid = (
        triton.cdiv(num_outputs, tiles.outputs) * triton.cdiv(num_tokens, tiles.tokens),
        segments if is_split else 1,
    )
    multiply_kernel[grid](
        x,
        weight,
        out if bias is None else bias,
        out,
        num_tokens,
        num_outputs,
        num_inputs,
        length,
        HAS_BIAS=bias is not None,
        IS_SPLIT=is_split,
        ONE_SEGMENT=segments == 1,
        TILE_N=tiles.outputs,
        TILE_M=tiles.tokens,
        TILE_K=BLOCK_K,
        GROUP=_GROUP,
        WIDEN=is_interpreted() and x.dtype == torch.bfloat16,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def aot_specs() -> Iterator[AotSpec]:
    """For each type: few tokens and 64 of them in segments, and a prompt over several segments."""
    for dtype in FLOATS:
        kind, name = POINTER_TYPES[dtype], str(dtype).removeprefix("torch.")
        for what, num_tokens, is_split in (("few", 1, True), ("64", 64, True), ("prompt", 65, False)):
            tiles = choose_tiles(num_tokens, dtype)
            yield AotSpec(
                name=f"multiply {name} {what}",
                kernel=multiply_kernel,
                arguments=dict.fromkeys(("x", "weight", "bias"), kind)
                | {"out": "*fp32" if is_split else kind}
                | {"num_tokens": "i32"},
                constants={
                    **{"num_outputs": 4096, "num_inputs": 4096, "segment": 1024},  # a launch knows that 16 divides them
                    "HAS_BIAS": False,
                    "IS_SPLIT": is_split,
                    "ONE_SEGMENT": False,
                    "TILE_N": tiles.outputs,
                    "TILE_M": tiles.tokens,
                    "TILE_K": BLOCK_K,
                    "GROUP": _GROUP,
                    "WIDEN": False,
                },
                num_warps=tiles.num_warps,
                num_stages=tiles.num_stages,
                enable_fp_fusion=True,
            )
        yield AotSpec(
            name=f"add_segments {name}",
            kernel=add_segments_kernel,
            arguments={"parts": "*fp32", "bias": kind, "out": kind}
            | dict.fromkeys(("num_outputs", "size", "segments"), "i32"),
            constants={"HAS_BIAS": False, "BLOCK": _REDUCE_BLOCK},
            enable_fp_fusion=True,
        )
