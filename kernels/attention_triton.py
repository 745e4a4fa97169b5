"""Paged attention on a GPU; the contract is that of `attention.attend`.

Exactness. A tile shape is chosen by type and head size alone, so one query and many run the same instructions; keys
are cut into tiles at fixed positions of a split, and splits at absolute positions; states are merged in order of
splits. What a tile masks adds nothing: −∞ scores weigh exactly 0, and a state of no keys merges as nothing.
The compiler may not fuse products and sums on its own (`enable_fp_fusion=False`), so that the two ways a row can go
(`attend_items` and `merge_states`, or `attend_chunks`) round alike.

One exception to a row's independence remains: a row that shares its split with a longer one has that one's values
multiplied by weights of exactly 0, which an infinity or NaN among these values turns to NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import triton

from forktree.kernels import attention_triton_kernels as kernels
from forktree.kernels.attention_triton_plan import (
    CHUNK_ARRAYS,
    GPU_SPLIT,
    ITEM_ARRAYS,
    NO_WINDOW,
    TritonPlan,
    check_soft_cap,
)
from forktree.kernels.checks import FLOATS, ShapeError, check_floats, check_tensor
from forktree.kernels.triton_aot import POINTER_TYPES, AotSpec
from forktree.kernels.triton_mode import is_interpreted

_MERGE_AHEAD = 4


class TileShape(NamedTuple):
    """What one program of an attention kernel computes at a time, and with how many warps and pipeline stages."""

    queries: int
    keys: int
    dim: int
    num_warps: int
    num_stages: int


def tile_shape(dtype: torch.dtype, head_dim: int) -> TileShape:
    """The one shape for a type and head size: 64 rows fill a warp group's matrix instruction; float32 has none.

    Raises:
        ShapeError: a head size over 256, or a type that the kernels do not take.
    """
    if not 1 <= head_dim <= 256:
        raise ShapeError(f"head_dim must be in [1, 256], not {head_dim}")
    if dtype not in FLOATS:
        raise ShapeError(f"attention takes float32, bfloat16 or float16, not {dtype}")
    dim = max(16, triton.next_power_of_2(head_dim))
    if dtype == torch.float32:
        return TileShape(16, 32 if dim <= 128 else 16, dim, num_warps=4 if dim <= 64 else 8, num_stages=2)
    if dim <= 128:
        return TileShape(64, 64, dim, num_warps=4, num_stages=2)
    return TileShape(64, 32, dim, num_warps=8, num_stages=2)


def attend_triton(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    plan: TritonPlan,
    *,
    scale: float,
    soft_cap: float | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend every query to the keys and values that its row sees.

    Args:
        q:       [tokens, q_heads, head_dim] float32, bfloat16 or float16
        k_pages: [pages, page_size, kv_heads, head_dim], type of q; slots that no row sees are never read
        v_pages: the same
        plan:    of these rows, on q's device; its window holds.
        scale:   multiplies the scores
        soft_cap: a score s becomes soft_cap · tanh(s / soft_cap).
        out:     where to write the result, [tokens, q_heads, head_dim], type of q.
    Raises:
        ShapeError: shapes, types or devices that do not fit, or a plan for another shape.
        ValueError: a soft cap that is not above 0.
    """
    check_floats("q", q, (plan.num_rows, None, None))
    head_dim = q.shape[2]
    tile = tile_shape(q.dtype, head_dim)
    check_tensor("k_pages", k_pages, (None, plan.page_size, None, head_dim), q.dtype)
    check_tensor("v_pages", v_pages, tuple(k_pages.shape), q.dtype)
    _check_plan(q, k_pages, plan, tile)
    check_soft_cap(soft_cap)
    out = torch.empty_like(q) if out is None else out
    check_tensor("out", out, tuple(q.shape), q.dtype)
    task = _Task(q, k_pages, v_pages, plan, tile, out, float(scale), float(soft_cap or 0.0))
    with _on_device(q):
        if plan.merge_rows:
            _attend_items(task)
        if plan.chunk_tiles:
            _attend_chunks(task)
    return out


def _check_plan(q: torch.Tensor, k_pages: torch.Tensor, plan: TritonPlan, tile: TileShape) -> None:
    num_pages, page_size, kv_heads, _ = k_pages.shape
    q_heads = q.shape[1]
    if q_heads % kv_heads:
        raise ShapeError(f"q_heads must be a multiple of the {kv_heads} kv_heads, not {q_heads}")
    if (plan.group, plan.tile_queries) != (q_heads // kv_heads, tile.queries):
        raise ShapeError(
            f"the plan is for {plan.group} query heads of a KV head in tiles of {plan.tile_queries} queries, "
            f"but these tensors have {q_heads // kv_heads} and take tiles of {tile.queries}"
        )
    if plan.max_slot >= num_pages * page_size:
        raise ShapeError(f"page ids must be below {num_pages}, not {plan.max_slot // page_size}")
    devices = {str(x.device) for x in (q, k_pages, plan.arrays["counts"])}
    if len(devices) > 1:
        raise ShapeError(f"q, k_pages and the plan must lie on one device, not on {', '.join(sorted(devices))}")


class _Task(NamedTuple):
    q: torch.Tensor
    k_pages: torch.Tensor
    v_pages: torch.Tensor
    plan: TritonPlan
    tile: TileShape
    out: torch.Tensor
    scale: float
    soft_cap: float


def _attend_items(task: _Task) -> None:
    q, plan, arrays = task.q, task.plan, task.plan.arrays
    _, q_heads, head_dim = q.shape
    kv_heads = task.k_pages.shape[2]
    partial = q.new_empty(plan.num_pairs, q_heads, head_dim, dtype=torch.float32)
    stats = q.new_empty(plan.num_pairs, q_heads, 2, dtype=torch.float32)
    kernels.attend_items[(plan.item_tiles * kv_heads,)](
        q=q,
        k_pages=task.k_pages,
        v_pages=task.v_pages,
        partial=partial,
        stats=stats,
        counts=arrays["counts"],
        **{name: arrays[name] for name in _ITEM_READS},
        scale=task.scale,
        soft_cap=task.soft_cap,
        **_tile_constants(task.tile, head_dim, q_heads, kv_heads, has_cap=task.soft_cap > 0),
        PAGE_SIZE=plan.page_size,
        WIDEN=is_interpreted() and task.q.dtype == torch.bfloat16,
        **_options(task.tile),
    )
    constants = _merge_constants(task.tile, head_dim, q_heads, kv_heads)
    kernels.merge_states[(plan.merge_rows * triton.cdiv(q_heads, constants["HEADS"]),)](
        partial=partial,
        stats=stats,
        out=task.out,
        counts=arrays["counts"],
        **{name: arrays[name] for name in _MERGE_READS},
        **constants,
        **_options(_MERGE_TILE),
    )


def _attend_chunks(task: _Task) -> None:
    plan, arrays = task.plan, task.plan.arrays
    _, q_heads, head_dim = task.q.shape
    kv_heads = task.k_pages.shape[2]
    kernels.attend_chunks[(plan.chunk_tiles * kv_heads,)](
        q=task.q,
        k_pages=task.k_pages,
        v_pages=task.v_pages,
        out=task.out,
        counts=arrays["counts"],
        **{name: arrays[name] for name in CHUNK_ARRAYS},
        window=NO_WINDOW if plan.window is None else plan.window,
        scale=task.scale,
        soft_cap=task.soft_cap,
        **_tile_constants(task.tile, head_dim, q_heads, kv_heads, has_cap=task.soft_cap > 0),
        PAGE_SIZE=plan.page_size,
        WIDEN=is_interpreted() and task.q.dtype == torch.bfloat16,
        SPLIT=plan.split,
        **_options(task.tile),
    )


_ITEM_READS = ITEM_ARRAYS[:-3]
_MERGE_READS = ITEM_ARRAYS[-3:]
_MERGE_TILE = TileShape(1, 1, 16, num_warps=1, num_stages=2)


def _tile_constants(
    tile: TileShape, head_dim: int, q_heads: int, kv_heads: int, *, has_cap: bool
) -> dict[str, int | bool]:
    return {
        "QUERIES": tile.queries,
        "KEYS": tile.keys,
        "DIM": tile.dim,
        "HEAD_DIM": head_dim,
        "Q_HEADS": q_heads,
        "KV_HEADS": kv_heads,
        "HAS_CAP": has_cap,
    }


def _merge_constants(tile: TileShape, head_dim: int, q_heads: int, kv_heads: int) -> dict[str, int]:
    heads = min(16, triton.next_power_of_2(q_heads // kv_heads))
    return {"HEADS": heads, "DIM": tile.dim, "HEAD_DIM": head_dim, "Q_HEADS": q_heads, "AHEAD": _MERGE_AHEAD}


def _options(tile: TileShape) -> dict[str, int | bool]:
    return {"num_warps": tile.num_warps, "num_stages": tile.num_stages, "enable_fp_fusion": False}


def _on_device(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


_AOT_SHAPES = ((9, 3, 64), (32, 8, 128), (8, 4, 256))
"""Query heads, KV heads and head size of SmolLM2-135M, Llama-3-8B and Gemma-2-2B."""


def aot_specs() -> Iterator[AotSpec]:
    """Every kernel for each type, at the shapes of some models; with a soft cap where the model has one."""
    for dtype in FLOATS:
        for q_heads, kv_heads, head_dim in _AOT_SHAPES:
            yield from _aot_specs_of(dtype, q_heads, kv_heads, head_dim)


def _aot_specs_of(dtype: torch.dtype, q_heads: int, kv_heads: int, head_dim: int) -> Iterator[AotSpec]:
    tile, floats, ints = tile_shape(dtype, head_dim), POINTER_TYPES[dtype], POINTER_TYPES[torch.int32]
    sums, variant = POINTER_TYPES[torch.float32], f"{str(dtype).removeprefix('torch.')} d{head_dim}"
    constants = _tile_constants(tile, head_dim, q_heads, kv_heads, has_cap=head_dim == 256) | {
        "PAGE_SIZE": 16,
        "WIDEN": False,
    }
    pools = dict.fromkeys(("q", "k_pages", "v_pages"), floats)
    scales = {"scale": "fp32", "soft_cap": "fp32"}
    states = {"partial": sums, "stats": sums}
    yield AotSpec(
        name=f"attend_items {variant}",
        kernel=kernels.attend_items,
        arguments=pools | states | dict.fromkeys(("counts", *_ITEM_READS), ints) | scales,
        constants=constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    yield AotSpec(
        name=f"merge_states {variant}",
        kernel=kernels.merge_states,
        arguments=states | {"out": floats} | dict.fromkeys(("counts", *_MERGE_READS), ints),
        constants=_merge_constants(tile, head_dim, q_heads, kv_heads),
        num_warps=_MERGE_TILE.num_warps,
        num_stages=_MERGE_TILE.num_stages,
    )
    yield AotSpec(
        name=f"attend_chunks {variant}",
        kernel=kernels.attend_chunks,
        arguments=pools | {"out": floats} | dict.fromkeys(("counts", *CHUNK_ARRAYS), ints) | {"window": "i32"} | scales,
        constants=constants | {"SPLIT": GPU_SPLIT},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
