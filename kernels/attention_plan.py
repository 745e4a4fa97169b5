"""Which splits of KV a forward pass reads, and which rows see each: computed once a step, for all layers.

KV is cut at absolute positions into splits of a fixed length. Rows whose sequences hold the same pages in a
split (a prefix shared through the radix cache) are put in one item, so that the split is read once for all of
them. A partial result is the same for one reader as for many: sharing changes how often KV is read, never how
it is summed.

    sequence A  pages 1 2 3 4          split = 2 pages
    sequence B  pages 1 2 5            items: (1 2) seen by A and B, (3 4) by A, (5) by B

Rows of a branching sequence (`token_tree.py`) see what lies before the root and their own branch. A split that
holds tokens of the branch is an item of single slots, in order of position, shared by the rows of one way down the
tree: each partial result is the one that the branch would have as a sequence of its own.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from forktree.kernels.token_tree import TokenTree

DEFAULT_SPLIT = 128
MAX_ITEM_ROWS = 32
"""Rows of one item: more are cut into several items, so that the cores share a long chunk's work."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """Items of work, and where each row's partial results lie.

    An entry is one (item, row). Partials of a row lie together, in order of splits.

    Attributes:
        item_page_start: [items + 1] int32, into `item_pages`.
        item_pages:      [*] int32 page ids of each item; slots where its `item_unit` is 1.
        item_unit:       [items] int32 slots that one of these stands for: the page size, or 1.
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
    max_slot: int
    item_page_start: torch.Tensor
    item_pages: torch.Tensor
    item_unit: torch.Tensor
    item_start: torch.Tensor
    entry_row: torch.Tensor
    entry_count: torch.Tensor
    entry_pair: torch.Tensor
    row_pair_start: torch.Tensor


@dataclass(slots=True)
class _Readers:
    """Entries of one item, in order of arrival."""

    rows: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    pairs: list[int] = field(default_factory=list)

    def add(self, row: int, count: int, pair: int) -> None:
        self.rows.append(row)
        self.counts.append(count)
        self.pairs.append(pair)


class _Item(NamedTuple):
    """Pages of `unit` slots each, and who reads them."""

    pages: Sequence[int]
    unit: int
    readers: _Readers


def plan_attention(
    page_tables: Sequence[Sequence[int]],
    seq_of_row: Sequence[int],
    positions: Sequence[int],
    page_size: int,
    split: int = DEFAULT_SPLIT,
    *,
    trees: Mapping[int, TokenTree] | None = None,
    places: Mapping[int, int] | None = None,
) -> AttentionPlan:
    """Group every (row, split) by the slots of the split.

    Args:
        page_tables: page ids of each sequence, in order of place.
        seq_of_row:  [tokens] index into `page_tables`, non-decreasing.
        positions:   [tokens]; a row sees positions [0, position] of its sequence.
        trees:       of the sequences that branch, by their index.
        places:      of the rows in a tree, by row: they stand behind the other rows of their sequence, ascending.
    Raises:
        ValueError: a split that is no multiple of the page size, or a page table too short for a place.
    """
    if split < 1 or split % page_size or split % 16:
        raise ValueError(f"split must be a multiple of 16 and of the page size {page_size}, not {split}")
    places = places or {}
    row_pair_start = [0]
    for position in positions:
        row_pair_start.append(row_pair_start[-1] + position // split + 1)
    plan = _Plan(page_size, split, row_pair_start)
    for first, last in _runs(seq_of_row):
        seq, root_row = seq_of_row[first], next((row for row in range(first, last) if row in places), last)
        table = page_tables[seq]
        if first < root_row:
            plan.add_rows(table, first, positions[first:root_row])
        if root_row < last:
            assert trees is not None
            plan.add_branches(table, trees[seq], root_row, [(positions[r], places[r]) for r in range(root_row, last)])
    return _pack(plan.items(), row_pair_start, page_size, split)


def _runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """Half-open ranges of equal values."""
    runs = []
    first = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[first]:
            runs.append((first, i))
            first = i
    return runs


class _Plan:
    """Items in the making."""

    def __init__(self, page_size: int, split: int, row_pair_start: list[int]) -> None:
        self._page_size = page_size
        self._split = split
        self._row_pair_start = row_pair_start
        self._groups: dict[tuple[int, ...], _Readers] = {}  # by the pages of a split
        self._branches: list[_Item] = []

    def items(self) -> list[_Item]:
        shared = [_Item(pages, self._page_size, readers) for pages, readers in self._groups.items()]
        return shared + self._branches

    def add_rows(self, table: Sequence[int], first_row: int, positions: Sequence[int]) -> None:
        """Enter the rows of one sequence, split by split."""
        self._check_table(table, positions)
        longest = max(positions)
        ascending = all(a <= b for a, b in itertools.pairwise(positions))
        for index in range(longest // self._split + 1):
            start = index * self._split
            readers = self._readers(table, start, min(longest + 1 - start, self._split))
            begin = bisect_left(positions, start) if ascending else 0
            for i in range(begin, len(positions)):
                visible = positions[i] + 1 - start
                if visible > 0:
                    row = first_row + i
                    readers.add(row, min(visible, self._split), self._row_pair_start[row] + index)

    def add_branches(
        self, table: Sequence[int], tree: TokenTree, first_row: int, rows: Sequence[tuple[int, int]]
    ) -> None:
        """Enter rows of a tree, (position, place) each, in the order of their places."""
        self._check_table(table, [place for _, place in rows])
        way = _Way(table, tree, rows[0][1], self._page_size, self._split)
        whole = [self._readers(table, index * self._split, self._split) for index in range(way.first_split)]
        for row, (position, place) in enumerate(rows, first_row):
            self._branches += way.go_to(position, place)
            pair = self._row_pair_start[row]
            for index, readers in enumerate([*whole, *way.readers()]):
                readers.add(row, min(position + 1 - index * self._split, self._split), pair + index)

    def _readers(self, table: Sequence[int], start: int, num_seen: int) -> _Readers:
        """Of the pages that hold positions [start, start + num_seen)."""
        size = self._page_size
        return self._groups.setdefault(tuple(table[start // size : -(-(start + num_seen) // size)]), _Readers())

    def _check_table(self, table: Sequence[int], places: Sequence[int]) -> None:
        need = max(places) // self._page_size + 1
        if len(table) < need or min(places) < 0:
            raise ValueError(
                f"positions up to {max(places)} need {need} pages of {self._page_size}, "
                f"but the page table has {len(table)}"
            )


class _Way:
    """The way down a tree to the row that is entered, as one open item for each split that it passes through.

    An item goes on while rows follow one another; where the tree branches, the split of the branch becomes a new
    item that begins as the old one did, and splits before it keep theirs.
    """

    def __init__(self, table: Sequence[int], tree: TokenTree, place: int, page_size: int, split: int) -> None:
        """The way to the token before `place`."""
        self._table, self._page_size, self._split = table, page_size, split
        self.first_split = tree.root // split
        before = [*range(self.first_split * split, tree.root), *tree.path_to(tree.parents[place - tree.root])]
        slots = [self._slot(each) for each in before]
        self._open = [_Item(slots[at : at + split], 1, _Readers()) for at in range(0, len(slots), split)]
        self._fresh = list(self._open)

    def go_to(self, position: int, place: int) -> list[_Item]:
        """Step to a row whose token before is on the way; returns the items that are new."""
        index, offset = divmod(position - self.first_split * self._split, self._split)
        del self._open[index + 1 :]
        if index == len(self._open):
            self._begin([])
        elif len(self._open[index].pages) > offset:
            beginning = list(self._open.pop().pages[:offset])
            self._begin(beginning)
        slots = self._open[index].pages
        assert isinstance(slots, list)
        slots.append(self._slot(place))
        fresh, self._fresh = self._fresh, []
        return fresh

    def readers(self) -> list[_Readers]:
        return [item.readers for item in self._open]

    def _begin(self, slots: list[int]) -> None:
        item = _Item(slots, 1, _Readers())
        self._open.append(item)
        self._fresh.append(item)

    def _slot(self, place: int) -> int:
        return self._table[place // self._page_size] * self._page_size + place % self._page_size


def _pack(items: Sequence[_Item], row_pair_start: list[int], page_size: int, split: int) -> AttentionPlan:
    pages: list[int] = []
    units: list[int] = []
    page_start, item_start = [0], [0]
    rows: list[int] = []
    counts: list[int] = []
    pairs: list[int] = []
    max_slot = -1
    for item in items:
        max_slot = max(max_slot, (max(item.pages, default=-1) + 1) * item.unit - 1)
        for begin in range(0, len(item.readers.rows), MAX_ITEM_ROWS):
            part = slice(begin, begin + MAX_ITEM_ROWS)
            pages += item.pages
            units.append(item.unit)
            rows += item.readers.rows[part]
            counts += item.readers.counts[part]
            pairs += item.readers.pairs[part]
            page_start.append(len(pages))
            item_start.append(len(rows))
    return AttentionPlan(
        page_size=page_size,
        split=split,
        num_items=len(item_start) - 1,
        num_rows=len(row_pair_start) - 1,
        num_pairs=row_pair_start[-1],
        max_slot=max_slot,
        item_page_start=_int32(page_start),
        item_pages=_int32(pages),
        item_unit=_int32(units),
        item_start=_int32(item_start),
        entry_row=_int32(rows),
        entry_count=_int32(counts),
        entry_pair=_int32(pairs),
        row_pair_start=_int32(row_pair_start),
    )


def _int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
