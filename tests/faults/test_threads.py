"""A thread that dies, or that is not there after a fork: nobody waits for it."""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Callable

import pytest
from engine_fakes import FakeRunner, Listener
from fault_programs import MovingRunner
from local_fakes import fake_local, hashed
from toy_tokenizers import byte_level

from forktree.backend.cache.disk import page_files
from forktree.backend.engine import loop
from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.core import EngineCore
from forktree.backend.engine.loop import Engine
from forktree.backend.engine.messages import EngineRequest
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.errors import EngineError
from forktree.lang.sampling import Sampling

WAIT_S = 20.0


class Waiter(Listener):
    """A listener that another thread can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.done = threading.Event()

    def __call__(self, event) -> None:
        super().__call__(event)
        if self.is_done:
            self.done.set()

    def wait(self) -> BaseException:
        assert self.done.wait(WAIT_S), "the request never ended"
        return self.error


def submit(engine: Engine, *ids: int) -> Waiter:
    waiter = Waiter()
    engine.submit(EngineRequest(ids=ids, max_tokens=50, on_event=waiter))
    return waiter


class Stuck(FakeRunner):
    """A pass that never ends by itself, in a thread that notices what is thrown into it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.thread_id: int | None = None
        self.is_inside = threading.Event()

    def forward(self, batch):
        self.thread_id = threading.get_ident()
        self.is_inside.set()
        never = threading.Event()
        while True:
            never.wait(0.001)


def test_an_engine_whose_thread_is_killed_tells_everyone_and_takes_no_more() -> None:
    runner = Stuck()
    engine = Engine(runner, EngineConfig(max_running=1))
    waiters = [submit(engine, 1, 2), submit(engine, 3)]
    assert runner.is_inside.wait(WAIT_S)
    waiters.append(submit(engine, 4))  # still on its way to the thread
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(runner.thread_id), ctypes.py_object(SystemExit))
    for waiter in waiters:
        error = waiter.wait()
        assert isinstance(error, EngineError)
        assert str(error).startswith("the engine stopped: SystemExit")
    with pytest.raises(EngineError, match="the engine stopped: SystemExit"):
        submit(engine, 5)
    with pytest.raises(EngineError, match="the engine stopped: SystemExit"):
        engine.flush()
    engine.close()


def test_a_step_that_never_ends_is_left_behind_by_close_and_all_are_told_once(monkeypatch, caplog) -> None:
    class Gated(FakeRunner):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.gate, self.is_inside = threading.Event(), threading.Event()

        def forward(self, batch):
            self.is_inside.set()
            self.gate.wait()
            return super().forward(batch)

    monkeypatch.setattr(loop, "_CLOSE_TIMEOUT_S", 0.05)
    runner = Gated()
    engine = Engine(runner, EngineConfig(max_running=1))
    waiters = [submit(engine, 1, 2), submit(engine, 3)]
    assert runner.is_inside.wait(WAIT_S)
    waiters.append(submit(engine, 4))
    engine.close()
    for waiter in waiters:
        assert "had not ended" in str(waiter.wait())
    with pytest.raises(EngineError, match="had not ended"):
        submit(engine, 5)
    runner.gate.set()
    engine._thread.join(WAIT_S)
    assert [len(waiter.events) for waiter in waiters] == [1, 1, 1]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_asks_the_engines_thread_to_end_ends_the_engine_and_all_are_told(error: BaseException) -> None:
    class Leaving(FakeRunner):
        def forward(self, batch):
            raise error

    engine = Engine(Leaving())
    told = submit(engine, 1, 2).wait()
    assert told.__cause__ is error
    with pytest.raises(EngineError, match=f"the engine stopped: {type(error).__name__}"):
        submit(engine, 5)
    engine.close()


def in_a_fork(question: Callable[[], object]) -> str:
    """What the question raises in a forked process; "nothing" where it raises nothing."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: that is the point
        child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            question()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said_there:
        answer = said_there.read()
    os.waitpid(child, 0)
    return answer


def test_a_forked_copy_of_an_engine_refuses_and_the_original_serves_on() -> None:
    engine = Engine(FakeRunner())
    assert submit(engine, 1).done.wait(WAIT_S)
    assert "make a new Local here" in in_a_fork(lambda: submit(engine, 1))
    assert "make a new Local here" in in_a_fork(engine.flush)
    assert in_a_fork(engine.close) == in_a_fork(lambda: engine.cancel(0)) == "nothing"
    assert submit(engine, 2).done.wait(WAIT_S)
    engine.close()


def test_a_forked_copy_of_a_loaded_local_refuses_and_a_new_one_works() -> None:
    tokenizer = Tokenizer(byte_level())
    with fake_local(tokenizer, hashed(tokenizer)) as local:
        sampling = Sampling(max_tokens=3)
        right = local.generate(["a"], sampling)[0].text
        assert "make a new Local() here" in in_a_fork(lambda: local.generate(["a"], sampling))
        assert "make a new Local() here" in in_a_fork(lambda: local.tokenize("a"))
        assert in_a_fork(local.close) == "nothing"

        def anew() -> None:
            with fake_local(tokenizer, hashed(tokenizer)) as mine:
                assert mine.generate(["a"], sampling)[0].text == right

        assert in_a_fork(anew) == "nothing"
        assert local.generate(["a"], sampling)[0].text == right


@pytest.mark.parametrize("is_broken", [False, True])
def test_an_engine_that_stopped_of_a_bug_keeps_nothing_of_its_pool_on_the_disk(
    tmp_path, monkeypatch, is_broken
) -> None:
    config = EngineConfig(cache_dir=str(tmp_path), fingerprint="fake", fixed_rows=1e9)
    engine = Engine(MovingRunner(page_size=2), config)
    assert submit(engine, 1, 2, 3, 4, 5).done.wait(WAIT_S)
    if is_broken:

        def step(self) -> bool:
            raise ZeroDivisionError("a bug in the engine")

        monkeypatch.setattr(EngineCore, "step", step)
        submit(engine, 6).wait()
    engine.close()
    assert bool(list(page_files(tmp_path))) is not is_broken
