"""Which splits of KV a forward pass reads, and which rows see each: computed once a step, for all layers.

KV is cut at absolute positions into splits of a fixed length. Rows whose sequences hold the same pages in a
split (a prefix shared through the radix cache) are put in one item, so that the split is read once for all of
them. A partial result is the same for one reader as for many: sharing changes how often KV is read, never how
it is summed.

    sequence A  pages 1 2 3 4          split = 2 pages
    sequence B  pages 1 2 5            items: (1 2) seen by A and B, (3 4) by A, (5) by B
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

DEFAULT_SPLIT = 128
MAX_ITEM_ROWS = 32
"""Rows of one item: more are cut into several items, so that the cores share a long chunk's work."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """Items of work, and where each row's partial results lie.

    An entry is one (item, row). Partials of a row lie together, in order of splits.

    Attributes:
        item_page_start: [items + 1] int32, into `item_pages`.
        item_pages:      [*] int32 page ids of each item.
        item_start:      [items + 1] int32, into the entries.
        entry_row:       [entries] int32 row of the query.
        entry_count:     [entries] int32 tokens of the split that the row sees, at least 1.
        entry_pair:      [entries] int32 index of the partial result.
        row_pair_start:  [rows + 1] int32, into the partial results.
    """

    page_size: int
    split: int
    num_items: int
    num_rows: int
    num_pairs: int
    max_page: int
    item_page_start: torch.Tensor
    item_pages: torch.Tensor
    item_start: torch.Tensor
    entry_row: torch.Tensor
    entry_count: torch.Tensor
    entry_pair: torch.Tensor
    row_pair_start: torch.Tensor


@dataclass(slots=True)
class _Readers:
    """Entries of one group of equal pages, in order of arrival."""

    rows: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    pairs: list[int] = field(default_factory=list)


def plan_attention(
    page_tables: Sequence[Sequence[int]],
    seq_of_row: Sequence[int],
    positions: Sequence[int],
    page_size: int,
    split: int = DEFAULT_SPLIT,
) -> AttentionPlan:
    """Group every (row, split) by the pages of the split.

    Args:
        page_tables: page ids of each sequence, in order of position.
        seq_of_row:  [tokens] index into `page_tables`, non-decreasing.
        positions:   [tokens]; a row sees positions [0, position] of its sequence.
    Raises:
        ValueError: a split that is no multiple of the page size, or a page table too short for a position.
    """
    if split < 1 or split % page_size or split % 16:
        raise ValueError(f"split must be a multiple of 16 and of the page size {page_size}, not {split}")
    row_pair_start = [0]
    for position in positions:
        row_pair_start.append(row_pair_start[-1] + position // split + 1)
    groups: dict[tuple[int, ...], _Readers] = {}
    for first, last in _runs(seq_of_row):
        table = page_tables[seq_of_row[first]]
        _check_table(table, positions[first:last], page_size)
        _add_sequence(groups, table, first, positions[first:last], row_pair_start, page_size, split)
    return _pack(groups, row_pair_start, page_size, split)


def _runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """Half-open ranges of equal values."""
    runs = []
    first = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[first]:
            runs.append((first, i))
            first = i
    return runs


def _check_table(table: Sequence[int], positions: Sequence[int], page_size: int) -> None:
    need = max(positions) // page_size + 1
    if len(table) < need or min(positions) < 0:
        raise ValueError(
            f"positions up to {max(positions)} need {need} pages of {page_size}, but the page table has {len(table)}"
        )


def _add_sequence(
    groups: dict[tuple[int, ...], _Readers],
    table: Sequence[int],
    first_row: int,
    positions: Sequence[int],
    row_pair_start: list[int],
    page_size: int,
    split: int,
) -> None:
    """Enter the rows of one sequence, split by split."""
    pages_per_split = split // page_size
    longest = max(positions)
    ascending = all(a <= b for a, b in itertools.pairwise(positions))
    for index in range(longest // split + 1):
        start = index * split
        num_seen = min(longest + 1 - start, split)
        from_page = index * pages_per_split
        key = tuple(table[from_page : from_page + -(-num_seen // page_size)])
        readers = groups.setdefault(key, _Readers())
        begin = bisect_left(positions, start) if ascending else 0
        for i in range(begin, len(positions)):
            visible = positions[i] + 1 - start
            if visible > 0:
                row = first_row + i
                readers.rows.append(row)
                readers.counts.append(min(visible, split))
                readers.pairs.append(row_pair_start[row] + index)


def _pack(
    groups: dict[tuple[int, ...], _Readers], row_pair_start: list[int], page_size: int, split: int
) -> AttentionPlan:
    pages: list[int] = []
    page_start, item_start = [0], [0]
    rows: list[int] = []
    counts: list[int] = []
    pairs: list[int] = []
    for key, readers in groups.items():
        for begin in range(0, len(readers.rows), MAX_ITEM_ROWS):
            part = slice(begin, begin + MAX_ITEM_ROWS)
            pages += key
            rows += readers.rows[part]
            counts += readers.counts[part]
            pairs += readers.pairs[part]
            page_start.append(len(pages))
            item_start.append(len(rows))
    return AttentionPlan(
        page_size=page_size,
        split=split,
        num_items=len(item_start) - 1,
        num_rows=len(row_pair_start) - 1,
        num_pairs=row_pair_start[-1],
        max_page=max(pages, default=-1),
        item_page_start=_int32(page_start),
        item_pages=_int32(pages),
        item_start=_int32(item_start),
        entry_row=_int32(rows),
        entry_count=_int32(counts),
        entry_pair=_int32(pairs),
        row_pair_start=_int32(row_pair_start),
    )


def _int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
