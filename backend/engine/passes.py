"""Forward passes, timed: what they cost is learnt, and how many threads the next should have."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from forktree.backend.engine.costs import Costs
from forktree.backend.engine.messages import ForwardBatch, HiddenRunner, Runner
from forktree.backend.engine.threads import ThreadChoice, Threaded

T = TypeVar("T")


class Passes:
    """Passes of one runner. The engine's thread owns it."""

    def __init__(self, runner: Runner, costs: Costs) -> None:
        self._runner = runner
        self._costs = costs
        self._threaded = runner if isinstance(runner, Threaded) and runner.num_threads > 1 else None
        self._choice = ThreadChoice(1 if self._threaded is None else self._threaded.num_threads)

    def forward(self, batch: ForwardBatch) -> Any:
        """The runner's logits of a batch."""
        return self._timed(self._runner.forward, batch)

    def forward_hidden(self, batch: ForwardBatch) -> tuple[Any, Any]:
        """Logits, and final hidden states of the rows that are asked for; the runner has them."""
        assert isinstance(self._runner, HiddenRunner)
        return self._timed(self._runner.forward_hidden, batch)

    def _timed(self, forward: Callable[[ForwardBatch], T], batch: ForwardBatch) -> T:
        if self._threaded is not None:
            self._threaded.use_threads(self._choice.size)
        start, computed = time.perf_counter(), time.thread_time()
        result = forward(batch)
        self._learn(len(batch.ids), time.perf_counter() - start, time.thread_time() - computed)
        return result

    def _learn(self, num_rows: int, seconds: float, computed: float) -> None:
        self._costs.note(num_rows, seconds)
        if self._threaded is not None:
            self._choice.note(seconds / self._costs.at(num_rows).whole, computed / max(seconds, 1e-9))
