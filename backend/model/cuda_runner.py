"""The model on a device as the engine sees it (the Protocol is `engine.messages.Runner`).

`forward` and `begin_sample` launch work and return; only a result waits. So masks are made, and the next step is
scheduled, while the device computes.

    host     plan n │ launch n │ masks n │ launch draws n │ plan n+1 │ launch n+1 │ tokens n → requests │ masks n+1 │
    device          └─ forward n ─────────┴─ draws n ─┴────────────── forward n+1 ─────────────────────┴─ draws n+1

With kernels interpreted, the device may be the CPU: slow, and the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from forktree.backend.cache.tiers import HeldPage
from forktree.backend.engine.messages import ForwardBatch, SampleRow, TokenInfo
from forktree.backend.model.config import ModelConfig
from forktree.backend.model.cuda_graphs import LADDERS, Capture, GraphLadder, Ladders, Size
from forktree.backend.model.cuda_inputs import DrawBuffer, RowBuffer, StepPlanBuffer
from forktree.backend.model.cuda_llama import DeviceModel, DeviceStep
from forktree.backend.model.cuda_pages import DevicePage
from forktree.backend.model.cuda_pool import DevicePool
from forktree.backend.model.cuda_sampler import PendingDraws, begin_draws, is_plain
from forktree.backend.model.runner import check_batch, places
from forktree.backend.model.states import add_states, direction_of
from forktree.backend.sampler_inputs import make_inputs
from forktree.kernels.attention_triton import tile_shape
from forktree.kernels.attention_triton_plan import TritonPlan, plan_triton
from forktree.kernels.logits_triton import gather_pairs
from forktree.kernels.sampling import Drawn
from forktree.kernels.sampling_triton import draw_tokens

_MOST_DRAWS = 1024
_GRAPH_ENDS = _GRAPH_BANNED = 4
"""End and banned tokens of one row that a captured draw has room for; a row with more is drawn without a graph."""


class DecodeGraph:
    """The passes of one size: a forward over its buffers, and the draws behind it, both captured when first run."""

    def __init__(self, model: DeviceModel, pool: DevicePool, size: Size, like: TritonPlan, shared: _Shared) -> None:
        device = model.device
        self._shared = shared
        self._model, self._pool = model, pool
        self._size = size
        self.rows = RowBuffer(size.rows, device)
        self.plan = StepPlanBuffer(like, rows=size.rows, tiles=size.tiles, states=size.states, device=device)
        config = model.config
        shape = (size.rows, config.q_heads, config.head_dim)
        self._attended = torch.zeros(shape, dtype=model.dtype, device=device)
        words = -(-config.vocab_size // 32)
        self.draws = DrawBuffer(size.rows, words=words, num_ends=_GRAPH_ENDS, num_banned=_GRAPH_BANNED, device=device)
        self._logits: torch.Tensor | None = None
        self._drawn: Drawn | None = None
        self._forward: Callable[[], None] | None = None
        self._draw: Callable[[], None] | None = None

    def forward(self) -> torch.Tensor:
        """Logits [size.rows, vocab] of the rows that are loaded; they hold until the next pass of this size."""
        if self._forward is None:
            self._forward = self._shared.capture(self._run_forward)
        self._forward()
        assert self._logits is not None
        return self._logits

    def draw(self) -> Drawn:
        """Tokens of the draws that are loaded, behind the last `forward`."""
        if self._draw is None:
            self._draw = self._shared.capture(self._run_draws)
        self._draw()
        assert self._drawn is not None
        return self._drawn

    def _run_forward(self) -> None:
        rows = self.rows
        step = DeviceStep(
            ids=rows.ids,
            positions=rows.positions,
            slots=rows.slots,
            logit_rows=rows.logit_rows,
            last_tokens=self._shared.last_tokens,
            plan=self.plan.plan,
            attended=self._attended,
        )
        self._logits = self._model.forward(step, self._pool.k, self._pool.v)

    def _run_draws(self) -> None:
        assert self._logits is not None
        self._drawn = draw_tokens(self._logits, self.draws.inputs, vocab_size=self._shared.vocab_size)
        self._shared.last_tokens[: self._size.rows].copy_(self._drawn.token)


class _Shared:
    """What all graphs of a runner have in common."""

    def __init__(self, capture: Capture, last_tokens: torch.Tensor, vocab_size: int) -> None:
        self.capture = capture
        self.last_tokens = last_tokens
        self.vocab_size = vocab_size


class DeviceRunner:
    """A model, its pool and its draws on one device. All calls come from one thread at a time.

    Args:
        capture: makes a graph of a decode step; None computes every step as it comes.
        vocab_size: ids from here on are never drawn.
    """

    def __init__(
        self,
        model: DeviceModel,
        pool: DevicePool,
        *,
        vocab_size: int,
        capture: Capture | None,
        ladders: Ladders = LADDERS,
    ) -> None:
        self._model = model
        self._pool = pool
        self._vocab_size = vocab_size
        config = model.config
        self._group = config.q_heads // config.kv_heads
        self._tile = tile_shape(model.dtype, config.head_dim).queries
        self._last_tokens = torch.zeros(_MOST_DRAWS, dtype=torch.int32, device=model.device)
        self._like: TritonPlan | None = None
        self._graphs: GraphLadder[DecodeGraph] | None = None
        if capture is not None:
            self._shared = _Shared(capture, self._last_tokens, vocab_size)
            self._graphs = GraphLadder(self._make_graph, ladders)
        self._current: DecodeGraph | None = None

    @property
    def config(self) -> ModelConfig:
        return self._model.config

    @property
    def num_pages(self) -> int:
        return self._pool.num_pages

    @property
    def page_size(self) -> int:
        return self._pool.page_size

    @property
    def hidden_size(self) -> int:
        return self._model.config.hidden_size

    @property
    def max_context(self) -> int:
        return self._model.config.max_positions

    @property
    def num_graphs(self) -> int:
        """Sizes that were captured so far."""
        return 0 if self._graphs is None else len(self._graphs)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Launch a pass; logits [at least len(logit_rows), vocab] float32, which hold until the next one.

        An id −1 − i stands for the i-th token of the last draws.

        Raises:
            EngineError: an id, position, page or row outside its range.
        """
        check_batch(batch, self._model.config, self._pool, num_drawn=_MOST_DRAWS)
        self._current = None
        if not batch.ids:
            return torch.empty(0, self._model.config.vocab_size, device=self._model.device)
        with torch.inference_mode():
            slots, plan = self._slots(batch), self._plan(batch)
            graph = self._fitting(batch, plan)
            if graph is None:
                return self._forward_plainly(batch, slots, plan)
            graph.rows.load(batch.ids, batch.positions, slots, batch.logit_rows)
            graph.plan.load(plan)
            self._current = graph
            return graph.forward()

    def forward_hidden(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, and final hidden states [len(hidden_rows), hidden] float32. Never from a graph."""
        check_batch(batch, self._model.config, self._pool, num_drawn=_MOST_DRAWS)
        self._current = None
        with torch.inference_mode():
            step = self._device_step(batch, self._slots(batch), self._plan(batch))
            rows = torch.tensor(batch.hidden_rows, dtype=torch.int64).to(self._model.device)
            return self._model.forward_hidden(step, rows, self._pool.k, self._pool.v)

    def add_hidden(self, total: torch.Tensor | None, hidden: torch.Tensor, rows: range) -> torch.Tensor:
        """See `engine.messages.HiddenRunner`; waits for the pass."""
        return add_states(total, hidden[rows.start : rows.stop])

    def direction_of(self, total: torch.Tensor) -> tuple[float, ...]:
        """See `engine.messages.HiddenRunner`."""
        return direction_of(total)

    def sample(self, logits: torch.Tensor, rows: Sequence[tuple[int, SampleRow]]) -> list[TokenInfo]:
        """Draw one token for each (row of `logits`, what to draw), and wait for them.

        Raises:
            EngineError: a row has a NaN or +inf, or nothing that may be drawn; the message names the row.
        """
        return self.begin_sample(logits, rows).result()

    def begin_sample(self, logits: torch.Tensor, rows: Sequence[tuple[int, SampleRow]]) -> PendingDraws:
        """Launch the same. The i-th token may be an input of the next pass before anybody has read it."""
        graph = self._current
        with torch.inference_mode():
            if graph is not None and self._fits_draws(graph, rows):
                given = make_inputs(rows, words=graph.draws.words, num_ends=_GRAPH_ENDS, num_banned=_GRAPH_BANNED)
                graph.draws.load(given)
                return PendingDraws(rows, graph.draw(), None, self._vocab_size)
            pending, drawn = begin_draws(logits, rows, vocab_size=self._vocab_size)
            self._last_tokens[: min(len(rows), _MOST_DRAWS)].copy_(drawn.token[:_MOST_DRAWS])
            return pending

    def gather_logprobs(self, logits: torch.Tensor, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Natural log-probability of `tokens[i]` under row `rows[i]`."""
        with torch.inference_mode():
            return gather_pairs(logits, rows, tokens)

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        self._pool.copy_page(source, target, num_tokens)

    def read_page(self, page: int) -> DevicePage:
        """See `cache.tiers.PageMover`; waits for nothing."""
        with torch.inference_mode():
            return self._pool.read_page(page)

    def write_page(self, page: int, data: HeldPage) -> None:
        """See `cache.tiers.PageMover`; waits for nothing."""
        with torch.inference_mode():
            self._pool.write_page(page, data)

    @property
    def device_name(self) -> str:
        """What rounds as it does."""
        device = self._model.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)

    # --- one pass ------------------------------------------------------------------------------------------

    def _slots(self, batch: ForwardBatch) -> list[int]:
        size = self._pool.page_size
        return [
            batch.page_tables[seq][place // size] * size + place % size
            for seq, place in zip(batch.seq_of_row, places(batch), strict=True)
        ]

    def _plan(self, batch: ForwardBatch) -> TritonPlan:
        return plan_triton(
            batch.page_tables,
            batch.seq_of_row,
            batch.positions,
            self._pool.page_size,
            group=self._group,
            tile_queries=self._tile,
            trees=batch.trees,
            places=batch.places,
        )

    def _fitting(self, batch: ForwardBatch, plan: TritonPlan) -> DecodeGraph | None:
        """The graph of a step without a prompt's chunk, if it is not too large for any."""
        if self._graphs is None or plan.chunk_tiles or len(batch.logit_rows) > len(batch.ids):
            return None
        self._like = plan
        graph = self._graphs.fit(Size(len(batch.ids), plan.item_tiles, plan.num_pairs))
        return graph if graph is not None and graph.plan.holds(plan) else None

    def _make_graph(self, size: Size) -> DecodeGraph:
        assert self._like is not None
        return DecodeGraph(self._model, self._pool, size, self._like, self._shared)

    def _forward_plainly(self, batch: ForwardBatch, slots: list[int], plan: TritonPlan) -> torch.Tensor:
        return self._model.forward(self._device_step(batch, slots, plan), self._pool.k, self._pool.v)

    def _device_step(self, batch: ForwardBatch, slots: list[int], plan: TritonPlan) -> DeviceStep:
        num_rows = len(batch.ids)
        packed = torch.tensor([*batch.ids, *batch.positions, *slots, *batch.logit_rows]).to(self._model.device)
        return DeviceStep(
            ids=packed[:num_rows],
            positions=packed[num_rows : 2 * num_rows],
            slots=packed[2 * num_rows : 3 * num_rows],
            logit_rows=packed[3 * num_rows :],
            last_tokens=self._last_tokens,
            plan=plan.to(self._model.device),
        )

    def _fits_draws(self, graph: DecodeGraph, rows: Sequence[tuple[int, SampleRow]]) -> bool:
        return (
            0 < len(rows) <= len(graph.rows.ids)
            and is_plain(rows)
            and all(len(what.end_ids) <= _GRAPH_ENDS and len(what.banned_ids) <= _GRAPH_BANNED for _, what in rows)
        )
