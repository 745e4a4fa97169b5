"""The engine without its thread: `step` schedules, builds, forwards, samples and delivers, once.

Everything here runs on one thread. A fault stays where it happened: an exception of a request's own matcher
or sink fails that request, and one of the model the request that cannot be computed alone (`splitting.py`); its pages
are accounted for before anybody is told.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from forktree.backend.cache.pages import PageAllocator
from forktree.backend.cache.radix import RadixCache
from forktree.backend.cache.recurring import Prefix
from forktree.backend.engine.ahead import AheadRunner, Flight, land, plan_ahead
from forktree.backend.engine.batch import StepBatch, build_batch
from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.costs import make_costs
from forktree.backend.engine.drawing import Drawer
from forktree.backend.engine.inspect import CachedNode, StepRecord, cached_tree
from forktree.backend.engine.live import LiveRequests
from forktree.backend.engine.masks_ahead import MasksAhead
from forktree.backend.engine.memory import KVMemory, make_tiers
from forktree.backend.engine.messages import (
    EngineRequest,
    HiddenRunner,
    Runner,
)
from forktree.backend.engine.passes import Passes
from forktree.backend.engine.readings import Readings
from forktree.backend.engine.request import Phase, Sequence, make_sequence
from forktree.backend.engine.scheduler import Chunk, Scheduler, StepPlan
from forktree.backend.engine.speculation import Speculator
from forktree.backend.engine.splitting import split_chunks
from forktree.backend.engine.stats import EngineStats
from forktree.lang.errors import ContextLengthError, EngineError, UnsupportedError

_log = logging.getLogger(__name__)
_NUM_RECORDED_STEPS = 1024


class EngineCore:
    """A runner, a scheduler and the memory between them. Not thread-safe."""

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self._runner = runner
        self._memory = _make_memory(runner, config)
        self._costs = make_costs(config)
        self._scheduler = Scheduler(self._memory, config, self._costs)
        self._passes = Passes(runner, self._costs)
        self._ahead = MasksAhead()
        self._speculator = Speculator(self._costs)
        self._config = config
        self._flight: Flight | None = None
        self._live = LiveRequests(self._scheduler, self._memory, self._speculator)
        overlapped = runner if isinstance(runner, AheadRunner) and config.max_draft == 0 else None
        self._drawer = Drawer(runner, self._live, overlapped, self._launch_ahead)
        self._readings = Readings(runner, self._live)
        self._num_steps = self._prefill_tokens = 0
        self._timeline: deque[StepRecord] = deque(maxlen=_NUM_RECORDED_STEPS)

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    @property
    def max_tokens(self) -> int:
        """Most tokens of a request: the context's, or what the pool holds and one that is drawn last."""
        runner = self._runner
        return min(runner.max_context, runner.num_pages * runner.page_size + 1)

    @property
    def page_size(self) -> int:
        return self._memory.page_size

    @property
    def hidden_size(self) -> int:
        """Values of an embedding. Raises UnsupportedError: the runner gives out no hidden states."""
        if not isinstance(self._runner, HiddenRunner):
            raise UnsupportedError("this model's runner gives out no hidden states, so it makes no embeddings")
        return self._runner.hidden_size

    def make_sequence(self, id: int, request: EngineRequest) -> Sequence:
        """Check a request against the runner's limits; safe on any thread. Ids must grow.

        Raises:
            ContextLengthError: it can never fit, or not beside what is pinned.
            EngineError: it is a pin, and would leave too little of the pool.
            UnsupportedError: it asks for an embedding, and the runner gives out no hidden states.
            ValueError: a field is out of range.
        """
        runner = self._runner
        if request.embed_from is not None:
            _ = self.hidden_size
        pool_tokens = self._memory.count_room(request) * runner.page_size
        try:
            seq = make_sequence(id, request, max_context=runner.max_context, pool_tokens=pool_tokens)
        except ContextLengthError as error:
            raise self._memory.pins.explained(error) from error.__cause__
        if request.is_pin:
            if request.max_tokens or request.continuations is not None:
                raise ValueError(f"a pin generates nothing: max_tokens must be 0, not {request.max_tokens}")
            self._memory.pins.reserve(id, request.namespace, seq.ids)
        return seq

    def add(self, seq: Sequence) -> None:
        """Queue a sequence that `make_sequence` made."""
        self._live.add(seq)
        self._scheduler.add(seq)
        self._memory.look_ahead(seq)
        if self._memory.foresight is not None:
            self._memory.foresight.interrupt()
        self._drawer.begin(seq)

    def cancel(self, id: int) -> None:
        """See `LiveRequests.cancel`."""
        self._live.cancel(id)

    def unpin(self, id: int) -> None:
        """Let a pinned prefix go, or the request that computes it. Unknown ids are ignored, as by `cancel`."""
        self.cancel(id)
        self._memory.pins.drop(id)

    def end_run(self, owner: int) -> None:
        """A run asks for nothing any more: what it left in the cache is evicted like everything else."""
        self._memory.holds.release(owner)

    def expect(self, namespace: str, prompts: list[tuple[int, ...]]) -> None:
        """Prompts that begin so come next: what a cache has of them is kept, or brought up."""
        if self._memory.foresight is not None:
            self._memory.foresight.expect(Prefix(namespace, ids) for ids in prompts if ids)
        else:
            for ids in prompts:
                self._memory.tree.touch(namespace, list(ids), len(ids))

    @property
    def has_plans(self) -> bool:
        """Something is worth bringing up from a lower tier before any request has come."""
        return self._memory.foresight is not None and self._memory.foresight.has_plans

    def prepare(self) -> float | None:
        """With no work, do a bounded bit for what is likely to come; seconds until the next bit, None without one."""
        if self._memory.foresight is None or self._live:
            return None
        try:
            return self._memory.foresight.advance()
        except Exception:
            _log.exception("what is foreseen could not be brought up")
            return None

    def flush(self) -> int:
        """Forget every cached page that no running sequence uses, and finished outputs; returns how many pages."""
        self._speculator.forget()
        return self._memory.flush()

    def close(self) -> None:
        """Let the core's own thread go; nothing can be computed any more."""
        self._ahead.close()
        self._memory.close()

    def drop(self) -> None:
        """The same after a bug: nothing that the pool holds is kept for later."""
        self._ahead.close()
        self._memory.drop()

    def silence(self, make_error: Callable[[], BaseException]) -> None:
        """See `LiveRequests.silence`; from another thread."""
        self._live.silence(make_error)

    def refuse(self, seq: Sequence, error: BaseException) -> None:
        """See `LiveRequests.refuse`."""
        self._live.refuse(seq, error)

    def abandon(self, make_error: Callable[[], BaseException]) -> None:
        """See `LiveRequests.abandon`."""
        self._live.abandon(make_error)

    def step(self) -> bool:
        """Compute one batch; False if there was nothing to do."""
        start = time.perf_counter()
        before = (self._prefill_tokens, self._drawer.num_drawn)
        flight, self._flight = self._flight, None
        if flight is not None:
            plan = self._land(flight)
        else:
            plan = self._scheduler.schedule()
            if not plan.chunks:
                return self._refuse_stuck()
            if self._config.max_draft:
                self._draft(plan)
            planned = time.perf_counter()
            self._compute(plan)
            num_drawn = self._drawer.num_drawn - before[1]
            self._memory.note_step(self._prefill_tokens - before[0], num_drawn, time.perf_counter() - planned)
        self._record(plan, before, time.perf_counter() - start)
        return True

    def _land(self, flight: Flight) -> StepPlan:
        """Go on with a pass that was launched ahead."""
        plan, draws = land(flight)
        self._settle(plan)
        self._drawer.draw(flight.logits, draws)
        return plan

    def _launch_ahead(self, drawing: list[Sequence]) -> bool:
        """Launch the next pass while this one's tokens are drawn, where nobody else would be in it; whether it was."""
        if self._scheduler.num_waiting or len(drawing) != self._scheduler.num_running:
            return False
        ahead = plan_ahead(drawing, self._scheduler.make_room)
        if ahead is None:
            return False
        plan, batch = ahead
        try:
            self._num_steps += 1
            self._flight = Flight(plan, self._passes.forward(batch))
        except Exception:
            _log.exception("a pass could not be launched ahead; it is planned anew")
            return False
        return True

    def _compute(self, plan: StepPlan) -> None:
        """Compute a plan in one pass, or in the smaller ones that a failure leaves of it."""
        self._copy_pages(plan)
        parts = [plan.chunks]
        while parts:
            part = [chunk for chunk in parts.pop() if chunk.seq.phase is Phase.RUNNING]  # some may have ended since
            if not part:
                continue
            try:
                batch = build_batch(part)
                with self._ahead.making(seq.matcher for _, seq, _ in batch.draws):
                    logits, hidden = self._forward(batch)
            except Exception as error:
                parts += reversed(self._split(part, error))
            else:
                self._deliver(StepPlan(chunks=part), batch, logits, hidden)

    def _split(self, part: list[Chunk], error: Exception) -> list[list[Chunk]]:
        """What to try in place of a pass that failed; nothing, and its one sequence is ended, where that is one row."""
        smaller = split_chunks(part)
        if smaller:
            what = f"{type(error).__name__}: {error}"
            _log.warning("a forward pass over %d sequences failed; trying smaller ones (%s)", len(part), what)
        else:
            self._live.fail_pass(part[0].seq, error)
        return smaller

    def _deliver(self, plan: StepPlan, batch: StepBatch, logits: Any, hidden: Any | None) -> None:
        """What a pass gave: to the cache, to those who asked for scores, and to those who go on."""
        self._settle(plan)
        self._readings.deliver(logits, hidden, batch)
        self._drawer.draw(logits, batch.draws)
        self._learn(plan)
        self._finish_prompts(plan)

    def timeline(self) -> tuple[StepRecord, ...]:
        """The last steps, at most 1,024, the oldest first."""
        return tuple(self._timeline)

    def cached_tree(self) -> dict[str, tuple[CachedNode, ...]]:
        """The radix tree by namespace, as frozen values."""
        return cached_tree(self._memory.tree)

    def count_cached(self, prompts: list[tuple[int, ...]]) -> list[int]:
        """How many of each prompt's first tokens the tree holds in the namespace of programs."""
        return [self._memory.tree.match("", list(ids), len(ids)) for ids in prompts]

    def stats(self) -> EngineStats:
        """A snapshot; taken from another thread while a step runs, its counts may be moments apart."""
        memory, scheduler = self._memory, self._scheduler
        return EngineStats(
            num_steps=self._num_steps,
            prefill_tokens=self._prefill_tokens,
            cached_tokens=scheduler.num_cached_tokens,
            decode_tokens=self._drawer.num_drawn,
            forced_tokens=self._drawer.num_forced,
            drafted_tokens=self._speculator.num_drafted,
            accepted_tokens=self._speculator.num_accepted,
            kv_tokens_used=memory.num_used * memory.page_size,
            pages_total=memory.allocator.num_pages,
            pages_free=memory.allocator.num_free,
            pages_cached=memory.tree.num_pages,
            pages_used=memory.num_used,
            pages_evicted=memory.num_evicted,
            **memory.tier_figures(),
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_preemptions=scheduler.num_preemptions,
            num_finished=self._live.num_finished,
            num_failed=self._live.num_failed,
        )

    def check(self) -> None:
        """Assert every invariant of pages, locks and queues. For tests and debugging; O(cache)."""
        self._memory.check(self._scheduler.running)
        scheduler = self._scheduler
        assert sorted(self._live.ids) == sorted(seq.id for seq in (*scheduler.running, *scheduler.waiting))
        for seq in scheduler.waiting:
            assert not seq.pages
            assert seq.lock is None

    # --- one step ------------------------------------------------------------------------------------------

    def _record(self, plan: StepPlan, before: tuple[int, int], seconds: float) -> None:
        self._timeline.append(
            StepRecord(
                index=self._num_steps,
                prefill_tokens=self._prefill_tokens - before[0],
                decode_tokens=self._drawer.num_drawn - before[1],
                num_sequences=len(plan.chunks),
                num_running=self._scheduler.num_running,
                num_waiting=self._scheduler.num_waiting,
                seconds=seconds,
            )
        )

    def _copy_pages(self, plan: StepPlan) -> None:
        """Carry out the plan's copies in order. Whose page cannot be had is ended, with those who copy from that page.

        They are made once: a pass writes behind what was copied, so one that fails leaves it as it is.
        """
        lost: set[int] = set()
        for source, target, num_tokens in plan.copies:
            try:
                if source in lost:
                    raise EngineError(f"page {source} was to be copied from, and could not be made")
                self._runner.copy_page(source, target, num_tokens)
            except Exception as error:
                lost.add(target)
                for seq in [seq for seq in plan.sequences if target in seq.pages]:
                    self._live.fail_pass(seq, error)

    def _forward(self, batch: StepBatch) -> tuple[Any, Any | None]:
        """Logits, and final hidden states where somebody asks for them."""
        self._num_steps += 1
        if batch.hidden:
            return self._passes.forward_hidden(batch.forward)
        return self._passes.forward(batch.forward), None

    def _settle(self, plan: StepPlan) -> None:
        """What was computed counts, and filled pages of prompts are there for others."""
        for seq, start, num_tokens, _ in plan.chunks:
            seq.num_computed += num_tokens
            num_prefill = min(start + num_tokens, seq.num_prefill) - start
            if num_prefill > 0 and (num_tokens > 1 or start < seq.num_given):
                self._prefill_tokens += num_prefill
                self._scheduler.share(seq)

    def _draft(self, plan: StepPlan) -> None:
        """Guess ahead where it pays, as far as the plan leaves room in the step and in the pool."""
        num_rows, num_live = plan.num_rows, min(len(self._live), self._config.max_running)
        drawing = [index for index, chunk in enumerate(plan.chunks) if chunk.draws]
        for index in drawing:
            seq = plan.chunks[index].seq
            most = min(self._config.max_draft, self._config.max_step_tokens - num_rows, seq.num_left - 1)
            draft = self._speculator.propose(seq, most, num_live, num_rows) if most > 0 else None
            if draft is not None:
                draft = draft.first(self._scheduler.make_room(seq, len(draft.tokens)))
                num_rows += len(draft.tokens)
                plan.chunks[index] = plan.chunks[index]._replace(draft=draft)

    def _learn(self, plan: StepPlan) -> None:
        for seq, start, num_tokens, draft in plan.chunks:
            if draft is not None:
                self._speculator.learn(seq, draft, seq.ids[start + num_tokens :])

    def _finish_prompts(self, plan: StepPlan) -> None:
        for seq in plan.sequences:
            if seq.phase is Phase.RUNNING and seq.output_limit == 0 and seq.num_pending == 0:
                if seq.request.is_pin:
                    self._memory.pin(seq)
                self._readings.finish_prompt(seq)

    def _refuse_stuck(self) -> bool:
        """No step can be planned although requests are live: a bug, told to the oldest instead of hanging."""
        oldest = self._live.oldest
        if oldest is None:
            return False
        stats = self.stats()
        self._live.fail(oldest, EngineError(f"internal error: nothing can be scheduled ({stats}); please report it"))
        return True


def _make_memory(runner: Runner, config: EngineConfig) -> KVMemory:
    tiers = make_tiers(runner, config)
    allocator = PageAllocator(runner.num_pages)
    return KVMemory(allocator, RadixCache(allocator, runner.page_size, tiers), tiers)
