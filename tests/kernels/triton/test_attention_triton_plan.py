"""Which tiles a GPU computes: chunks and items, windows, and buffers that keep their place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.kernels.attention_plan import plan_attention
from forktree.kernels.attention_triton_plan import (
    ARRAYS,
    MIN_CHUNK_ROWS,
    PlanBuffer,
    TritonPlan,
    plan_from_items,
    plan_triton,
    row_positions,
)
from forktree.kernels.token_tree import TokenTree


def values(plan: TritonPlan, name: str) -> list[int]:
    return plan.arrays[name].tolist()


def states_of(plan: TritonPlan) -> dict[int, list[tuple[int, int]]]:
    """By row of the step: what it sees of each of its splits, [first, end), in order of the states."""
    seen = dict(
        zip(
            values(plan, "entry_pair"),
            zip(values(plan, "entry_first"), values(plan, "entry_count"), strict=True),
            strict=True,
        )
    )
    bounds = zip(values(plan, "merge_row"), values(plan, "pair_begin"), values(plan, "pair_end"), strict=True)
    return {row: [seen[pair] for pair in range(begin, end)] for row, begin, end in bounds}


def test_a_long_run_of_rows_is_a_chunk_and_the_others_are_items() -> None:
    positions = [40, *range(5, 25), 31]
    seqs = [0, *[1] * 20, 2]
    plan = plan_triton([[7, 8, 9], [1, 2], [3, 4]], seqs, positions, 16, 32, group=3, tile_queries=16)
    assert values(plan, "chunk_row") == [1]
    assert values(plan, "chunk_rows") == [20]
    assert values(plan, "chunk_position") == [5]
    assert values(plan, "chunk_pages") == [1, 2]
    assert values(plan, "merge_row") == [0, 21]
    assert states_of(plan) == {0: [(0, 32), (0, 9)], 21: [(0, 32)]}
    assert values(plan, "counts") == [3, 2, 4]
    assert (plan.item_tiles, plan.merge_rows, plan.chunk_tiles) == (3, 2, 4)  # 20 rows × 3 heads in tiles of 16
    assert plan.max_slot == 9 * 16 + 15


def test_the_tiles_of_a_chunk_that_see_most_come_first() -> None:
    rows = range(MIN_CHUNK_ROWS)
    plan = plan_triton(
        [[0], [1]], [0 for _ in rows] + [1 for _ in rows], [*rows, *rows], 16, 16, group=2, tile_queries=16
    )
    assert values(plan, "chunk_tile_query") == [16, 16, 0, 0]
    assert values(plan, "chunk_tile") == [0, 1, 0, 1]


@pytest.mark.parametrize("gap", [[0, 2], [2, 3]])
def test_rows_that_do_not_follow_one_another_are_no_chunk(gap: list[int]) -> None:
    positions = [*range(MIN_CHUNK_ROWS - 1), *(MIN_CHUNK_ROWS - 2 + step for step in gap)]
    plan = plan_triton([[0, 1]], [0] * len(positions), positions, 16, 32, group=1, tile_queries=16)
    assert plan.chunk_tiles == 0
    assert plan.merge_rows == len(positions)


def test_the_branches_of_a_chunk_are_items() -> None:
    tree = TokenTree(20, [19, 20, 19])
    plan = plan_triton(
        [[4, 2]], [0] * 23, [*range(20), 20, 21, 20], 16, 32,
        group=1, tile_queries=16, trees={0: tree}, places={20: 20, 21: 21, 22: 22},
    )  # fmt: skip
    assert values(plan, "chunk_rows") == [20]
    assert states_of(plan) == {20: [(0, 21)], 21: [(0, 22)], 22: [(0, 21)]}
    assert values(plan, "item_unit") == [1, 1]


def test_an_item_with_many_queries_has_several_tiles() -> None:
    plan = plan_triton([[5]] * 7, list(range(7)), [9] * 7, 16, 16, group=5, tile_queries=16)
    assert values(plan, "tile_item") == [0, 0, 0]
    assert values(plan, "tile_query") == [0, 16, 32]


def test_a_window_hides_splits_and_numbers_the_states_anew() -> None:
    plan = plan_triton([[1, 2, 3], [1, 2, 4]], [0, 1], [40, 47], 16, 16, window=10, group=1, tile_queries=16)
    assert states_of(plan) == {0: [(15, 16), (0, 9)], 1: [(6, 16)]}
    assert plan.num_pairs == 3
    assert plan.arrays["item_start"].diff().tolist() == [1, 1, 1]  # nobody sees the first split


@given(st.lists(st.integers(0, 90), min_size=1, max_size=6), st.one_of(st.none(), st.integers(1, 100)))
@settings(max_examples=40, deadline=None)
def test_every_row_sees_its_window_exactly_once(positions: list[int], window: int | None) -> None:
    tables = [list(range(20 * i, 20 * i + position // 8 + 1)) for i, position in enumerate(positions)]
    items = plan_attention(tables, list(range(len(positions))), positions, 8, 32)
    assert row_positions(items).tolist() == positions
    plan = plan_from_items(items, group=2, tile_queries=16, window=window)
    for row, states in states_of(plan).items():
        last = positions[row]
        first_split = last // 32 + 1 - len(states)
        seen = [split * 32 + t for split, (a, b) in enumerate(states, first_split) for t in range(a, b)]
        assert seen == list(range(max(0, last + 1 - (window or 1000)), last + 1))


def test_a_plan_on_a_device_is_one_tensor_of_aligned_parts() -> None:
    plan = plan_triton([[1, 2], [1, 3]], [0, 1], [20, 17], 16, 16, group=3, tile_queries=16)
    there = plan.to("cpu")
    base = there.arrays["counts"].untyped_storage().data_ptr()
    for name in ARRAYS:
        assert torch.equal(there.arrays[name], plan.arrays[name])
        assert there.arrays[name].untyped_storage().data_ptr() == base
        assert there.arrays[name].storage_offset() % 4 == 0


def test_a_buffer_takes_plans_that_fit_and_refuses_others() -> None:
    plan = plan_triton([[1, 2], [1, 3]], [0, 1], [20, 17], 16, 16, group=3, tile_queries=16)
    room = dict.fromkeys(ARRAYS, 9)
    buffer = PlanBuffer("cpu", room)
    before = {name: values.data_ptr() for name, values in buffer.arrays.items()}
    buffer.load(plan)
    assert buffer.arrays["counts"].tolist() == [3, 2, 0]
    assert buffer.arrays["entry_pair"][:4].tolist() == values(plan, "entry_pair")
    assert {name: values.data_ptr() for name, values in buffer.arrays.items()} == before
    with pytest.raises(ValueError, match="a plan has 4 of entry_row, but this buffer holds 3"):
        PlanBuffer("cpu", room | {"entry_row": 3}).load(plan)


def test_wrong_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="a window must be at least 1 token, not 0"):
        plan_triton([[1]], [0], [0], 16, group=1, tile_queries=16, window=0)
    with pytest.raises(ValueError, match=r"positions up to 39 need 3 pages of 16, but the page table has 2"):
        plan_triton([[1, 2]], [0] * 30, list(range(10, 40)), 16, group=1, tile_queries=16)
    with pytest.raises(ValueError, match=r"positions up to 16 need 2 pages of 16, but the page table has 1"):
        plan_triton([[1]], [0], [16], 16, group=1, tile_queries=16)


def test_no_rows_make_an_empty_plan() -> None:
    plan = plan_triton([], [], [], 16, group=1, tile_queries=16)
    assert (plan.item_tiles, plan.merge_rows, plan.chunk_tiles, plan.num_pairs) == (0, 0, 0, 0)
