"""The engine: one thread that owns all mutable state, and the door to it from every other thread."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.core import EngineCore
from forktree.backend.engine.inspect import CachedNode, StepRecord
from forktree.backend.engine.messages import EngineRequest, Runner
from forktree.backend.engine.request import Sequence
from forktree.backend.engine.stats import EngineStats
from forktree.backend.engine.switching import switch_interval, wake_promptly
from forktree.lang.errors import EngineError

T = TypeVar("T")

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 30.0
_LINGER_S = 0.05  # with nothing to do, before the thread parks: a program's next step comes sooner


@dataclass(frozen=True, slots=True)
class _Submit:
    seq: Sequence


@dataclass(frozen=True, slots=True)
class _Cancel:
    id: int


@dataclass(frozen=True, slots=True)
class _Ask:
    question: Callable[[], Any]
    answer: Future[Any]


@dataclass(frozen=True, slots=True)
class _Tell:
    wish: Callable[[], None]


_Command = _Submit | _Cancel | _Ask | _Tell


class Engine:
    """Computes requests, many at a time, on a thread of its own that starts with the first request.

    Every method may be called from any thread. Between two steps the thread takes what has arrived; with
    nothing to do it is parked.
    """

    def __init__(self, runner: Runner, config: EngineConfig | None = None) -> None:
        self._core = EngineCore(runner, EngineConfig() if config is None else config)
        self._ids = itertools.count()
        self._wake = threading.Condition()
        self._inbox: deque[_Command] = deque()  # filled under _wake; the next three change under it
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._failure: BaseException | None = None
        self._process: int | None = None  # where the thread runs
        if self._core.has_plans:
            with self._wake:
                self._start()

    def check_open(self) -> None:
        """Raise EngineError: the engine is closed, or has stopped; it says of what."""
        if self._is_closing:
            raise self._closed_error()

    def submit(self, request: EngineRequest) -> int:
        """Queue a request; returns the id that `cancel` takes. Its events follow on the engine's thread.

        Raises:
            ContextLengthError: it can never fit; nothing was queued.
            ValueError: a field is out of range.
            EngineError: the engine is closed, or was started by another process; or the request is a pin that would
                leave too little of the pool.
        """
        self._check_process()
        with self._wake:  # ids are taken and queued in one order: age is order of arrival
            self.check_open()
            seq = self._core.make_sequence(next(self._ids), request)
            self._post(_Submit(seq))
        return seq.id

    def cancel(self, id: int) -> None:
        """End a request with `Failed(RunCancelledError)`, soon. Harmless if it has ended."""
        if self._is_forked:
            return
        with self._wake:
            if not self._is_closing:
                self._post(_Cancel(id))

    def unpin(self, id: int) -> None:
        """Let the prefix go that request `id` pinned, soon. Harmless if it is not pinned any more."""
        self._tell(lambda: self._core.unpin(id))

    def expect(self, namespace: str, prompts: list[tuple[int, ...]]) -> None:
        """Prompts that begin so come next: a hint. What is cached of them stays, what lies in a lower tier comes up."""
        self._tell(lambda: self._core.expect(namespace, prompts))

    def end_run(self, owner: int) -> None:
        """A run asks for nothing any more: a hint, which wakes nobody."""
        with self._wake:
            if self._thread is not None and not self._is_closing and not self._is_forked:
                self._inbox.append(_Tell(lambda: self._core.end_run(owner)))

    def flush(self) -> int:
        """Forget every cached page that no running request uses or has pinned; waits for it and returns how many.

        Raises EngineError: the engine is closed.
        """
        return self._ask(self._core.flush)

    def timeline(self) -> tuple[StepRecord, ...]:
        """The last steps, at most 1,024, the oldest first. Raises EngineError: the engine is closed."""
        return self._ask(self._core.timeline)

    def cached_tree(self) -> dict[str, tuple[CachedNode, ...]]:
        """What is cached, by namespace. Raises EngineError: the engine is closed."""
        return self._ask(self._core.cached_tree)

    @property
    def max_tokens(self) -> int:
        """Most tokens of a request, prompt and output together."""
        return self._core.max_tokens

    @property
    def page_size(self) -> int:
        """Tokens of a page of the pool."""
        return self._core.page_size

    @property
    def hidden_size(self) -> int:
        """Values of an embedding. Raises UnsupportedError: the runner gives out no hidden states."""
        return self._core.hidden_size

    def count_cached(self, prompts: list[tuple[int, ...]]) -> list[int]:
        """How many of each prompt's first tokens a program's request would find cached. Changes nothing.

        Raises EngineError: the engine is closed.
        """
        return self._ask(lambda: self._core.count_cached(prompts))

    def stats(self) -> EngineStats:
        return self._core.stats()

    def close(self) -> None:
        """Stop after the step that runs; every request still live gets `Failed(EngineError)`.

        Closing twice is harmless. Called from a listener it returns at once. A step that does not end is waited for
        30 seconds.
        """
        if self._is_forked:
            return
        with self._wake:
            self._is_closing = True
            self._wake.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_TIMEOUT_S)
            if thread.is_alive():
                self._give_up()

    def _give_up(self) -> None:
        """The thread does not come back from a step: who waits for it is told from here, and no more from there."""
        _log.error("a step has not ended within %.0f s; its thread is left behind", _CLOSE_TIMEOUT_S)
        self._failure = TimeoutError(f"a step had not ended {_CLOSE_TIMEOUT_S:.0f} s after the engine was closed")
        while self._inbox:
            self._leave_undone(self._inbox.popleft())
        self._core.silence(self._closed_error)

    # --- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        wake_promptly()
        switch_interval().shorten()
        try:
            while self._receive():
                self._core.step()
        except BaseException as error:  # a bug of the engine: nobody may be left waiting
            self._shut(error)
        else:
            self._shut(None)
        finally:
            switch_interval().restore()

    def _receive(self) -> bool:
        """Carry out what has arrived, parked until something has; False when it is time to stop."""
        if self._lingers_in_vain():
            self._prepare()
        with self._wake:
            if not self._is_wanted():
                self._park()
            num_commands, is_closing = len(self._inbox), self._is_closing
        for _ in range(num_commands):
            command = self._inbox.popleft()
            try:
                self._carry_out(command)
            except BaseException:
                self._inbox.appendleft(command)  # a bug: who waits for it is told with the others
                raise
        return not is_closing

    def _lingers_in_vain(self) -> bool:
        """Nothing is to be done, nor soon."""
        with self._wake:
            return not self._is_wanted() and not self._wake.wait_for(self._is_wanted, _LINGER_S)

    def _prepare(self) -> None:
        """With nothing to do, bring up what is likely to be asked for, until somebody asks."""
        while not self._is_wanted() and (pause_s := self._core.prepare()) is not None:
            with self._wake:
                self._wake.wait_for(self._is_wanted, pause_s)

    def _is_wanted(self) -> bool:
        return bool(self._inbox) or self._core.has_work or self._is_closing

    def _park(self) -> None:
        """Wait until there is something to do; `_wake` is held. Whoever computes meanwhile is left alone soon."""
        switch_interval().restore()
        try:
            self._wake.wait_for(self._is_wanted)
        finally:
            switch_interval().shorten()

    def _carry_out(self, command: _Command) -> None:
        match command:
            case _Submit(seq):
                self._core.add(seq)
            case _Cancel(id):
                self._core.cancel(id)
            case _Tell(wish):
                wish()
            case _Ask(question, answer):
                try:
                    answer.set_result(question())
                except BaseException as error:
                    answer.set_exception(error)
                    raise

    def _shut(self, failure: BaseException | None) -> None:
        with self._wake:
            self._is_closing = True
            self._failure = failure
            commands = list(self._inbox)
            self._inbox.clear()
        for command in commands:
            self._leave_undone(command)
        self._core.abandon(self._closed_error)
        if failure is None:
            self._core.close()
        else:
            self._core.drop()

    def _leave_undone(self, command: _Command) -> None:
        if isinstance(command, _Ask) and not command.answer.done():
            command.answer.set_exception(self._closed_error())
        elif isinstance(command, _Submit):
            self._core.refuse(command.seq, self._closed_error())

    # --- the door ------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[], T]) -> T:
        """Have the engine's thread answer between two steps; waits for it."""
        if threading.current_thread() is self._thread:
            return question()
        self._check_process()
        answer: Future[T] = Future()
        with self._wake:
            self.check_open()
            self._post(_Ask(question, answer))
        return answer.result()

    def _post(self, command: _Command) -> None:
        """Hand a command to the thread; the caller holds `_wake`."""
        self._inbox.append(command)
        self._start()
        self._wake.notify_all()

    def _start(self) -> None:
        if self._thread is None:
            self._process = os.getpid()
            self._thread = threading.Thread(target=self._run, name="forktree-engine", daemon=True)
            self._thread.start()

    def _tell(self, wish: Callable[[], None]) -> None:
        """Have the thread carry out a wish between two steps; forgotten where it carries out nothing any more."""
        if self._is_forked:
            return
        with self._wake:
            if not self._is_closing:
                self._post(_Tell(wish))

    @property
    def _is_forked(self) -> bool:
        """This is a forked process: its copy of the engine has no thread, and `_wake` may be held in it for ever."""
        return self._process not in (None, os.getpid())

    def _check_process(self) -> None:
        if self._is_forked:
            raise EngineError(
                f"the engine runs in process {self._process}, of which this one ({os.getpid()}) is a fork: make a new "
                "Local here, or start processes by spawning"
            )

    def _closed_error(self) -> EngineError:
        if self._failure is None:
            return EngineError("the engine is closed")
        error = EngineError(f"the engine stopped: {type(self._failure).__name__}: {self._failure}")
        error.__cause__ = self._failure
        return error
