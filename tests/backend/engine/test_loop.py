"""The engine on its own thread: many submitters, parking, closing, dying."""

from __future__ import annotations

import sys
import threading

import pytest
from engine_fakes import FakeRunner, Listener, run_alone

from forktree.backend.engine import loop
from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.core import EngineCore
from forktree.backend.engine.loop import Engine
from forktree.backend.engine.messages import EngineRequest
from forktree.backend.engine.switching import SHORT_S, SwitchInterval
from forktree.lang.errors import ContextLengthError, EngineError, RunCancelledError

WAIT_S = 20.0


class Waiter(Listener):
    """A listener that another thread can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.done = threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self, event) -> None:
        super().__call__(event)
        self.thread = threading.current_thread()
        if self.is_done:
            self.done.set()

    def wait(self) -> Waiter:
        assert self.done.wait(WAIT_S), "the request never ended"
        return self


class Gated(FakeRunner):
    """A forward pass waits until the gate is open."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gate, self.is_inside = threading.Event(), threading.Event()

    def forward(self, batch):
        self.is_inside.set()
        assert self.gate.wait(WAIT_S)
        return super().forward(batch)


@pytest.fixture
def engine():
    made = Engine(FakeRunner(num_pages=64))
    yield made
    made.close()


def submit(engine: Engine, ids, **fields) -> tuple[int, Waiter]:
    waiter = Waiter()
    return engine.submit(EngineRequest(ids=tuple(ids), on_event=waiter, **fields)), waiter


def test_events_come_on_the_engine_thread(engine):
    _, waiter = submit(engine, [1, 2, 3], max_tokens=4)
    assert waiter.wait().finished.ids == run_alone([1, 2, 3], max_tokens=4).ids
    assert waiter.thread.name == "forktree-engine"
    assert waiter.thread.daemon


def test_many_threads_submit_at_once_and_each_gets_its_own(engine):
    waiters: dict[tuple[int, int], Waiter] = {}

    def work(me: int) -> None:
        for i in range(10):
            waiters[me, i] = submit(engine, [1, 2, me % 3, i], max_tokens=3)[1]

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (me, i), waiter in waiters.items():
        assert waiter.wait().finished.ids == run_alone([1, 2, me % 3, i], max_tokens=3).ids
    stats = engine.stats()
    assert stats.num_finished == 80
    assert stats.pages_free + stats.pages_cached == stats.pages_total


def test_no_thread_before_the_first_request():
    engine = Engine(FakeRunner())
    assert engine.stats().pages_free == 32
    assert engine._thread is None
    engine.close()


def test_what_can_never_fit_is_refused_by_submit(engine):
    with pytest.raises(ContextLengthError) as caught:
        submit(engine, range(1000), max_tokens=1)
    assert (caught.value.limit, caught.value.tokens) == (256, 1000)
    with pytest.raises(ValueError, match="ids is empty"):
        submit(engine, [])


def test_an_idle_engine_takes_no_steps(engine):
    submit(engine, [1], max_tokens=1)[1].wait()
    num_steps = engine.stats().num_steps
    engine.flush()  # a round trip through the parked thread
    assert engine.stats().num_steps == num_steps


def test_flush_forgets_what_nobody_uses(engine):
    submit(engine, [1, 2, 3, 4, 5], max_tokens=1)[1].wait()
    assert engine.flush() == 2
    assert engine.stats().pages_free == 64


def test_cancel_ends_a_waiting_and_a_running_request():
    runner = Gated()
    engine = Engine(runner, EngineConfig(max_running=1))
    running, first = submit(engine, [1, 2], max_tokens=50)
    waiting, second = submit(engine, [3, 4], max_tokens=50)
    assert runner.is_inside.wait(WAIT_S)
    engine.cancel(running)
    engine.cancel(waiting)
    engine.cancel(waiting)
    runner.gate.set()
    for waiter in (first, second):
        assert isinstance(waiter.wait().error, RunCancelledError)
    engine.close()


def test_close_tells_every_waiter():
    runner = Gated()
    engine = Engine(runner, EngineConfig(max_running=1))
    waiters = [submit(engine, [i, 1], max_tokens=50)[1] for i in range(3)]
    assert runner.is_inside.wait(WAIT_S)
    late = submit(engine, [9], max_tokens=1)[1]  # still in the inbox
    closer = threading.Thread(target=engine.close)
    closer.start()
    with engine._wake:
        assert engine._wake.wait_for(lambda: engine._is_closing, WAIT_S)
    runner.gate.set()
    closer.join(WAIT_S)
    for waiter in (*waiters, late):
        error = waiter.wait().error
        assert isinstance(error, EngineError)
        assert "closed" in str(error)
    stats = engine.stats()
    assert stats.num_running == stats.num_waiting == 0
    with pytest.raises(EngineError, match="the engine is closed"):
        submit(engine, [1])
    with pytest.raises(EngineError, match="the engine is closed"):
        engine.flush()
    engine.cancel(0)
    engine.close()


def test_a_listener_may_call_the_engine(engine):
    seen: list[int] = []
    waiter = Waiter()

    def listen(event) -> None:
        seen.append(engine.stats().num_steps)
        engine.flush()
        engine.cancel(0)
        waiter(event)

    engine.submit(EngineRequest(ids=(1, 2), max_tokens=9, on_event=listen))
    waiter.wait()
    assert seen == [1, 1]  # the first token, then the cancellation


def test_closing_from_a_listener_returns_and_closes(engine):
    waiter = Waiter()

    def listen(event) -> None:
        waiter(event)
        engine.close()

    engine.submit(EngineRequest(ids=(1, 2), max_tokens=9, on_event=listen))
    assert isinstance(waiter.wait().error, EngineError)


def test_an_engine_that_dies_of_a_bug_tells_everyone_why(monkeypatch):
    engine = Engine(FakeRunner())

    def step(self):
        raise ZeroDivisionError("a bug in the engine")

    monkeypatch.setattr(EngineCore, "step", step)
    waiter = submit(engine, [1, 2], max_tokens=3)[1]
    assert isinstance(waiter.wait().error.__cause__, ZeroDivisionError)
    engine.close()
    with pytest.raises(EngineError, match="the engine stopped: ZeroDivisionError: a bug in the engine"):
        submit(engine, [1])


def test_a_bug_while_commands_are_carried_out_leaves_nobody_waiting(monkeypatch):
    runner = Gated()
    engine = Engine(runner)
    waiters = [submit(engine, [1, 2], max_tokens=9)[1]]
    assert runner.is_inside.wait(WAIT_S)
    add = EngineCore.add

    def faulty_add(self, seq):
        if seq.id == 1:
            raise ZeroDivisionError("a bug in the engine")
        add(self, seq)

    monkeypatch.setattr(EngineCore, "add", faulty_add)
    waiters += [submit(engine, [1, 2], max_tokens=9)[1] for _ in range(3)]
    runner.gate.set()
    for waiter in waiters:
        assert isinstance(waiter.wait().error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_running": 0}, "max_running must be at least 1, not 0"),
        ({"max_running": 8, "max_step_tokens": 4}, r"max_step_tokens \(4\) must be at least max_running \(8\)"),
        ({"headroom_tokens": -1}, "headroom_tokens must be at least 0, not -1"),
    ],
)
def test_bad_settings_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(**fields)


class Interval(SwitchInterval):
    """Tells when it is held no more."""

    def __init__(self) -> None:
        super().__init__()
        self.is_restored = threading.Event()

    def restore(self) -> None:
        super().restore()
        self.is_restored.set()


def test_busy_threads_hand_over_soon_while_there_is_work_and_keep_their_time_when_there_is_none(monkeypatch):
    interval, engine = Interval(), Engine(Gated(num_pages=64))
    monkeypatch.setattr(loop, "switch_interval", lambda: interval)
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    try:
        _, waiter = submit(engine, [1, 2, 3], max_tokens=2)
        assert engine._core._runner.is_inside.wait(WAIT_S)
        assert sys.getswitchinterval() == pytest.approx(SHORT_S)
        engine._core._runner.gate.set()
        waiter.wait()
        assert interval.is_restored.wait(WAIT_S)
        assert sys.getswitchinterval() == pytest.approx(0.005)
    finally:
        engine.close()
        sys.setswitchinterval(before)


def test_an_engine_that_is_closed_at_work_leaves_the_interval_as_it_was(monkeypatch):
    interval, engine = Interval(), Engine(FakeRunner(num_pages=64))
    monkeypatch.setattr(loop, "switch_interval", lambda: interval)
    before = sys.getswitchinterval()
    submit(engine, [1, 2, 3], max_tokens=60)
    engine.close()
    assert sys.getswitchinterval() == before
