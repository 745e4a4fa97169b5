"""The plan reads every shared split once and gives each row its partials in order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.kernels.attention_plan import MAX_ITEM_ROWS, AttentionPlan, plan_attention
from forktree.kernels.token_tree import TokenTree


def items(plan: AttentionPlan) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """(pages, [(row, visible)]) of every item."""
    pages, page_start, start = plan.item_pages.tolist(), plan.item_page_start.tolist(), plan.item_start.tolist()
    entries = list(zip(plan.entry_row.tolist(), plan.entry_count.tolist(), strict=True))
    return [(pages[page_start[i] : page_start[i + 1]], entries[start[i] : start[i + 1]]) for i in range(plan.num_items)]


def test_a_split_that_two_sequences_share_is_one_item() -> None:
    plan = plan_attention([[1, 2, 3, 4], [1, 2, 5]], [0, 1], [25, 16], page_size=8, split=16)
    assert items(plan) == [([1, 2], [(0, 16), (1, 16)]), ([3, 4], [(0, 10)]), ([5], [(1, 1)])]


def test_a_shared_last_split_is_one_item_only_where_all_its_pages_are_equal() -> None:
    plan = plan_attention([[1, 2], [1, 2], [1, 3]], [0, 1, 2], [9, 12, 9], page_size=8, split=16)
    assert items(plan) == [([1, 2], [(0, 10), (1, 13)]), ([1, 3], [(2, 10)])]


def test_a_row_of_a_chunk_sees_up_to_its_own_position() -> None:
    plan = plan_attention([[4, 7]], [0, 0, 0], [14, 15, 16], page_size=16, split=16)
    assert items(plan) == [([4], [(0, 15), (1, 16), (2, 16)]), ([7], [(2, 1)])]
    assert plan.row_pair_start.tolist() == [0, 1, 2, 4]


def test_many_rows_of_one_split_are_cut_into_items() -> None:
    plan = plan_attention([[0, 1, 2, 3]], [0] * 50, list(range(50)), page_size=16, split=64)
    assert [len(entries) for _, entries in items(plan)] == [MAX_ITEM_ROWS, 50 - MAX_ITEM_ROWS]


def test_rows_may_stand_in_any_order_of_position() -> None:
    plan = plan_attention([[4, 7]], [0, 0], [16, 3], page_size=16, split=16)
    assert items(plan) == [([4], [(0, 16), (1, 4)]), ([7], [(0, 1)])]


# --- trees -----------------------------------------------------------------------------------------------------

# Behind 14 tokens: a - b - c at places 14, 15, 16, and at places 17, 18 the tokens d and e, each another one behind a.
FORKED = TokenTree(14, [13, 14, 15, 14, 14])


def test_a_way_down_a_tree_is_an_item_of_slots_for_each_split() -> None:
    places = {1: 14, 2: 15, 3: 16, 4: 17, 5: 18}
    positions = [13, 14, 15, 16, 15, 15]
    plan = plan_attention([[5, 9, 7]], [0] * 6, positions, page_size=8, split=16, trees={0: FORKED}, places=places)
    assert plan.item_unit.tolist() == [8, 1, 1, 1, 1]
    first = [*range(40, 48), *range(72, 78)]  # positions 0 to 13, in pages 5 and 9
    assert items(plan) == [
        ([5, 9], [(0, 14)]),
        ([*first, 78, 79], [(1, 15), (2, 16), (3, 16)]),
        ([56], [(3, 1)]),  # c alone lies in the second split
        ([*first, 78, 57], [(4, 16)]),
        ([*first, 78, 58], [(5, 16)]),
    ]


def test_a_chunk_that_begins_inside_a_tree_finds_its_way() -> None:
    plan = plan_attention([[5, 9, 7]], [0], [16], page_size=8, split=16, trees={0: FORKED}, places={0: 16})
    assert items(plan) == [([*range(40, 48), *range(72, 80)], [(0, 16)]), ([56], [(0, 1)])]


def test_splits_before_the_root_are_shared_with_everybody() -> None:
    tree = TokenTree(17, [16, 16])
    plan = plan_attention(
        [[1, 2], [1, 3]],
        [0, 1, 1],
        [20, 17, 17],
        page_size=16,
        split=16,
        trees={1: tree},
        places={1: 17, 2: 18},
    )
    assert items(plan) == [
        ([1], [(0, 16), (1, 16), (2, 16)]),
        ([2], [(0, 5)]),
        ([48, 49], [(1, 2)]),
        ([48, 50], [(2, 2)]),
    ]


def test_a_page_table_too_short_for_a_tree_is_refused() -> None:
    with pytest.raises(ValueError, match=r"positions up to 2 need 2 pages of 2, but the page table has 1"):
        plan_attention([[3]], [0], [1], page_size=2, split=16, trees={0: TokenTree(1, [0, 0])}, places={0: 2})


@given(st.lists(st.integers(0, 90), min_size=1, max_size=6), st.sampled_from([1, 2, 8, 16]))
@settings(max_examples=30, deadline=None)
def test_every_row_has_each_of_its_splits_exactly_once(positions: list[int], page_size: int) -> None:
    tables = [list(range(100 * i, 100 * i + position // page_size + 1)) for i, position in enumerate(positions)]
    plan = plan_attention(tables, list(range(len(positions))), positions, page_size, split=32)
    assert sorted(plan.entry_pair.tolist()) == list(range(plan.num_pairs))
    seen = [0] * len(positions)
    for _, entries in items(plan):
        for row, count in entries:
            seen[row] += count
    assert seen == [position + 1 for position in positions]


def test_a_page_table_too_short_for_a_position_is_refused() -> None:
    with pytest.raises(ValueError, match=r"positions up to 16 need 2 pages of 16, but the page table has 1"):
        plan_attention([[3]], [0], [16], page_size=16)


@pytest.mark.parametrize(("page_size", "split"), [(16, 24), (3, 16), (32, 16)])
def test_a_split_that_is_no_multiple_of_the_page_is_refused(page_size: int, split: int) -> None:
    with pytest.raises(ValueError, match="split must be a multiple"):
        plan_attention([[3]], [0], [1], page_size=page_size, split=split)
