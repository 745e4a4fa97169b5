"""Who computes what in the next step. Decides only: no tensors, no callbacks, no threads.

A step holds at most `max_step_tokens` new tokens, given out in this order:

1. one token for every sequence that decodes, the oldest first. When one cannot grow, the newest running
   sequence is preempted: what it computed goes to the tree and it waits in its old place in the queue. The
   oldest can therefore always go on, so the whole always makes progress.
2. chunks for running sequences with more than one known token to compute, the oldest first: runs that a
   constraint forced, and prefills in progress.
3. new sequences, while slots, tokens and pages last, in the order of a depth-first walk over the tree that
   waiting prompts form, so that a trunk is used by all its branches while it is in the cache.

*Mix*: beside sequences that decode, 2 and 3 hold only as many tokens of prompts as let the step take a stated
multiple of what the decodes alone would, by the measured costs of a pass, and never fewer than a floor that keeps
chunks from costing more than they are worth (`costs.count_prefill`). So neither starves: decodes are in every
step, and a prefill waits for older sequences only. With nothing decoding the whole step is theirs.

*Deferral*: a sequence that shares a longer prefix with a running one than that has computed yet waits until it
has, at every level of the tree. Of a burst of requests each distinct token is computed once.

*Tiers*: a sequence whose prefix is on its way up from a lower tier is passed over until it is there, or has taken as
long as computing it would. A sequence that computes a pin waits for those before it that were promised its pages.

*Age*: the oldest waiting sequence may be overtaken `max_overtakes` times; then nobody else is admitted before
it. Every sequence becomes the oldest, so none starves: from the moment at which a request is the oldest that is live,
it ends within

    (max_overtakes + 2) x max_running x most_tokens   steps,        most_tokens = min(context, tokens of the pool + 1)

whatever comes behind it. While it runs it is never preempted and computes a token in every step, which is one
`most_tokens`. While it waits, at most `max_overtakes` others are admitted; between two admissions (and after the last)
every step computes a token of somebody who runs, who have at most max_running x most_tokens between them, and once
nobody runs it is admitted, since it fits. A prefix that comes from a disk is waited for besides, a bounded time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.costs import Costs, count_prefill
from forktree.backend.engine.forest import Forest
from forktree.backend.engine.memory import Donor, KVMemory, PageCopy
from forktree.backend.engine.request import Phase, Sequence
from forktree.backend.engine.speculation import Draft

_NUM_AHEAD = 8  # of the oldest waiting sequences, whose prefixes are read from lower tiers in any case


class Chunk(NamedTuple):
    """Compute `num_tokens` tokens of a sequence from position `start` on, and a draft of what may follow them."""

    seq: Sequence
    start: int
    num_tokens: int
    draft: Draft | None = None

    @property
    def draws(self) -> bool:
        """All known tokens are computed with it, and the next one is to be drawn."""
        return self.start + self.num_tokens == len(self.seq.ids) and self.seq.output_limit > 0


class _Start(NamedTuple):
    """What a sequence may start from now, besides the cache."""

    donor: Donor | None


@dataclass(slots=True)
class StepPlan:
    """One step: page copies to carry out in order, then chunks to compute together."""

    copies: list[PageCopy] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        return [chunk.seq for chunk in self.chunks]

    @property
    def num_rows(self) -> int:
        return sum(chunk.num_tokens + len(chunk.draft.tokens if chunk.draft else ()) for chunk in self.chunks)


class Scheduler:
    """Owner of the queue, of the running set and of the forest over both."""

    def __init__(self, memory: KVMemory, config: EngineConfig, costs: Costs) -> None:
        self._memory = memory
        self._config = config
        self._costs = costs
        self._forest = Forest()
        self._waiting: list[Sequence] = []  # both lists are sorted by age: by id
        self._running: list[Sequence] = []
        self._num_overtakes = 0
        self.num_preemptions = 0
        self.num_cached_tokens = 0  # of prompts, at their first admission

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        return tuple(self._waiting)

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        self._forest.add(seq)
        insort(self._waiting, seq, key=_age)

    def finish(self, seq: Sequence) -> None:
        """Take a sequence out, waiting or running; what it computed stays cached."""
        self._leave(seq, self._memory.retire)

    def abort(self, seq: Sequence) -> None:
        """Take a sequence out whose last step went wrong; its own pages are not cached."""
        self._leave(seq, self._memory.discard)

    def share(self, seq: Sequence) -> None:
        """Let others find what a running sequence has computed."""
        self._memory.share(seq)

    def schedule(self) -> StepPlan:
        """Plan the next step; an empty plan means that nothing is live."""
        plan = StepPlan()
        num_preemptions = self.num_preemptions
        budget = self._plan_decodes(plan, self._config.max_step_tokens)
        budget = self._plan_pending(plan, budget, self._count_prefill(budget))
        if self.num_preemptions == num_preemptions:  # no room for those who run: none for more
            self._admit(plan, budget)
        return plan

    def make_room(self, seq: Sequence, num_tokens: int) -> int:
        """For how many more tokens, of so many, a running sequence can have room that nobody else will miss."""
        return self._memory.make_room(seq, num_tokens, num_reserved=len(self._running))

    # --- those who run -------------------------------------------------------------------------------------

    def _plan_decodes(self, plan: StepPlan, budget: int) -> int:
        for seq in tuple(self._running):
            if seq.phase is Phase.RUNNING and self._grow(seq) and seq.num_pending == 1:
                plan.chunks.append(Chunk(seq, seq.num_computed, 1))
                budget -= 1
        return budget

    def _grow(self, seq: Sequence) -> bool:
        """Make room for every known token; preempts the newest until there is, or `seq` is the newest itself."""
        while not self._memory.grow(seq):
            newest = self._running[-1]
            assert len(self._running) > 1, "a lone sequence within the pool's limit can always grow"
            self._preempt(newest)
            if newest is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        self._memory.retire(seq)
        self._forest.mark_waiting(seq)
        seq.phase = Phase.WAITING
        _discard(self._running, seq)
        insort(self._waiting, seq, key=_age)
        self.num_preemptions += 1

    def _count_prefill(self, budget: int) -> int:
        """Most tokens of prompts that may join those who decode."""
        num_decoding = sum(seq.num_pending for seq in self._running if not _is_prefilling(seq))
        can_admit = self._waiting and len(self._running) < self._config.max_running
        if can_admit or any(map(_is_prefilling, self._running)):
            return count_prefill(self._costs, num_decoding, budget, self._config)
        return budget

    def _plan_pending(self, plan: StepPlan, budget: int, num_prefill: int) -> int:
        """Chunks of at most `budget` tokens, `num_prefill` of them of prompts; returns how many of these are left."""
        for seq in self._running:
            is_prefilling = _is_prefilling(seq)
            most = min(budget, num_prefill) if is_prefilling else budget
            if seq.num_pending > 1 and most > 0:
                num_tokens = self._plan_chunk(plan, seq, most)
                budget -= num_tokens
                num_prefill -= num_tokens if is_prefilling else 0
        return min(budget, num_prefill)

    def _plan_chunk(self, plan: StepPlan, seq: Sequence, budget: int) -> int:
        num_tokens = min(seq.num_pending, budget)
        plan.chunks.append(Chunk(seq, seq.num_computed, num_tokens))
        return num_tokens

    # --- those who wait ------------------------------------------------------------------------------------

    def _admit(self, plan: StepPlan, budget: int) -> None:
        if budget == 0 or not self._waiting or len(self._running) >= self._config.max_running:
            return
        for seq in self._waiting[:_NUM_AHEAD]:
            self._memory.look_ahead(seq)
        late: Sequence | None = None
        for seq in self._admission_order():
            if budget == 0 or len(self._running) >= self._config.max_running:
                return
            start = self._find_start(seq)
            if start is None:
                continue
            self._memory.look_ahead(seq)
            if not self._memory.is_up(seq):
                late = late or seq
                continue
            if not self._admit_one(plan, seq, start, budget):
                return
            budget -= plan.chunks[-1].num_tokens
        if late is not None and not self._running:  # nobody is kept waiting by it
            self._memory.wait_for(late)
            self._admit_one(plan, late, _Start(None), budget)

    def _find_start(self, seq: Sequence) -> _Start | None:
        """How a waiting sequence could start now; None if it should wait for others."""
        if seq.request.is_pin and not self._memory.pins.leaves_room_for(self._older(seq)):
            return None
        node = self._forest.deepest_shared(seq)
        if node is None:
            return _Start(None)
        depth = min(node.end, seq.cacheable)
        peer = _computed_peer(node.running, depth)
        if peer is None and self._memory.count_cached(seq, depth) < depth:
            return None  # deferred: a running sequence is about to compute it
        return _Start(_donor(peer, depth, self._memory.page_size))

    def _admit_one(self, plan: StepPlan, seq: Sequence, start: _Start, budget: int) -> bool:
        """Give a waiting sequence its pages and its first chunk; False, and nothing is changed, if there is no room."""
        num_reserved = sum(map(self._headroom, self._running))
        admission = self._memory.admit(seq, start.donor, num_reserved, after_copies=bool(plan.copies))
        if admission is None:
            return False
        self._start(seq)
        if admission.copy is not None:
            plan.copies.append(admission.copy)
        self._plan_chunk(plan, seq, budget)
        return True

    def _older(self, seq: Sequence) -> Iterable[Sequence]:
        return (other for other in (*self._running, *self._waiting) if other.id < seq.id)

    def _admission_order(self) -> Iterable[Sequence]:
        if self._num_overtakes >= self._config.max_overtakes:
            return [self._waiting[0]]
        return self._forest.depth_first(self._waiting[: self._config.window])

    def _start(self, seq: Sequence) -> None:
        self._num_overtakes = 0 if seq is self._waiting[0] else self._num_overtakes + 1
        _discard(self._waiting, seq)
        insort(self._running, seq, key=_age)
        self._forest.mark_running(seq)
        seq.phase = Phase.RUNNING
        seq.num_prefill = len(seq.ids)
        if seq.num_cached is None:
            seq.num_prefill = seq.num_given
            seq.num_cached = min(seq.num_computed, seq.num_given)
            self.num_cached_tokens += seq.num_cached

    def _headroom(self, seq: Sequence) -> int:
        """Pages that a running sequence may soon need beyond those it has."""
        growth = min(seq.num_left, self._config.headroom_tokens)
        return max(0, -(-(len(seq.ids) + growth) // self._memory.page_size) - len(seq.pages))

    # --- leaving -------------------------------------------------------------------------------------------

    def _leave(self, seq: Sequence, give_back: Callable[[Sequence], None]) -> None:
        if seq.phase is Phase.RUNNING:
            give_back(seq)
            _discard(self._running, seq)
        else:
            if seq is self._waiting[0]:
                self._num_overtakes = 0
            _discard(self._waiting, seq)
        self._forest.remove(seq)
        seq.phase = Phase.DONE


def _age(seq: Sequence) -> int:
    return seq.id


def _is_prefilling(seq: Sequence) -> bool:
    """Several tokens that it was admitted with are to be computed. The last alone is a row like a drawn one."""
    return seq.num_pending > 1 and seq.num_computed < seq.num_prefill


def _discard(sequences: list[Sequence], seq: Sequence) -> None:
    index = bisect_left(sequences, seq.id, key=_age)
    assert sequences[index] is seq
    del sequences[index]


def _computed_peer(peers: Iterable[Sequence], depth: int) -> Sequence | None:
    """A sequence that has computed the first `depth` tokens, or None."""
    for peer in peers:
        if peer.num_computed >= depth:
            return peer
    return None


def _donor(peer: Sequence | None, depth: int, page_size: int) -> Donor | None:
    index, num_tokens = divmod(depth, page_size)
    if peer is None or num_tokens == 0:
        return None
    return Donor(peer.pages[index], index, num_tokens)
