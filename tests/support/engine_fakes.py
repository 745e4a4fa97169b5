"""A model of plain ints for the engine's tests, and requests that remember what they were told.

The runner keeps, for each slot of the pool, the token and position that were written there, and computes logits
as a function of the token history that it reads back through the page table. A wrong page, a stale slot or a
missing copy therefore changes the output, or is caught on the spot as a fault.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.core import EngineCore
from forktree.backend.engine.messages import (
    Emission,
    Emitted,
    EngineRequest,
    Event,
    Failed,
    Finished,
    ForwardBatch,
    SampleRow,
    TokenInfo,
)

Logit = Callable[[tuple[int, ...], int], float]


def mix(*values: int) -> float:
    """A number in [0, 1) that depends on every value."""
    return (hash(values) % 1_000_003) / 1_000_003


def hashed_logit(history: tuple[int, ...], token: int) -> float:
    return 4.0 * mix(hash(history), token)


@dataclass
class FakeRunner:
    num_pages: int = 32
    page_size: int = 4
    max_context: int = 10_000
    vocab: int = 12
    logit: Logit = hashed_logit
    faults: list[str] = field(default_factory=list)
    batches: list[ForwardBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots: list[tuple[int, int] | None] = [None] * (self.num_pages * self.page_size)

    def forward(self, batch: ForwardBatch) -> list[tuple[int, ...]]:
        self.batches.append(batch)
        assert list(batch.seq_of_row) == sorted(batch.seq_of_row)
        assert list(batch.logit_rows) == sorted(set(batch.logit_rows))
        written: set[int] = set()
        for row, (token, position, seq) in enumerate(zip(batch.ids, batch.positions, batch.seq_of_row, strict=True)):
            slot = self._slot(batch.page_tables[seq], batch.places.get(row, position))
            if slot in written:
                self.faults.append(f"slot {slot} is written twice in one step")
            written.add(slot)
            self.slots[slot] = (token, position)
        return [self._history(batch, row) for row in batch.logit_rows]

    def sample(self, logits: Any, rows: Sequence[tuple[int, SampleRow]]) -> list[TokenInfo]:
        return [draw(logits[row], what, self.logit, self.vocab) for row, what in rows]

    def gather_logprobs(self, logits: Any, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
        return [log_softmax(logits[row], self.logit, self.vocab)[t] for row, t in zip(rows, tokens, strict=True)]

    hidden_size = 3

    def forward_hidden(self, batch: ForwardBatch) -> tuple[list[tuple[int, ...]], list[list[float]]]:
        logits = self.forward(batch)
        histories = [self._history(batch, row) for row in batch.hidden_rows]
        return logits, [[0.1 + mix(hash(history), at) for at in range(self.hidden_size)] for history in histories]

    def add_hidden(self, total: list[float] | None, hidden: list[list[float]], rows: range) -> list[float]:
        sums = total or [0.0] * self.hidden_size
        for row in rows:
            sums = [one + other for one, other in zip(sums, hidden[row], strict=True)]
        return sums

    def direction_of(self, total: list[float]) -> tuple[float, ...]:
        length = math.hypot(*total)
        return struct.unpack(f"{len(total)}f", struct.pack(f"{len(total)}f", *(value / length for value in total)))

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        assert source != target
        assert 0 < num_tokens < self.page_size
        for offset in range(self.page_size):
            copied = self.slots[source * self.page_size + offset] if offset < num_tokens else None
            self.slots[target * self.page_size + offset] = copied

    def _slot(self, page_table: list[int], position: int) -> int:
        return page_table[position // self.page_size] * self.page_size + position % self.page_size

    def _history(self, batch: ForwardBatch, row: int) -> tuple[int, ...]:
        seq, last = batch.seq_of_row[row], batch.positions[row]
        places = list(range(last + 1))
        if row in batch.places:
            tree = batch.trees[seq]
            places = [*range(tree.root), *tree.path_to(batch.places[row])]
            assert len(places) == last + 1
        history = []
        for position, place in enumerate(places):
            slot = self.slots[self._slot(batch.page_tables[seq], place)]
            if slot is None or slot[1] != position:
                self.faults.append(f"position {position} reads {slot}")
                slot = (-1, position)
            history.append(slot[0])
        return tuple(history)


def log_softmax(history: tuple[int, ...], logit: Logit, vocab: int) -> list[float]:
    logits = [logit(history, token) for token in range(vocab)]
    total = math.log(math.fsum(math.exp(value) for value in logits))
    return [value - total for value in logits]


def draw(history: tuple[int, ...], row: SampleRow, logit: Logit, vocab: int) -> TokenInfo:
    """One token by the rules of `SampleRow`, in the plainest way."""
    params = row.params
    scores = {}
    for token in range(vocab):
        value = logit(history, token)
        count = list(row.output_ids).count(token)
        if count or token in row.prompt_ids:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= count * params.frequency_penalty + (count > 0) * params.presence_penalty
        value += dict(params.logit_bias).get(token, 0.0)
        if params.temperature:
            noise = -math.log(-math.log(min(max(mix(params.seed, row.position, token), 1e-9), 1 - 1e-9)))
            value = value / params.temperature + noise
        scores[token] = value
    legal = [t for t in scores if t not in row.banned_ids and (row.mask is None or is_legal(row.mask, t))]
    outside = [t for t in scores if t not in legal and t not in row.banned_ids] if row.end_ids else []
    if row.end_ids and outside and (not legal or max(map(scores.get, outside)) > max(map(scores.get, legal))):
        return TokenInfo(min(row.end_ids), 0.0)
    best = max(legal, key=lambda token: (scores[token], -token))
    return TokenInfo(best, scores[best])


def is_legal(mask: Sequence[int], token: int) -> bool:
    return token < 32 * len(mask) and bool(mask[token // 32] >> (token % 32) & 1)


def pack(tokens: set[int], size: int) -> list[int]:
    words = [0] * -(-size // 32)
    for token in tokens:
        words[token // 32] |= 1 << (token % 32)
    return words


class ListMatcher:
    """The output is one of `options` (tuples of tokens); `eos` may be drawn where one is whole."""

    def __init__(self, options: list[tuple[int, ...]], eos: int, vocab: int = 12) -> None:
        self.options, self.eos, self.vocab = options, eos, vocab
        self.seen: tuple[int, ...] = ()

    def _nexts(self) -> set[int]:
        size = len(self.seen)
        return {o[size] for o in self.options if len(o) > size and o[:size] == self.seen}

    def mask(self) -> list[int]:
        return pack(self._nexts() | ({self.eos} if self.is_complete() else set()), self.vocab)

    def advance(self, token: int) -> None:
        if token not in self._nexts():
            raise ValueError(f"token {token} is illegal after {self.seen}")
        self.seen += (token,)

    def is_complete(self) -> bool:
        return self.seen in self.options

    def must_end(self) -> bool:
        return self.is_complete() and not self._nexts()

    def is_free(self) -> bool:
        return False

    def has_mask(self) -> bool:
        return True

    def forced(self) -> tuple[int, ...]:
        return ()

    def copy(self) -> ListMatcher:
        twin = type(self)(self.options, self.eos, self.vocab)
        twin.seen = self.seen
        return twin


class LetterSink:
    """Token t is `words[t]`; text is held back while a stop may still be completed by what follows."""

    def __init__(self, words: Sequence[str], stops: Sequence[str] = ()) -> None:
        self.words, self.stops = words, stops
        self.text, self.num_shown, self.ends = "", 0, [0]

    def feed(self, token: int) -> Emission:
        self.text += self.words[token]
        self.ends.append(len(self.text))
        hits = [(self.text.find(stop), stop) for stop in self.stops if stop in self.text]
        if hits:
            cut, stop = min(hits)
            kept = [end for end in self.ends if end <= cut]
            shown, self.num_shown = self.text[self.num_shown : cut], len(self.text)
            return Emission(shown, stop, len(kept) - 1, self.text[kept[-1] : cut])
        safe = next(i for i in range(len(self.text) + 1) if any_prefix(self.text[i:], self.stops))
        safe = max(safe, self.num_shown)
        shown, self.num_shown = self.text[self.num_shown : safe], safe
        return Emission(shown)

    def flush(self) -> str:
        rest, self.num_shown = self.text[self.num_shown :], len(self.text)
        return rest


def any_prefix(tail: str, stops: Sequence[str]) -> bool:
    return not tail or any(stop.startswith(tail) for stop in stops)


class Listener:
    """Remembers a request's events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.num_too_late = 0

    def __call__(self, event: Event) -> None:
        self.num_too_late += self.is_done
        self.events.append(event)

    @property
    def is_done(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], (Finished, Failed))

    @property
    def finished(self) -> Finished:
        last = self.events[-1]
        assert isinstance(last, Finished), last
        return last

    @property
    def error(self) -> BaseException:
        last = self.events[-1]
        assert isinstance(last, Failed), last
        return last.error

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, (Emitted, Finished)))


class Driver:
    """An engine core stepped by hand, its invariants checked after every step."""

    def __init__(self, runner: FakeRunner, **config: Any) -> None:
        self.runner = runner
        config.setdefault("max_running", min(64, config.get("max_step_tokens", 64)))
        self.core = EngineCore(runner, EngineConfig(**config))
        self.num_ids = 0
        self.listeners: list[Listener] = []
        self.limits: list[int] = []  # most tokens that each request was promised

    def submit(self, ids: Sequence[int], listener: Listener | None = None, **fields: Any) -> Listener:
        listener = Listener() if listener is None else listener
        request = EngineRequest(ids=tuple(ids), on_event=listener, **fields)
        seq = self.core.make_sequence(self.num_ids, request)
        self.num_ids += 1
        self.listeners.append(listener)
        self.limits.append(seq.output_limit)
        self.core.add(seq)
        return listener

    def step(self) -> bool:
        did_work = self.core.step()
        self.core.check()
        assert not self.runner.faults, self.runner.faults
        assert not any(listener.num_too_late for listener in self.listeners), "an event after the last one"
        return did_work

    def drain(self, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if not self.step():
                return
        raise AssertionError(f"still at work after {max_steps} steps: {self.core.stats()}")

    def check_idle(self) -> None:
        stats = self.core.stats()
        assert stats.num_running == stats.num_waiting == stats.kv_tokens_used == 0
        assert stats.pages_free + stats.pages_cached == stats.pages_total
        self.core.check()


def run_alone(
    ids: Sequence[int], runner: FakeRunner | None = None, config: dict[str, int] | None = None, **fields: Any
) -> Finished:
    """What a request gives on a fresh engine of its own, in one chunk."""
    driver = Driver(runner or FakeRunner(num_pages=400, page_size=16), max_step_tokens=4096, **(config or {}))
    listener = driver.submit(ids, **fields)
    driver.drain()
    return listener.finished
