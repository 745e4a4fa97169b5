"""The items of `attention_plan.py` for rows without trees, found by array operations instead of a loop.

A step on a GPU lasts a few milliseconds, so that its plan must not: a loop over (row, split) in Python takes about
6 µs each, 12 ms for 64 rows at 8,192 tokens. Here the pages of every (row, split) are hashed at once, equal hashes
are brought together by one sort, and their pages compared, so that a collision is noticed and not believed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from forktree.kernels.attention_plan import MAX_ITEM_ROWS, AttentionPlan, plan_attention


def plan_rows(
    page_tables: Sequence[Sequence[int]],
    seq_of_row: Sequence[int],
    positions: Sequence[int],
    page_size: int,
    split: int,
) -> AttentionPlan:
    """As `plan_attention` without trees: the same items, in another order.

    Raises:
        ValueError: as `plan_attention`.
    """
    _check(page_tables, seq_of_row, positions, page_size, split)
    position, seq = np.asarray(positions, dtype=np.int64), np.asarray(seq_of_row, dtype=np.int64)
    num_splits = position // split + 1
    pair_start = np.concatenate([[0], np.cumsum(num_splits)])
    row = np.repeat(np.arange(len(position)), num_splits)
    index = np.arange(len(row)) - pair_start[row]
    count = np.minimum(position[row] + 1 - index * split, split)
    longest = np.full(len(page_tables), -1)
    np.maximum.at(longest, seq, position)  # rows of one sequence read its splits together
    held = np.minimum(longest[seq[row]] + 1 - index * split, split)
    pages = _pages(page_tables, seq[row], index, held, page_size, split)
    groups = _group(pages)
    if groups is None:
        return plan_attention(page_tables, seq_of_row, positions, page_size, split)
    order, starts = groups
    first = order[starts[:-1]]
    used = -(-held[first] // page_size)
    listed = np.arange(pages.shape[1])[None, :] < used[:, None]
    return AttentionPlan(
        page_size=page_size,
        split=split,
        num_items=len(starts) - 1,
        num_rows=len(position),
        num_pairs=len(row),
        max_slot=(int(pages.max(initial=-1)) + 1) * page_size - 1,
        item_page_start=_int32(np.concatenate([[0], np.cumsum(used)])),
        item_pages=_int32(pages[first][listed]),
        item_unit=torch.full((len(starts) - 1,), page_size, dtype=torch.int32),
        item_start=_int32(starts),
        entry_row=_int32(row[order]),
        entry_count=_int32(count[order]),
        entry_pair=_int32(order),
        row_pair_start=_int32(pair_start),
    )


def _check(
    page_tables: Sequence[Sequence[int]],
    seq_of_row: Sequence[int],
    positions: Sequence[int],
    page_size: int,
    split: int,
) -> None:
    if split < 1 or split % page_size or split % 16:
        raise ValueError(f"split must be a multiple of 16 and of the page size {page_size}, not {split}")
    for seq, position in zip(seq_of_row, positions, strict=True):
        if position < 0 or position >= len(page_tables[seq]) * page_size:
            raise ValueError(
                f"positions up to {position} need {position // page_size + 1} pages of {page_size}, "
                f"but the page table has {len(page_tables[seq])}"
            )


def _pages(
    page_tables: Sequence[Sequence[int]],
    seq: np.ndarray,
    index: np.ndarray,
    held: np.ndarray,
    page_size: int,
    split: int,
) -> np.ndarray:
    """[pairs, pages of a split] ids of the `held` tokens of each; -1 behind them."""
    used = sorted(set(seq.tolist()))
    start = dict(zip(used, np.cumsum([0, *(len(page_tables[each]) for each in used)]).tolist(), strict=False))
    flat = np.concatenate([np.empty(0, np.int32), *(np.asarray(page_tables[each], np.int32) for each in used)])
    begin = np.array([start.get(each, 0) for each in range(max(used, default=-1) + 1)], dtype=np.int64)
    offset = np.arange(split // page_size)
    there = offset[None, :] * page_size < held[:, None]
    at = (begin[seq] + index * (split // page_size))[:, None] + offset[None, :]
    return np.where(there, flat[np.where(there, at, 0)] if len(flat) else -1, -1)


def _group(pages: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Pairs in order of their items, and where each item begins; None where two hashes agree and the pages do not."""
    num, width = pages.shape
    if num == 0:
        return np.empty(0, np.int64), np.zeros(1, np.int64)
    factors = np.random.default_rng(0).integers(1, 1 << 62, width, dtype=np.int64) | 1
    hashes = (pages * factors).sum(1)  # wraps
    order = np.argsort(hashes, kind="stable")
    new = np.concatenate([[True], np.diff(hashes[order]) != 0])
    owner = np.flatnonzero(new)[np.cumsum(new) - 1]
    if not np.array_equal(pages[order], pages[order[owner]]):
        return None
    new |= (np.arange(num) - owner) % MAX_ITEM_ROWS == 0
    return order, np.append(np.flatnonzero(new), num)


def _int32(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int32))
