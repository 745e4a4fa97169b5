"""64 clients that behave and misbehave at once; `make load` does the same for minutes, with the built-in model."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from real_parts import assert_idle
from servers import running

from forktree.backend.local import Local
from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings
from forktree.benchmarks.server.load import attack, leftovers
from forktree.benchmarks.server.mischief import DEEDS, Target

pytestmark = pytest.mark.model
NUM_CLIENTS, NUM_DEEDS, NUM_PLACES = 64, 3, 24


def num_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0


def test_64_clients_that_misbehave_leave_nothing_behind(wild_local: Local) -> None:
    """No answer but those that may be given, and then no work, page, place, file or thread that stays taken."""
    app = build(wild_local, Settings(model_names=("wild",), max_running=NUM_PLACES))
    with running(app) as url:
        target = Target(url, "wild", context=512, num_long=150)
        assert asyncio.run(leftovers(target, num_places=NUM_PLACES)) == []
        files, threads = num_files(), threading.active_count()
        tally = asyncio.run(attack(target, num_clients=NUM_CLIENTS, goes_on=lambda count: count < NUM_DEEDS))
        assert tally.wrong == []
        assert set(tally.done) == {deed.__name__ for deed in DEEDS}
        assert sum(tally.done.values()) == NUM_CLIENTS * NUM_DEEDS
        assert asyncio.run(leftovers(target, num_places=NUM_PLACES)) == []
        assert app.state.served.flights == {}
        assert app.state.served.gate.num_waiting == 0
        assert num_files() <= files
        assert threading.active_count() <= threads + 2 * (os.cpu_count() or 1) + 8  # pools that grow once
    assert_idle(wild_local)
