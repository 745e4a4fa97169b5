"""Items found by array operations are those that the loop finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.kernels import attention_triton_items
from forktree.kernels.attention_plan import MAX_ITEM_ROWS, AttentionPlan, plan_attention
from forktree.kernels.attention_triton_items import plan_rows


def items(plan: AttentionPlan) -> list[tuple[list[int], list[tuple[int, int, int]]]]:
    """(pages, [(row, count, pair)]) of every item, in an order that no planner chooses."""
    pages, page_start, start = plan.item_pages.tolist(), plan.item_page_start.tolist(), plan.item_start.tolist()
    entries = list(zip(plan.entry_row.tolist(), plan.entry_count.tolist(), plan.entry_pair.tolist(), strict=True))
    return sorted(
        (pages[page_start[i] : page_start[i + 1]], sorted(entries[start[i] : start[i + 1]]))
        for i in range(plan.num_items)
    )


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_both_ways_find_the_same_items(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 4, 16]))
    trunk = data.draw(st.integers(0, 6))
    tables, seqs, positions = [], [], []
    for seq in range(data.draw(st.integers(0, 5))):
        length = data.draw(st.integers(1, 80))
        need = -(-length // page_size)
        tables.append([*range(trunk), *range(100 * seq + 50, 100 * seq + 150)][: need + data.draw(st.integers(0, 2))])
        rows = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=4))
        seqs += [seq] * len(rows)
        positions += rows
    fast, slow = (plan(tables, seqs, positions, page_size, 32) for plan in (plan_rows, plan_attention))
    assert items(fast) == items(slow)
    assert fast.row_pair_start.tolist() == slow.row_pair_start.tolist()
    assert (fast.num_rows, fast.num_pairs, fast.max_slot) == (slow.num_rows, slow.num_pairs, slow.max_slot)
    assert set(fast.item_unit.tolist()) <= {page_size}


def test_many_rows_of_one_split_are_cut_into_items() -> None:
    plan = plan_rows([[0, 1]] * 70, list(range(70)), [20] * 70, 16, 32)
    assert plan.item_start.diff().tolist() == [MAX_ITEM_ROWS, MAX_ITEM_ROWS, 70 - 2 * MAX_ITEM_ROWS]


def test_pages_whose_hashes_agree_are_not_taken_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ones:
        def integers(self, low: int, high: int, size: int, dtype: type) -> np.ndarray:
            return np.ones(size, dtype)

    monkeypatch.setattr(attention_triton_items.np.random, "default_rng", lambda seed: Ones())
    tables = [[1, 4], [2, 3]]  # equal sums
    assert items(plan_rows(tables, [0, 1], [31, 31], 16, 32)) == items(plan_attention(tables, [0, 1], [31, 31], 16, 32))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"positions up to 16 need 2 pages of 16, but the page table has 1"):
        plan_rows([[3]], [0], [16], 16, 32)
    with pytest.raises(ValueError, match="split must be a multiple of 16 and of the page size 16, not 24"):
        plan_rows([[3]], [0], [1], 16, 24)
