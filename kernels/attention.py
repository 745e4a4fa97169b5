"""Paged attention as one KV split × every query row that sees it, merged in order of splits.

A row's result depends on its own query and its own visible keys and values alone, to the bit: not on the
rows beside it, nor on who shares its pages, nor on how its prompt was cut into chunks. Tree attention falls
out of the page tables: a split that many sequences share is one item of the plan (`attention_plan.py`).
"""

from __future__ import annotations

import ctypes

import torch

from forktree.kernels import structs
from forktree.kernels.attention_plan import AttentionPlan, plan_attention
from forktree.kernels.attention_triton_plan import (
    TritonPlan,
    check_soft_cap,
    check_window,
    first_seen,
    plan_from_items,
)
from forktree.kernels.checks import ShapeError, check_tensor
from forktree.kernels.exact import exp, tree_sum
from forktree.kernels.native import Native

__all__ = ["AttentionPlan", "attend", "plan_attention"]

_REFERENCE_FLOATS = 1 << 24
"""Most floats of one temporary of the reference: it walks the partial results in blocks of this size."""


def attend(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    plan: AttentionPlan | TritonPlan,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    native: Native | None = None,
) -> torch.Tensor:
    """Attend every query to the keys and values that its row sees.

    Args:
        q:       [tokens, q_heads, head_dim] float32; on a GPU also bfloat16 or float16
        k_pages: [pages, page_size, kv_heads, head_dim], type of q; slots that no row sees are never read
        v_pages: the same shape
        plan:    of these rows, from `plan_attention`; on a GPU from `plan_triton` (another is turned into one)
        scale:   multiplies the queries
        window:  a row at position p sees (p - window, p] alone; on the CPU the plain reference computes it
        soft_cap: a score s becomes soft_cap · tanh(s / soft_cap); on the CPU the plain reference computes it
    Returns:
        [tokens, q_heads, head_dim]
    Raises:
        ShapeError: shapes or types that do not fit, q_heads no multiple of kv_heads, or another plan's rows.
    """
    if q.is_cuda or not isinstance(plan, AttentionPlan):
        return _on_gpu(q, k_pages, v_pages, plan, scale, window, soft_cap)
    check_tensor("q", q, (plan.num_rows, None, None), torch.float32)
    q_heads, head_dim = q.shape[1:]
    check_tensor("k_pages", k_pages, (None, plan.page_size, None, head_dim), torch.float32)
    check_tensor("v_pages", v_pages, tuple(k_pages.shape), torch.float32)
    num_pages, _, kv_heads, _ = k_pages.shape
    if q_heads % kv_heads:
        raise ShapeError(f"q_heads must be a multiple of the {kv_heads} kv_heads, not {q_heads}")
    if plan.max_slot >= num_pages * plan.page_size:
        raise ShapeError(f"page ids must be below {num_pages}, not {plan.max_slot // plan.page_size}")
    check_window(window)
    check_soft_cap(soft_cap)
    if native is None or window is not None or soft_cap is not None:
        return _reference(q * scale, k_pages, v_pages, plan, window, soft_cap)
    return _native(q, k_pages, v_pages, plan, scale, native)


def _on_gpu(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    plan: AttentionPlan | TritonPlan,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> torch.Tensor:
    from forktree.kernels.attention_triton import attend_triton, tile_shape

    if isinstance(plan, AttentionPlan):
        group = q.shape[1] // k_pages.shape[2]
        tile = tile_shape(q.dtype, q.shape[2])
        plan = plan_from_items(plan, group=group, tile_queries=tile.queries, window=window).to(q.device)
    if plan.window != window:
        raise ShapeError(f"the plan is for a window of {plan.window}, not {window}")
    return attend_triton(q, k_pages, v_pages, plan, scale=scale, soft_cap=soft_cap)


def _native(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, plan: AttentionPlan, scale: float, native: Native
) -> torch.Tensor:
    q_heads, head_dim = q.shape[1:]
    padded_dim = -(-head_dim // 16) * 16
    out = torch.empty_like(q)
    partial = q.new_empty(plan.num_pairs, q_heads, padded_dim)
    stats = q.new_empty(plan.num_pairs, q_heads, 2)
    task = structs.Attention(
        q=q.data_ptr(),
        k_pages=k_pages.data_ptr(),
        v_pages=v_pages.data_ptr(),
        partial=partial.data_ptr(),
        stats=stats.data_ptr(),
        plan=native_plan(plan),
        q_heads=q_heads,
        kv_heads=k_pages.shape[2],
        head_dim=head_dim,
        scale=scale,
    )
    native.library.ft_attend(ctypes.byref(task), out.data_ptr(), native.num_threads)
    return out


def native_plan(plan: AttentionPlan) -> structs.AttentionPlan:
    """The plan as the native library reads it; valid while `plan` lives."""
    return structs.AttentionPlan(
        item_page_start=plan.item_page_start.data_ptr(),
        item_pages=plan.item_pages.data_ptr(),
        item_unit=plan.item_unit.data_ptr(),
        item_start=plan.item_start.data_ptr(),
        entry_row=plan.entry_row.data_ptr(),
        entry_count=plan.entry_count.data_ptr(),
        entry_pair=plan.entry_pair.data_ptr(),
        row_pair_start=plan.row_pair_start.data_ptr(),
        items=plan.num_items,
        rows=plan.num_rows,
        split=plan.split,
    )


def _reference(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    plan: AttentionPlan,
    window: int | None,
    soft_cap: float | None,
) -> torch.Tensor:
    """The same splits and merge, one fixed shape for every (row, split), sums by halving."""
    _, q_heads, head_dim = q.shape
    kv_heads = k_pages.shape[2]
    groups = (kv_heads, q_heads // kv_heads)
    partial = q.new_zeros(plan.num_pairs, *groups, head_dim)
    top = q.new_full((plan.num_pairs, *groups), float("-inf"))
    total = q.new_zeros(plan.num_pairs, *groups)
    slots, firsts, counts, rows = _entries(plan, window)
    block = max(1, _REFERENCE_FLOATS // (q_heads * plan.split * head_dim))
    for first in range(0, plan.num_pairs, block):
        part = slice(first, first + block)
        offset = torch.arange(plan.split)
        seen = (offset >= firsts[part].unsqueeze(1)) & (offset < counts[part].unsqueeze(1))
        k = _gather(k_pages, slots[part], seen)
        v = _gather(v_pages, slots[part], seen)
        query = q[rows[part]].view(-1, *groups, 1, head_dim)
        scores = tree_sum(query * k)
        if soft_cap is not None:
            scores = soft_cap * (1.0 - 2.0 / (1.0 + exp(scores * (2.0 / soft_cap))))  # tanh
        scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
        top[part] = scores.amax(-1)
        lowest = top[part].masked_fill(top[part] == float("-inf"), 0.0)  # a split that a window hides
        weights = exp(scores - lowest.unsqueeze(-1)).masked_fill(~seen[:, None, None], 0.0)
        total[part] = tree_sum(weights)
        partial[part] = tree_sum((weights.unsqueeze(-1) * v).transpose(-1, -2))
    return _merge(partial, top, total, plan).view(q.shape)


def _entries(plan: AttentionPlan, window: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Slots [pairs, split], first seen, end of what is seen and row [pairs each], in order of the partial results."""
    order = torch.argsort(plan.entry_pair)
    item_of_entry = torch.repeat_interleave(torch.arange(plan.num_items), plan.item_start.diff().long())
    counts, rows, item = plan.entry_count[order].long(), plan.entry_row[order].long(), item_of_entry[order]
    offset, unit = torch.arange(plan.split), plan.item_unit[item].long().unsqueeze(1)
    page_at = plan.item_page_start[item].long().unsqueeze(1) + offset // unit
    pages = plan.item_pages[page_at.clamp_max(plan.item_pages.numel() - 1)].long()
    return pages * unit + offset % unit, first_seen(plan, window)[order], counts, rows


def _gather(pages: torch.Tensor, slots: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """[block, kv_heads, 1, split, head_dim]; what is not seen is zero, whatever lies there."""
    flat = pages.view(-1, *pages.shape[2:])
    values = flat[slots.masked_fill(~seen, 0)].masked_fill(~seen[..., None, None], 0.0)
    return values.transpose(1, 2).unsqueeze(2)


def _merge(partial: torch.Tensor, top: torch.Tensor, total: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    """Combine each row's partial results in order of its splits: [rows, kv_heads, group, head_dim]."""
    starts = plan.row_pair_start.long()
    begin, num = starts[:-1], starts.diff()
    best = torch.full_like(top[begin], float("-inf"))
    for index in range(int(num.max()) if len(num) else 0):
        has = num > index
        best[has] = torch.maximum(best[has], top[begin[has] + index])
    out = torch.zeros_like(partial[begin])
    norm = torch.zeros_like(best)
    for index in range(int(num.max()) if len(num) else 0):
        has = num > index
        at = begin[has] + index
        factor = exp(top[at] - best[has])
        norm[has] += factor * total[at]
        out[has] += factor.unsqueeze(-1) * partial[at]
    return out / norm.unsqueeze(-1)
