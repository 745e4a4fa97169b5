"""The requests that have not ended, and how they end: what each waiter is told, the last of it exactly once."""

from __future__ import annotations

import logging
from collections.abc import Callable

from forktree.backend.engine.memory import KVMemory
from forktree.backend.engine.messages import Event, Failed, Finished
from forktree.backend.engine.output import Ending, finish
from forktree.backend.engine.request import Phase, Sequence
from forktree.backend.engine.scheduler import Scheduler
from forktree.backend.engine.speculation import Speculator
from forktree.backend.engine.splitting import is_out_of_memory
from forktree.lang.errors import EngineError, ForktreeError, RunCancelledError

_log = logging.getLogger(__name__)


class LiveRequests:
    """Sequences by id, in order of age. The engine's thread owns it.

    Pages are given back, and the request is gone from here, before its waiter is told.
    """

    def __init__(self, scheduler: Scheduler, memory: KVMemory, speculator: Speculator) -> None:
        self._scheduler = scheduler
        self._memory = memory
        self._speculator = speculator
        self._by_id: dict[int, Sequence] = {}
        self._is_silent = False
        self.num_finished = self.num_failed = 0

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def ids(self) -> list[int]:
        return list(self._by_id)

    @property
    def oldest(self) -> Sequence | None:
        return next(iter(self._by_id.values()), None)

    def add(self, seq: Sequence) -> None:
        self._by_id[seq.id] = seq

    def tell(self, seq: Sequence, event: Event) -> None:
        """Tell a request's listener, unless nobody is told anything any more."""
        if not self._is_silent:
            self._call(seq, event)

    # --- endings of one ------------------------------------------------------------------------------------

    def finish(self, seq: Sequence, ending: Ending, embedding: tuple[float, ...] = ()) -> None:
        """End a request well; what it computed stays cached."""
        event = finish(seq, ending, embedding)  # it may raise, and nothing has changed then
        self._scheduler.finish(seq)
        self._tell_last(seq, event)

    def cancel(self, id: int) -> None:
        """End a request with `RunCancelledError`; what it computed stays cached. Unknown ids are ignored:
        the request may have ended while the wish was under way."""
        seq = self._by_id.get(id)
        if seq is not None:
            self.fail(seq, RunCancelledError("the request was cancelled"))

    def fail(self, seq: Sequence, error: BaseException) -> None:
        """End a request with an error; what it computed is sound and stays cached."""
        self._scheduler.finish(seq)
        self._tell_last(seq, Failed(error))

    def fail_at(self, seq: Sequence, what: str, error: Exception) -> None:
        """End a request for a fault of its own: one of our errors as it is, any other as an `EngineError`'s cause."""
        self.fail(seq, error if isinstance(error, ForktreeError) else _wrap(what, error))

    def fail_pass(self, seq: Sequence, error: Exception) -> None:
        """End a request that the model could not compute; what its own pages hold is not trusted."""
        _log.error("the forward pass of request %d failed", seq.id, exc_info=error)
        self._scheduler.abort(seq)
        what = "the model's forward pass failed"
        if is_out_of_memory(error):
            what = "there is too little memory for a forward pass, even of one row; a smaller kv_tokens leaves it more"
        self._tell_last(seq, Failed(_wrap(what, error)))

    def refuse(self, seq: Sequence, error: BaseException) -> None:
        """End a sequence that was not added, and touch nothing else: the engine may be broken."""
        if seq.phase is Phase.DONE or seq.id in self._by_id:  # adding it went wrong half-way
            return
        seq.phase = Phase.DONE
        self.num_failed += 1
        if seq.request.is_pin:
            self._memory.pins.drop(seq.id)
        self.tell(seq, Failed(error))

    # --- the end of all ------------------------------------------------------------------------------------

    def abandon(self, make_error: Callable[[], BaseException]) -> None:
        """End every request with an error of its own, for the last time: whatever else is broken, all are told."""
        for seq in list(self._by_id.values()):
            try:
                self._scheduler.abort(seq)
                self._memory.leave(seq)
            except Exception:
                _log.exception("the pages of request %d are lost", seq.id)
            del self._by_id[seq.id]
            self.num_failed += 1
            self.tell(seq, Failed(make_error()))

    def silence(self, make_error: Callable[[], BaseException]) -> None:
        """End every request from another thread, since the engine's own does not come back. If it does, nobody hears
        of it; whoever is being told something at this moment may hear two ends."""
        self._is_silent = True
        for seq in list(self._by_id.values()):
            self._call(seq, Failed(make_error()))

    def _tell_last(self, seq: Sequence, event: Finished | Failed) -> None:
        del self._by_id[seq.id]
        self._memory.leave(seq)
        self._speculator.leave(seq)
        if isinstance(event, Failed):
            if seq.request.is_pin:
                self._memory.pins.drop(seq.id)
            self.num_failed += 1
        else:
            self.num_finished += 1
        self.tell(seq, event)

    def _call(self, seq: Sequence, event: Event) -> None:
        try:
            seq.request.on_event(event)
        except BaseException:  # a listener's fault, whatever it is, is not the engine's
            _log.exception("the listener of request %d failed on %s", seq.id, type(event).__name__)


def _wrap(what: str, error: Exception) -> EngineError:
    """An error of its own for one request, with the fault as its cause."""
    ours = EngineError(f"{what}: {type(error).__name__}: {error}")
    ours.__cause__ = error
    return ours
