"""Where programs run: one asyncio loop on one background thread, and at most 64 threads for synchronous bodies.

A branch with work to do is handed to `schedule`; the loop drains it in one task. Bodies run in the thread that
called `run`, on the loop (`async def`), or on a thread of `BodyPool` (`map`, nested calls). A body that waits
for a value may run a queued nested body meanwhile, so that nesting cannot use up the threads and hang.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from forktree.lang.errors import LanguageError

if TYPE_CHECKING:
    from forktree.runtime.cursor import Cursor

MAX_BODY_THREADS = 64
_LINGER_S = 0.05
_MAX_HELP_DEPTH = 8
_SLICE_S = 0.5

_log = logging.getLogger(__name__)

Job = Callable[[], None]
Register = Callable[[Callable[[], None]], None]


class Gate:
    """A one-way door between two threads; opening it twice is harmless."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        # A gate that is open already stays open: releasing an unlocked lock raises.
        try:
            self._lock.release()
        except RuntimeError:
            return

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is open, and close it again. False when the time ran out."""
        return self._lock.acquire(timeout=-1 if timeout is None else timeout)


class BodyPool:
    """Threads for synchronous bodies. A thread ends when there has been nothing to do for a moment."""

    def __init__(self, max_threads: int = MAX_BODY_THREADS) -> None:
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._jobs: deque[Job] = deque()
        self._nested: deque[Job] = deque()
        self._parked: list[Gate] = []
        self._num_threads = 0
        self._num_idle = 0
        self._local = threading.local()

    def submit(self, job: Job) -> None:
        """Run the job on some thread, when one is free."""
        with self._lock:
            self._jobs.append(job)
            self._staff()

    def submit_nested(self, job: Job) -> None:
        """Run the job of a nested call: before other jobs, and on a waiting body's thread when none is free."""
        with self._lock:
            self._nested.append(job)
            if not self._staff() and self._parked:
                self._parked.pop().open()

    def try_start(self, job: Job) -> bool:
        """Start the job at once if a thread is free or may be made; otherwise return False."""
        with self._lock:
            if self._num_idle <= len(self._jobs) + len(self._nested) and self._num_threads >= self._max_threads:
                return False
            self._nested.append(job)
            return self._staff()

    def start_or_run(self, job: Job) -> None:
        """Start the job on a thread, or run it in the caller's when none is free."""
        if not self.try_start(job):
            job()

    def _staff(self) -> bool:
        """Wake or make a thread for the job just queued; the lock is held."""
        if self._num_idle >= len(self._jobs) + len(self._nested):
            self._work.notify()
            return True
        if self._num_threads < self._max_threads:
            self._num_threads += 1
            threading.Thread(target=self._serve, name="forktree-body", daemon=True).start()
            return True
        return False

    def _serve(self) -> None:
        self._local.depth = 0
        while (job := self._next_job()) is not None:
            job()

    def _next_job(self) -> Job | None:
        with self._lock:
            while True:
                if self._nested:
                    return self._nested.popleft()
                if self._jobs:
                    return self._jobs.popleft()
                self._num_idle += 1
                woken = self._work.wait(_LINGER_S)
                self._num_idle -= 1
                if not woken and not self._jobs and not self._nested:
                    self._num_threads -= 1
                    return None

    @property
    def is_body_thread(self) -> bool:
        """Does the pool own the calling thread?"""
        return hasattr(self._local, "depth")

    def help_until(self, is_done: Callable[[], bool], gate: Gate, deadline: float | None) -> None:
        """Wait for the gate on a pool thread, running nested bodies that find no thread meanwhile.

        `deadline` (of the monotonic clock) ends the wait, but no body that is run in between.
        """
        while not is_done():
            job = self._take_nested(gate)
            if job is not None:
                self._local.depth += 1
                try:
                    job()
                finally:
                    self._local.depth -= 1
            elif not gate.wait(_time_left(deadline)):
                return

    def _take_nested(self, gate: Gate) -> Job | None:
        """A nested job that has no thread, or None after leaving the gate where `submit_nested` finds it."""
        with self._lock:
            if gate in self._parked:
                self._parked.remove(gate)
            if self._local.depth < _MAX_HELP_DEPTH:
                if self._nested and self._num_threads >= self._max_threads and not self._num_idle:
                    return self._nested.popleft()
                self._parked.append(gate)
            return None

    def unpark(self, gate: Gate) -> None:
        """The wait is over: the gate must not be chosen any more."""
        with self._lock:
            if gate in self._parked:
                self._parked.remove(gate)

    @property
    def num_threads(self) -> int:
        return self._num_threads


class Executor:
    """The loop thread, and the queue of branches that have work."""

    def __init__(self) -> None:
        self.bodies = BodyPool()
        self.loop = asyncio.new_event_loop()
        self._ready: deque[Cursor] = deque()
        self._numbers = itertools.count(1)
        self._is_wake_due = False
        self._tasks: set[asyncio.Task[Any]] = set()
        started = Gate()
        self._thread = threading.Thread(target=self._run_loop, args=(started,), name="forktree-loop", daemon=True)
        self._thread.start()
        started.wait()

    def _run_loop(self, started: Gate) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(started.open)
        while not self.loop.is_closed():
            try:
                self.loop.run_forever()
            except BaseException:  # asyncio lets SystemExit and KeyboardInterrupt of a callback or task end the loop
                _log.exception("something on the executor's loop asked the thread to end; it goes on")

    @property
    def is_loop_thread(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def new_number(self) -> int:
        """One that no run of this process has; from any thread."""
        return next(self._numbers)

    def schedule(self, cursor: Cursor) -> None:
        """Drain the branch on the loop. Many calls cost one wake-up."""
        self._ready.append(cursor)
        # Set before the wake-up is asked for and cleared before the queue is emptied: none is lost.
        if not self._is_wake_due:
            self._is_wake_due = True
            self.call(self._start_ready)

    def _start_ready(self) -> None:
        self._is_wake_due = False
        while self._ready:
            cursor = self._ready.popleft()
            cursor.task = self.spawn_here(cursor.drain())

    def call(self, function: Callable[[], object]) -> None:
        """Call on the loop's thread, soon."""
        if self.is_loop_thread:
            self.loop.call_soon(function)
        else:
            self.loop.call_soon_threadsafe(function)

    def spawn(self, work: Coroutine[Any, Any, None], context: contextvars.Context | None = None) -> None:
        """Run a coroutine on the loop; from any thread."""
        self.call(lambda: self.spawn_here(work, context))

    def spawn_here(
        self, work: Coroutine[Any, Any, None], context: contextvars.Context | None = None
    ) -> asyncio.Task[None]:
        """Run a coroutine on the loop; from the loop's thread. The task is kept alive until it ends."""
        task = self.loop.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def wait(
        self, is_done: Callable[[], bool], register: Register, *, instead: str, timeout: float | None = None
    ) -> bool:
        """Block the calling thread until `is_done`. False when the time ran out.

        Raises:
            LanguageError: on the loop's thread, where waiting would stop every program; `instead` says what
                to write there.
        """
        if is_done():
            return True
        if self.is_loop_thread:
            raise LanguageError(f"this value is still pending, and an async program must not block: {instead}")
        gate = Gate()
        register(gate.open)
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.bodies.is_body_thread:
            try:
                self.bodies.help_until(is_done, gate, deadline)
            finally:
                self.bodies.unpark(gate)
            return is_done()
        while not is_done():
            left = _time_left(deadline)
            if left == 0:
                return False
            # In slices: a Ctrl-C that comes just before a wait begins is noticed only when the wait ends.
            gate.wait(_SLICE_S if left is None else min(left, _SLICE_S))
        return True


def _time_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


@functools.cache
def get_executor() -> Executor:
    """The process's executor, made when first needed."""
    return Executor()


# A forked child has no loop thread: it makes its own executor when it needs one.
os.register_at_fork(after_in_child=get_executor.cache_clear)
