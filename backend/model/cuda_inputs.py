"""The inputs of a step as tensors at fixed addresses: one for its rows, one for its plan, one for its draws.

Each has a twin on the host, in pinned memory, and is loaded by one copy. The host's side may be written again once
that copy has ended, which `Fence` waits for: by then it has, in every step but a stalled one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch

from forktree.kernels.attention_triton_plan import PlanBuffer, TritonPlan
from forktree.kernels.sampling import DrawInputs

_ROW_FIELDS = 4


class Fence:
    """Whether what was launched up to a point has ended; on a CPU it always has."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def mark(self) -> None:
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


class RowBuffer:
    """ids, positions, slots and logit_rows of up to `num_rows` rows: [num_rows] int64 each."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._host = torch.zeros(_ROW_FIELDS, num_rows, dtype=torch.int64, pin_memory=is_cuda)
        self._device = torch.zeros(_ROW_FIELDS, num_rows, dtype=torch.int64, device=device)
        self._fence = Fence(device)
        self.ids, self.positions, self.slots, self.logit_rows = self._device

    def load(
        self, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int], logit_rows: Sequence[int]
    ) -> None:
        """Rows behind them are padding: id 0 at position 0, without a slot."""
        self._fence.wait()
        self._host.zero_()
        self._host[2] = -1
        for row, values in zip(self._host, (ids, positions, slots, logit_rows), strict=True):
            row[: len(values)] = torch.tensor(values, dtype=torch.int64)
        self._device.copy_(self._host, non_blocking=True)
        self._fence.mark()


class DrawBuffer:
    """`DrawInputs` of up to `num_draws` draws; the views of one tensor, doubles first."""

    def __init__(self, num_draws: int, *, words: int, num_ends: int, num_banned: int, device: torch.device) -> None:
        self.num_ends, self.num_banned, self.words = num_ends, num_banned, words
        self._num_draws = num_draws
        widths = {"rows": 1, "masks": words, "ends": num_ends, "banned": num_banned, "top_k": 1, "keys": 4}
        size = num_draws * (3 * 2 + sum(widths.values()))
        is_cuda = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=is_cuda)
        self._device = torch.zeros(size, dtype=torch.int32, device=device)
        self._fence = Fence(device)
        self._on_host = _views(self._host, num_draws, widths)
        self.inputs = _views(self._device, num_draws, widths)

    def load(self, given: DrawInputs) -> None:
        """Take over inputs on the host. Draws behind them take the likeliest of row 0, which nobody reads."""
        self._fence.wait()
        self._host.zero_()
        self._on_host.ends.fill_(-1)
        self._on_host.banned.fill_(-1)
        for field in fields(DrawInputs):
            getattr(self._on_host, field.name)[: given.num_draws] = getattr(given, field.name)
        self._device.copy_(self._host, non_blocking=True)
        self._fence.mark()


class StepPlanBuffer:
    """A `PlanBuffer` whose host side waits for its last copy."""

    def __init__(self, like: TritonPlan, *, rows: int, tiles: int, states: int, device: torch.device) -> None:
        pages = tiles * max(1, like.split // like.page_size)
        capacities = dict.fromkeys(("tile_item", "tile_query", "item_unit"), tiles)
        capacities |= {"item_page_start": tiles + 1, "item_start": tiles + 1, "item_pages": pages}
        capacities |= dict.fromkeys(("entry_row", "entry_first", "entry_count", "entry_pair"), states)
        capacities |= dict.fromkeys(("merge_row", "pair_begin", "pair_end"), rows)
        self._sizes = capacities
        self._buffer = PlanBuffer(device, capacities)
        self._fence = Fence(device)
        self.plan = self._buffer.plan_like(like, num_rows=rows, num_pairs=states)

    def holds(self, plan: TritonPlan) -> bool:
        """Whether all of a plan finds room."""
        return plan.chunk_tiles == 0 and all(len(plan.arrays[name]) <= size for name, size in self._sizes.items())

    def load(self, plan: TritonPlan) -> None:
        self._fence.wait()
        self._buffer.load(plan)
        self._fence.mark()


def to_device(inputs: DrawInputs, device: torch.device) -> DrawInputs:
    """For draws of no fixed size."""
    return replace(inputs, **{field.name: getattr(inputs, field.name).to(device) for field in fields(DrawInputs)})


def _views(packed: torch.Tensor, num_draws: int, widths: dict[str, int]) -> DrawInputs:
    doubles = packed[: 6 * num_draws].view(torch.float64).view(3, num_draws)
    views, start = {}, 6 * num_draws
    for name, width in widths.items():
        flat = packed[start : start + num_draws * width]
        views[name] = flat if name in ("rows", "top_k") else flat.view(num_draws, width)
        start += num_draws * width
    return DrawInputs(temperature=doubles[0], top_p=doubles[1], min_p=doubles[2], **views)
