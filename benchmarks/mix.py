"""What mixing prompts and decodes by cost gives and takes: `python -m forktree.benchmarks.mix MODEL_FOLDER`.

Paired in one process: an engine with the default `max_slowdown`, and one without a bound; the least of four runs each,
in turns. *late*: four requests decode when a prompt of 1,500 tokens arrives; the longest step is how long their
readers wait for a token. *burst* and *shots* are work: the processor time, which other programs disturb least, of 32
prompts of 64 tokens with 24 new ones each, and of 32 questions of 40 tokens behind 400 with 8 new ones each.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.core import EngineCore
from forktree.backend.engine.messages import EngineRequest
from forktree.backend.model.runner import ModelRunner, load_runner

_REPEATS = 4


class Session:
    """An engine stepped by hand, and prompts of random tokens."""

    def __init__(self, runner: ModelRunner, max_slowdown: float) -> None:
        self.core = EngineCore(runner, EngineConfig(max_slowdown=max_slowdown, max_draft=0))
        self._random = random.Random(0)
        self._num_requests = 0

    def ids(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(1000, 40000) for _ in range(count))

    def add(self, ids: tuple[int, ...], max_tokens: int) -> None:
        request = EngineRequest(ids=ids, max_tokens=max_tokens, on_event=lambda event: None)
        self.core.add(self.core.make_sequence(self._num_requests, request))
        self._num_requests += 1

    def drain(self) -> float:
        """Seconds of processor time until all is done; the cache is empty then."""
        start = time.process_time()
        while self.core.step():
            pass
        seconds = time.process_time() - start
        self.core.flush()
        return seconds

    def learn(self) -> None:
        """Measure passes of few rows, as any use of an engine does."""
        for count in (1, 2, 4, 8):
            for _ in range(count):
                self.add(self.ids(16), 12)
            self.drain()


def late(session: Session) -> float:
    """Seconds of the longest step."""
    for _ in range(4):
        session.add(session.ids(64), 60)
    session.core.step()
    first = session.core.stats().num_steps
    session.add(session.ids(1500), 1)
    session.drain()
    return max(step.seconds for step in session.core.timeline() if step.index > first)


def burst(session: Session) -> float:
    """Seconds of processor time."""
    for _ in range(32):
        session.add(session.ids(64), 24)
    return session.drain()


def shots(session: Session) -> float:
    """Seconds of processor time."""
    trunk = session.ids(400)
    for _ in range(32):
        session.add(trunk + session.ids(40), 8)
    return session.drain()


def _pair(run: Callable[[Session], float], sessions: list[Session], flip: int) -> tuple[float, float]:
    """One run of each; which of them goes first changes."""
    results = {index: run(sessions[index]) for index in (flip, 1 - flip)}
    return results[0], results[1]


def main(folder: str) -> None:
    runner = load_runner(folder, page_size=16, kv_tokens=16384)
    sessions = [Session(runner, EngineConfig().max_slowdown), Session(runner, math.inf)]
    for session in sessions:
        session.learn()
    for run in (late, burst, shots):
        pairs = [_pair(run, sessions, flip=index % 2) for index in range(_REPEATS)]
        mixed, unbound = (min(side) for side in zip(*pairs, strict=True))
        print(
            f"{run.__name__:6} mixed {mixed:6.2f} s   unbound {unbound:6.2f} s   ratio {mixed / unbound:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1])
