"""free + cached + running == total after every event of long random loads under pressure."""

from __future__ import annotations

import random

import pytest
from engine_fakes import Driver, FakeRunner, Listener, run_alone

from forktree.backend.engine.messages import Failed, Finished
from forktree.lang.errors import RunCancelledError

MAX_TOKENS = [1, 2, 7]


class Load:
    """Random events from one seed: submits with shared prefixes, forks, steps, cancels, evictions, flushes."""

    def __init__(self, seed: int, page_size: int) -> None:
        self.random = random.Random(seed)
        num_tokens = self.random.choice([24, 40, 64])
        self.one = Driver(
            FakeRunner(num_pages=num_tokens // page_size, page_size=page_size, vocab=4),
            max_step_tokens=self.random.choice([8, 16, 64]),
            max_running=8,
            headroom_tokens=0,
        )
        self.trunk = [self.random.randrange(3) for _ in range(16)]
        self.sent: list[tuple[Listener, list[int], int]] = []

    def submit(self) -> None:
        shared = self.random.randrange(17)
        tail = [self.random.randrange(3) for _ in range(self.random.randrange(1, 5))]
        self._send(self.trunk[:shared] + tail)

    def fork(self) -> None:
        ids = self.trunk[: self.random.randrange(1, 14)]
        for branch in range(3):
            self._send([*ids, branch, 1])

    def step(self) -> None:
        self.one.step()

    def cancel(self) -> None:
        if self.sent:
            self.one.core.cancel(self.random.randrange(len(self.sent)))

    def evict(self) -> None:
        self.one.core._memory.tree.evict(self.random.randrange(1, 8))

    def flush(self) -> None:
        self.one.core.flush()

    def run(self, num_events: int) -> None:
        for _ in range(num_events):
            verbs = [self.submit, self.fork, self.step, self.cancel, self.evict, self.flush]
            self.random.choices(verbs, weights=[4, 1, 12, 1, 1, 0.3])[0]()
            self.one.core.check()
        self.one.drain()
        self.one.check_idle()

    def _send(self, ids: list[int]) -> None:
        max_tokens = self.random.choice(MAX_TOKENS)
        room = self.one.core.stats().pages_total * self.one.runner.page_size - len(ids) + 1
        self.sent.append((self.one.submit(ids, max_tokens=max_tokens), ids, min(max_tokens, room)))


@pytest.mark.parametrize("page_size", [1, 4])
def test_pages_add_up_after_every_event(page_size):
    num_preemptions = 0
    for seed in range(21):
        load = Load(seed, page_size)
        load.run(200)
        num_preemptions += load.one.core.stats().num_preemptions
        for listener, ids, max_tokens in load.sent:
            last = listener.events[-1]
            if isinstance(last, Failed):
                assert isinstance(last.error, RunCancelledError)
            else:
                assert isinstance(last, Finished)
                assert last.ids == run_alone(ids, FakeRunner(4, 16, vocab=4), max_tokens=max_tokens).ids
    assert num_preemptions > 20
