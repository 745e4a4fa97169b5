"""The model as the engine sees it: tokens and page tables in, logits and draws out."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from forktree.backend.cache.kv_pool import KVLayout, KVPool, count_pages
from forktree.backend.engine.messages import ForwardBatch, SampleRow, TokenInfo
from forktree.backend.model.config import ModelConfig, read_config
from forktree.backend.model.linear import LinearFactory, Quantize
from forktree.backend.model.llama import LlamaModel, Step, build_llama
from forktree.backend.model.states import add_states, direction_of
from forktree.backend.model.store import cache_root
from forktree.backend.model.weights import open_weights
from forktree.backend.sampler import Sampler
from forktree.kernels.attention_plan import DEFAULT_SPLIT, plan_attention
from forktree.kernels.logits import logsumexp_rows
from forktree.kernels.native import load_native
from forktree.lang.errors import EngineError

_log = logging.getLogger("forktree.model")

DEFAULT_PAGE_SIZE = 16


class ModelRunner:
    """A model, its pool and its sampler (the Protocol is `engine.messages.Runner`).

    All calls come from one thread at a time. Errors in a batch are the engine's bugs and raise before
    anything is computed.
    """

    def __init__(self, model: LlamaModel, pool: KVPool, sampler: Sampler, *, num_threads: int) -> None:
        self._model = model
        self._pool = pool
        self._sampler = sampler
        self._num_threads = num_threads
        self._thread: int | None = None

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
    def num_threads(self) -> int:
        """The most that compute a pass; 1 where their number cannot change, because results would."""
        return 1 if self._model.step is None else self._num_threads

    def use_threads(self, count: int) -> None:
        """Let so many threads compute the next passes. Changes no bit. Raises ValueError: a count out of range."""
        if self._model.step is not None:
            self._model.step.use_threads(count)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Logits [len(logit_rows), vocab] float32.

        Raises:
            EngineError: an id, position, page or row outside its range.
        """
        self._claim_thread()
        check_batch(batch, self._model.config, self._pool)
        if not batch.ids:
            return torch.empty(0, self._model.config.vocab_size)
        with torch.inference_mode():
            return self._model.forward(self._step(batch), self._pool).logits

    def forward_hidden(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, and final hidden states [len(hidden_rows), hidden] float32."""
        self._claim_thread()
        check_batch(batch, self._model.config, self._pool)
        with torch.inference_mode():
            return self._model.forward(self._step(batch), self._pool)

    def add_hidden(self, total: torch.Tensor | None, hidden: torch.Tensor, rows: range) -> torch.Tensor:
        """See `engine.messages.HiddenRunner`."""
        return add_states(total, hidden[rows.start : rows.stop])

    def direction_of(self, total: torch.Tensor) -> tuple[float, ...]:
        """See `engine.messages.HiddenRunner`."""
        return direction_of(total)

    def sample(self, logits: torch.Tensor, rows: Sequence[tuple[int, SampleRow]]) -> list[TokenInfo]:
        """Draw one token for each (row of `logits`, what to draw).

        Raises:
            EngineError: a row has no finite logit that may be drawn; the message names the row.
        """
        self._claim_thread()
        return self._sampler.sample(logits, rows)

    def gather_logprobs(self, logits: torch.Tensor, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Natural log-probability of `tokens[i]` under row `rows[i]`."""
        self._claim_thread()
        distinct = sorted(set(rows))
        norms = dict(zip(distinct, logsumexp_rows(logits, distinct, native=self._model.native), strict=True))
        picked = logits[torch.tensor(rows, dtype=torch.int64), torch.tensor(tokens, dtype=torch.int64)].tolist()
        return [logit - norms[row] for logit, row in zip(picked, rows, strict=True)]

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        self._pool.copy_page(source, target, num_tokens)

    def read_page(self, page: int) -> bytes:
        """Keys and values of a page, for a lower tier."""
        return self._pool.read_page(page)

    def write_page(self, page: int, data: bytes) -> None:
        """What `read_page` gave, into any page."""
        self._pool.write_page(page, data)

    def _step(self, batch: ForwardBatch) -> Step:
        size = self._pool.page_size
        slots = [
            batch.page_tables[seq][place // size] * size + place % size
            for seq, place in zip(batch.seq_of_row, places(batch), strict=True)
        ]
        return Step(
            ids=torch.tensor(batch.ids),
            positions=torch.tensor(batch.positions),
            slots=torch.tensor(slots),
            plan=plan_attention(
                batch.page_tables, batch.seq_of_row, batch.positions, size, trees=batch.trees, places=batch.places
            ),
            logit_rows=torch.tensor(batch.logit_rows, dtype=torch.int64),
            hidden_rows=torch.tensor(batch.hidden_rows, dtype=torch.int64),
        )

    def _claim_thread(self) -> None:
        """The number of threads belongs to the calling thread, so it is set where the work is done."""
        if self._thread != threading.get_ident():
            torch.set_num_threads(self._num_threads)
            self._thread = threading.get_ident()


def places(batch: ForwardBatch) -> Sequence[int]:
    """Of every row."""
    if not batch.places:
        return batch.positions
    return [batch.places.get(row, position) for row, position in enumerate(batch.positions)]


class Pages(Protocol):
    """How many pages a pool has, and of how many tokens."""

    num_pages: int
    page_size: int


def check_batch(batch: ForwardBatch, config: ModelConfig, pool: Pages, *, num_drawn: int = 0) -> None:
    """Check every index of a batch.

    Args:
        num_drawn: ids from −num_drawn on stand for tokens that were drawn and not read yet.
    Raises:
        EngineError: one is out of range; the message names it.
    """
    if not len(batch.ids) == len(batch.positions) == len(batch.seq_of_row):
        raise EngineError(
            f"a batch has {len(batch.ids)} ids, {len(batch.positions)} positions and {len(batch.seq_of_row)} sequences"
        )
    _check_range("id", batch.ids, config.vocab_size, -num_drawn)
    _check_range("position", batch.positions, config.max_positions)
    _check_range("sequence", batch.seq_of_row, len(batch.page_tables))
    _check_range("row of logits", batch.logit_rows, len(batch.ids))
    _check_range("row of hidden states", batch.hidden_rows, len(batch.ids))
    for table in batch.page_tables:
        _check_range("page", table, pool.num_pages)
    for seq, place in zip(batch.seq_of_row, places(batch), strict=True):
        if place // pool.page_size >= len(batch.page_tables[seq]):
            raise EngineError(f"a batch has position {place} beyond the page table of sequence {seq}")


def _check_range(name: str, values: Sequence[int], end: int, begin: int = 0) -> None:
    if values and not (min(values) >= begin and max(values) < end):
        worst = next(value for value in values if not begin <= value < end)
        raise EngineError(f"a batch has {name} {worst}, outside [{begin}, {end})")


def load_runner(
    folder: str | Path,
    *,
    quantize: Quantize = "auto",
    device: str = "auto",
    kv_tokens: int | None = None,
    page_size: int | None = None,
    vocab_size: int | None = None,
    num_threads: int | None = None,
) -> ModelRunner:
    """Load a model folder (safetensors, config.json) for this machine.

    Args:
        quantize: see `LinearFactory`.
        device: "auto" or "cpu".
        kv_tokens: tokens of the KV pool; by default a quarter of the free memory, 4 GiB at most.
        page_size: tokens of a page: a power of two up to 128; 16 by default.
        vocab_size: ids from here on are never drawn; by default the tokenizer's size, as the folder says.
        num_threads: threads of the computation; by default torch's own number.
    Raises:
        ModelError: the folder cannot be used; the message says why.
        ValueError: an argument is out of range.
    """
    folder = Path(folder)
    size = DEFAULT_PAGE_SIZE if page_size is None else page_size
    if not 1 <= size <= DEFAULT_SPLIT or DEFAULT_SPLIT % size:
        raise ValueError(f"page_size must be a power of two from 1 to {DEFAULT_SPLIT}, not {size}")
    if device not in ("auto", "cpu"):
        raise ValueError(f'device must be "auto" or "cpu", not {device!r}')
    threads = num_threads or torch.get_num_threads()
    native = load_native(cache_root() / "native", num_threads=threads)
    linears = LinearFactory(quantize, native)
    config = read_config(folder)
    with open_weights(folder) as weights, torch.inference_mode():
        model = build_llama(config, weights, linears, native)
    layout = KVLayout(config.num_layers, config.kv_heads, config.head_dim)
    pool = KVPool(layout, num_pages=count_pages(layout, kv_tokens=kv_tokens, page_size=size), page_size=size)
    known = vocab_size if vocab_size is not None else _tokenizer_size(folder, config.vocab_size)
    return ModelRunner(model, pool, Sampler(vocab_size=known, native=native), num_threads=threads)


def _tokenizer_size(folder: Path, model_size: int) -> int:
    """One more than the largest id in tokenizer.json; the model's own width where there is none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return model_size
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        ids = [token["id"] for token in data.get("added_tokens") or []]
        vocab = data["model"]["vocab"]
        ids.append(max(vocab.values()) if isinstance(vocab, dict) else len(vocab) - 1)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("cannot read the ids in %s (%s); every id of the model may be drawn", path, error)
        return model_size
    return 1 + int(max(ids))
