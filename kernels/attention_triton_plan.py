"""Which tiles of queries a GPU's attention computes: made on the host once a step, copied once, used by all layers.

Rows go one of two ways, to the same bits. A *chunk* is a run of consecutive positions of one sequence (a prompt's
part): its programs walk over the splits and merge in registers. All other rows (tokens that are decoded, drafts,
branches of a trie) go through the items of `attention_plan.py`: a split that many rows share is read once, and
each row's states are merged afterwards.

                         chunk tiles ─── attend_chunks ──────────────────────┐
    rows of the step ──┤                                                     ├── out
                         item tiles ──── attend_items ── states ── merge ────┘

The arrays lie in one int32 tensor, so that a step costs one copy to the device. A `PlanBuffer` keeps that tensor at
fixed capacities: a captured CUDA graph reads its counts and arrays from there, whatever the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import torch

from forktree.kernels.attention_plan import AttentionPlan, plan_attention
from forktree.kernels.attention_triton_items import plan_rows
from forktree.kernels.token_tree import TokenTree

GPU_SPLIT = 256
"""Tokens of a split: long enough that states cost under a tenth of the keys and values, short enough to fill a GPU."""

MIN_CHUNK_ROWS = 16
"""Rows of one sequence, at consecutive positions, that are computed as a chunk."""

NO_WINDOW = 1 << 30
"""A window wider than any position."""

ITEM_ARRAYS = (
    *("tile_item", "tile_query"),
    *("item_page_start", "item_pages", "item_unit", "item_start"),
    *("entry_row", "entry_first", "entry_count", "entry_pair"),
    *("merge_row", "pair_begin", "pair_end"),
)
CHUNK_ARRAYS = (
    *("chunk_tile", "chunk_tile_query"),
    *("chunk_row", "chunk_rows", "chunk_position", "chunk_page_start", "chunk_pages"),
)
ARRAYS = ("counts", *ITEM_ARRAYS, *CHUNK_ARRAYS)
"""`counts` holds the numbers of item tiles, of rows to merge and of chunk tiles."""


@dataclass(frozen=True, slots=True, eq=False)
class TritonPlan:
    """A step's tiles, on one device.

    Attributes:
        arrays:        int32 tensors by the names of `ARRAYS`.
        num_rows:      rows of the step.
        group:         query heads of one KV head.
        tile_queries:  (row, head) pairs of one tile.
        window:        a row at position p sees (p - window, p]; None sees all.
        item_tiles, merge_rows, chunk_tiles, num_pairs: how many are launched, of states the room for them.
        max_slot:      highest slot that is read.
    """

    arrays: Mapping[str, torch.Tensor]
    page_size: int
    split: int
    num_rows: int
    group: int
    tile_queries: int
    window: int | None
    item_tiles: int
    merge_rows: int
    chunk_tiles: int
    num_pairs: int
    max_slot: int

    def to(self, device: torch.device | str) -> TritonPlan:
        """This plan on a device, by one copy."""
        sizes = {name: len(self.arrays[name]) for name in ARRAYS}
        packed = torch.zeros(_packed_size(sizes), dtype=torch.int32)
        for name, view in _views(packed, sizes).items():
            view.copy_(self.arrays[name])
        return replace(self, arrays=_views(packed.to(device), sizes))


class PlanBuffer:
    """A plan's arrays at fixed addresses and capacities, for steps that are captured and replayed."""

    def __init__(self, device: torch.device | str, capacities: Mapping[str, int]) -> None:
        """
        Args:
            capacities: elements of each of `ARRAYS`; those not named hold nothing, `counts` three.
        """
        self._sizes = {name: capacities.get(name, 0) for name in ARRAYS} | {"counts": 3}
        num = _packed_size(self._sizes)
        is_cuda = torch.device(device).type == "cuda"
        self._host = torch.zeros(num, dtype=torch.int32, pin_memory=is_cuda)
        self._device = torch.zeros(num, dtype=torch.int32, device=device)
        self._host_arrays = _views(self._host, self._sizes)
        self.arrays = _views(self._device, self._sizes)

    def load(self, plan: TritonPlan) -> None:
        """Take over a plan's arrays (on the host), by one copy that the current stream waits for.

        The host's side is written at once: a copy before it must have ended.

        Raises:
            ValueError: the plan has more of something than there is room for.
        """
        for name in ARRAYS:
            values = plan.arrays[name]
            if len(values) > self._sizes[name]:
                raise ValueError(f"a plan has {len(values)} of {name}, but this buffer holds {self._sizes[name]}")
            self._host_arrays[name][: len(values)] = values
        self._device.copy_(self._host, non_blocking=True)

    def plan_like(self, plan: TritonPlan, *, num_rows: int, num_pairs: int) -> TritonPlan:
        """A plan over this buffer's arrays that launches what they have room for.

        Args:
            plan: whose page size, split, group, tile and window hold for every plan that is loaded.
            num_rows: rows of q and of the result, rows of padding included.
            num_pairs: states that there is room for.
        """
        return TritonPlan(
            arrays=self.arrays,
            page_size=plan.page_size,
            split=plan.split,
            num_rows=num_rows,
            group=plan.group,
            tile_queries=plan.tile_queries,
            window=plan.window,
            item_tiles=self._sizes["tile_item"],
            merge_rows=self._sizes["merge_row"],
            chunk_tiles=self._sizes["chunk_tile"],
            num_pairs=num_pairs,
            max_slot=-1,
        )


class _Chunk(NamedTuple):
    """Rows [row, row + num) at positions [position, position + num) of one sequence."""

    row: int
    num: int
    position: int
    table: Sequence[int]


def plan_triton(
    page_tables: Sequence[Sequence[int]],
    seq_of_row: Sequence[int],
    positions: Sequence[int],
    page_size: int,
    split: int = GPU_SPLIT,
    *,
    group: int,
    tile_queries: int,
    window: int | None = None,
    trees: Mapping[int, TokenTree] | None = None,
    places: Mapping[int, int] | None = None,
) -> TritonPlan:
    """Tiles of a step's rows, on the host. Rows, trees and places are those of `plan_attention`.

    Args:
        group: query heads of one KV head.
        tile_queries: of `attention_triton.tile_shape`.
        window: a row at position p sees (p - window, p] alone.
    Raises:
        ValueError: as `plan_attention`; or a window below 1.
    """
    places = places or {}
    check_window(window)
    chunks, rows = _divide(page_tables, seq_of_row, positions, places)
    _check_chunks(chunks, page_size)
    seqs, where = [seq_of_row[row] for row in rows], [positions[row] for row in rows]
    if places:
        inner = {index: places[row] for index, row in enumerate(rows) if row in places}
        items = plan_attention(page_tables, seqs, where, page_size, split, trees=trees, places=inner)
    else:
        items = plan_rows(page_tables, seqs, where, page_size, split)
    return _assemble(items, rows, chunks, len(positions), group, tile_queries, window)


def plan_from_items(plan: AttentionPlan, *, group: int, tile_queries: int, window: int | None = None) -> TritonPlan:
    """The tiles of a plan that was made for any device, all of its rows by items."""
    check_window(window)
    return _assemble(plan, range(plan.num_rows), [], plan.num_rows, group, tile_queries, window)


def row_positions(plan: AttentionPlan) -> torch.Tensor:
    """[rows] int64: a row's position follows from its last split and what it sees of it."""
    counts = torch.empty(plan.num_pairs, dtype=torch.int64)
    counts[plan.entry_pair.long()] = plan.entry_count.long()
    last = plan.row_pair_start[1:].long() - 1
    return (plan.row_pair_start.diff().long() - 1) * plan.split + counts[last] - 1


def first_seen(plan: AttentionPlan, window: int | None) -> torch.Tensor:
    """[entries] int64 first token of the split that a row sees; nothing where that is not below its count."""
    if window is None:
        return torch.zeros(len(plan.entry_row), dtype=torch.int64)
    row = plan.entry_row.long()
    index = plan.entry_pair.long() - plan.row_pair_start[row].long()
    return (row_positions(plan)[row] - window + 1 - index * plan.split).clamp_min(0)


def check_window(window: int | None) -> None:
    """
    Raises:
        ValueError: a window below 1.
    """
    if window is not None and window < 1:
        raise ValueError(f"a window must be at least 1 token, not {window}")


def check_soft_cap(soft_cap: float | None) -> None:
    """
    Raises:
        ValueError: a cap that is not above 0.
    """
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap must be above 0, not {soft_cap}")


def _check_chunks(chunks: Sequence[_Chunk], page_size: int) -> None:
    for chunk in chunks:
        last = chunk.position + chunk.num - 1
        if chunk.position < 0 or len(chunk.table) * page_size <= last:
            raise ValueError(
                f"positions up to {last} need {last // page_size + 1} pages of {page_size}, "
                f"but the page table has {len(chunk.table)}"
            )


def _divide(
    page_tables: Sequence[Sequence[int]],
    seq_of_row: Sequence[int],
    positions: Sequence[int],
    places: Mapping[int, int],
) -> tuple[list[_Chunk], list[int]]:
    """The chunks, and the rows that are in none."""
    chunks, rows = [], []
    begin = 0
    for row in range(1, len(positions) + 1):
        goes_on = (
            row < len(positions)
            and seq_of_row[row] == seq_of_row[begin]
            and positions[row] == positions[row - 1] + 1
            and (row in places) == (begin in places)
        )
        if goes_on:
            continue
        if row - begin >= MIN_CHUNK_ROWS and begin not in places:
            chunks.append(_Chunk(begin, row - begin, positions[begin], page_tables[seq_of_row[begin]]))
        else:
            rows.extend(range(begin, row))
        begin = row
    return chunks, rows


def _assemble(
    items: AttentionPlan,
    rows: Sequence[int],
    chunks: Sequence[_Chunk],
    num_rows: int,
    group: int,
    tile_queries: int,
    window: int | None,
) -> TritonPlan:
    arrays = _item_arrays(items, rows, group, tile_queries, window)
    arrays |= _chunk_arrays(chunks, items.page_size, group, tile_queries)
    launched = len(arrays["tile_item"]), len(rows), len(arrays["chunk_tile"])
    arrays["counts"] = torch.tensor(launched, dtype=torch.int32)
    pages = [max(chunk.table[: _num_pages(chunk, items.page_size)]) for chunk in chunks]
    return TritonPlan(
        arrays=arrays,
        page_size=items.page_size,
        split=items.split,
        num_rows=num_rows,
        group=group,
        tile_queries=tile_queries,
        window=window,
        item_tiles=launched[0],
        merge_rows=launched[1],
        chunk_tiles=launched[2],
        num_pairs=int(arrays["pair_end"][-1]) if len(rows) else 0,
        max_slot=max(items.max_slot, (max(pages, default=-1) + 1) * items.page_size - 1),
    )


def _item_arrays(
    plan: AttentionPlan, rows: Sequence[int], group: int, tile_queries: int, window: int | None
) -> dict[str, torch.Tensor]:
    """Without the entries that a window hides and items that nobody sees, and the states numbered anew."""
    first = first_seen(plan, window)
    seen = first < plan.entry_count
    num_seen = torch.cat([seen.new_zeros(1, dtype=torch.int64), seen.long().cumsum(0)])
    item_start = num_seen[plan.item_start.long()]
    read = item_start.diff() > 0
    item_start = torch.cat([item_start[:1], item_start[1:][read]])
    hidden = torch.zeros(plan.num_pairs + 1, dtype=torch.int64)  # before each pair
    hidden[plan.entry_pair.long() + 1] = (~seen).long()
    hidden = hidden.cumsum(0)
    pair_start = plan.row_pair_start.long()
    pair_start = pair_start - hidden[pair_start]
    tile_item, tile_query = _tiles(item_start.diff() * group, tile_queries)
    row = torch.tensor(list(rows), dtype=torch.int64)
    pair = plan.entry_pair.long()[seen]
    return _int32(
        tile_item=tile_item,
        tile_query=tile_query,
        item_page_start=plan.item_page_start[:-1][read],
        item_pages=plan.item_pages,
        item_unit=plan.item_unit[read],
        item_start=item_start,
        entry_row=row[plan.entry_row.long()[seen]],
        entry_first=first[seen],
        entry_count=plan.entry_count[seen],
        entry_pair=pair - hidden[pair],
        merge_row=row,
        pair_begin=pair_start[:-1],
        pair_end=pair_start[1:],
    )


def _chunk_arrays(chunks: Sequence[_Chunk], page_size: int, group: int, tile_queries: int) -> dict[str, torch.Tensor]:
    """The tiles that see most come first, so that the last to end are short."""
    tables = [chunk.table[: _num_pages(chunk, page_size)] for chunk in chunks]
    starts = [0, *accumulate(len(table) for table in tables)]
    num_queries = torch.tensor([chunk.num * group for chunk in chunks], dtype=torch.int64)
    position = torch.tensor([chunk.position for chunk in chunks], dtype=torch.int64)
    tile, query = _tiles(num_queries, tile_queries)
    order = torch.argsort(position[tile] + query // group, descending=True, stable=True)
    return _int32(
        chunk_tile=tile[order],
        chunk_tile_query=query[order],
        chunk_row=torch.tensor([chunk.row for chunk in chunks]),
        chunk_rows=torch.tensor([chunk.num for chunk in chunks]),
        chunk_position=position,
        chunk_page_start=torch.tensor(starts[:-1]),
        chunk_pages=torch.tensor([page for table in tables for page in table]),
    )


def _num_pages(chunk: _Chunk, page_size: int) -> int:
    return (chunk.position + chunk.num - 1) // page_size + 1


def _tiles(num_queries: torch.Tensor, tile_queries: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Owner and first query of every tile, of owners with `num_queries` queries each."""
    num = (num_queries + tile_queries - 1) // tile_queries
    owner = torch.repeat_interleave(torch.arange(len(num)), num)
    before = (num.cumsum(0) - num)[owner]
    return owner, (torch.arange(len(owner)) - before) * tile_queries


def _int32(**arrays: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: values.to(torch.int32) for name, values in arrays.items()}


def _views(packed: torch.Tensor, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Parts of one tensor, in the order of `ARRAYS`, each at a multiple of 16 bytes: one compiled kernel fits all."""
    starts = accumulate((_padded(sizes[name]) for name in ARRAYS), initial=0)
    return {name: packed[start : start + sizes[name]] for name, start in zip(ARRAYS, starts, strict=False)}


def _packed_size(sizes: Mapping[str, int]) -> int:
    return sum(_padded(sizes[name]) for name in ARRAYS)


def _padded(num: int) -> int:
    return -(-num // 4) * 4
