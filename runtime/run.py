"""One run of one program: what its branches share.

A run is busy while its body runs, a branch is being drained, or a nested program is busy; it settles when none
is. Its lock guards the queues, names and ends of all its branches.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from forktree.lang.errors import RunCancelledError
from forktree.lang.program import Speculation
from forktree.lang.sampling import Sampling
from forktree.runtime.executor import Executor
from forktree.runtime.protocol import AnswerAtHand, Backend, Branch
from forktree.runtime.record import Recorder
from forktree.runtime.values import Callback, Failure, Value, wait_on_loop

if TYPE_CHECKING:
    from forktree.runtime.cursor import Cursor
    from forktree.runtime.function import Function
    from forktree.runtime.state import State


class Scope(Protocol):
    """What a program that is called inside another finds: a run, or a trace."""

    def call(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State: ...


current_scope: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("forktree_scope", default=None)


class Run:
    """What the branches of one run share.

    Attributes:
        number: tells the run from others, for the backend.
        at_hand: the backend's verb for answers that need no waiting, where it has one (`protocol.AtHand`).
        sampling: the run's defaults, or None.
        speculation: how it speculates; None is not at all.
        body: the value that the body returned.
        body_task: the task of an `async def` body, once it runs.
        outcome: what the run raised at its end, if it did.
        failures: every failure of this run and of the programs it called, for the end of the outermost one.
    """

    __slots__ = (
        "_cancelled",
        "_corked",
        "_end_run",
        "_idle_waiters",
        "_name_waiters",
        "_num_busy",
        "at_hand",
        "backend",
        "body",
        "body_task",
        "children",
        "cursors",
        "executor",
        "failures",
        "lock",
        "name",
        "number",
        "outcome",
        "parent",
        "recorder",
        "sampling",
        "speculation",
    )

    def __init__(
        self,
        executor: Executor,
        backend: Backend,
        sampling: Sampling | None,
        name: str,
        parent: Run | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.executor = executor
        self.number = executor.new_number()
        self.backend = backend
        self.at_hand: AnswerAtHand | None = getattr(backend, "answer_at_hand", None)
        self._end_run: Callable[[int], None] | None = getattr(backend, "end_run", None)
        self.sampling = sampling
        self.name = name
        # Where the cache holds what a prompt begins with, calls of their own cost nothing more.
        self.speculation = None if speculation is None or backend.capabilities.tokens else speculation
        self.parent = parent
        self.lock = threading.Lock()
        self.body = Value()
        self.body_task: asyncio.Task[Any] | None = None
        self.cursors: dict[int, Cursor] = {}
        self.children: list[Run] = []
        self.failures: list[Failure] = [] if parent is None else parent.failures
        self.recorder: Recorder = Recorder(name) if parent is None else parent.recorder
        self.outcome: Failure | None = None
        self._corked: list[Cursor] | None = None
        self._num_busy = 0
        self._idle_waiters: list[Callback] = []
        self._name_waiters: list[Callback] = []
        self._cancelled: Failure | None = None
        self.enter()  # the body

    def new_branch_id(self) -> int:
        """The next number of the record's branches."""
        return self.recorder.new_branch()

    @property
    def outermost(self) -> Run:
        """The run that nobody called: the record is its."""
        return self if self.parent is None else self.parent.outermost

    @property
    def cancelled_by(self) -> BaseException | None:
        """What cancelled the run, if it was cancelled."""
        return None if self._cancelled is None else self._cancelled.error

    def check_open(self) -> None:
        """Raise what cancelled the run, if it was cancelled."""
        if self._cancelled is not None:
            self._cancelled.throw()

    # Work for the loop

    def cork(self) -> None:
        """Hold back the start of branches until `uncork`, for a program that is appended in one go."""
        self._corked = []

    def uncork(self) -> None:
        """Start what was held back: one wake-up of the loop for all."""
        held, self._corked = self._corked, None
        for cursor in held or ():
            self.executor.schedule(cursor)

    def schedule(self, cursor: Cursor) -> None:
        """Have the branch drained on the loop."""
        if self._corked is None:
            self.executor.schedule(cursor)
        else:
            self._corked.append(cursor)

    def release(self) -> None:
        """Somebody waits: start what branches held back in the hope of more to ask for in one call."""
        if self.speculation is not None:
            for cursor in list(self.cursors.values()):
                cursor.release()

    # Busy and settled

    def enter(self) -> None:
        """One more thing is going on. The lock is held; a caller's lock is taken inside its callee's, never the
        other way round."""
        if self._num_busy == 0 and self.parent is not None:
            with self.parent.lock:
                self.parent.enter()
        self._num_busy += 1

    def leave(self) -> None:
        """One thing less; the lock is not held."""
        with self.lock:
            self._num_busy -= 1
            if self._num_busy:
                return
            waiters, self._idle_waiters = self._idle_waiters, []
        if self._end_run is not None:
            self._end_run(self.number)
        for cursor in list(self.cursors.values()):
            cursor.feed.wake()
        for callback in waiters:
            callback()
        if self.parent is not None:
            self.parent.leave()

    @property
    def is_settled(self) -> bool:
        return self._num_busy == 0

    def on_settled(self, callback: Callback) -> None:
        """Call back when nothing is going on any more; at once if so."""
        with self.lock:
            if self._num_busy:
                self._idle_waiters.append(callback)
                return
        callback()

    # The body

    def finish_body(self, result: Any) -> None:
        """The body returned."""
        self.body.set(result)
        self.release()  # behind it: what is appended from here on is not held back
        self.notify_names()
        self.leave()

    def finish_body_with(self, result: Value) -> None:
        """The body's value is `result`, as soon as that is there."""

        def finish() -> None:
            if self.body.is_set:
                return
            try:
                value = result.get()
            except BaseException as error:
                self.fail_body(error)
            else:
                self.finish_body(value)

        result.on_set(finish)

    def fail_body(self, error: BaseException) -> None:
        """The body raised: what is still going on has no reader any more."""
        failure = next((known for known in self.failures if known.error is error), None) or Failure(error)
        failure.observed = False
        self.failures.append(failure)
        self.body.fail(failure)
        self.cancel(failure)
        self.notify_names()
        self.leave()

    def on_name(self, callback: Callback) -> None:
        """Call back at the next name that is bound, or when the body ends; look again after registering."""
        self._name_waiters.append(callback)

    def notify_names(self) -> None:
        waiters, self._name_waiters = self._name_waiters, []
        for callback in waiters:
            callback()

    def tokens(self, branch: Branch | None) -> tuple[int, ...]:
        """The ids of a branch, as the backend renders it; blocks."""
        ids: tuple[int, ...] = self.ask(self.backend.tokens(branch), instead="await s.atokens()")
        return ids

    def ask(self, question: Coroutine[Any, Any, Any], *, instead: str) -> Any:
        """What a verb of the backend answers; blocks.

        Raises:
            LanguageError: on the loop's thread; `instead` says what to write there.
        """
        result = Value()

        async def work() -> None:
            try:
                result.set(await question)
            except BaseException as error:
                result.fail(Failure(error))

        if self.executor.is_loop_thread:
            question.close()
        else:
            self.executor.spawn(work())
        self.executor.wait(lambda: result.is_set, result.on_set, instead=instead)
        return result.get()

    # Failure

    def add_failure(self, failure: Failure) -> None:
        """Remember a failure until the end of the run."""
        self.failures.append(failure)

    async def afinish(self) -> None:
        """Wait in any event loop until it has settled, and raise what nobody handled; a cancelled wait cancels it."""
        try:
            if not self.is_settled:
                await wait_on_loop(self.on_settled)
        except BaseException:
            self.cancel()
            raise
        self.raise_unhandled()

    def raise_unhandled(self) -> None:
        """Raise the body's error, or the first failure that the program never saw."""
        failures = [self.body.failure] if self.body.failure is not None else self.failures
        for failure in failures:
            if failure is self.body.failure or not failure.observed:
                self.outcome = failure
                failure.throw()

    def cancel(self, failure: Failure | None = None) -> None:
        """Stop everything; from any thread. What is pending fails with `failure`."""
        if failure is None:
            failure = Failure(RunCancelledError(f"the run of {self.name} was cancelled"))
        with self.lock:
            if self._cancelled is not None:
                return
            self._cancelled = failure
            children, cursors = list(self.children), list(self.cursors.values())
        task = self.body_task
        if task is not None and not self.body.is_set:
            self.executor.call(task.cancel)
        for child in children:
            child.cancel(failure)
        for cursor in cursors:
            cursor.cancel(failure)

    def call(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        """Start another program on a fresh branch of its own, and return its state at once."""
        return function.start_nested(self, args, kwargs)


Register = Callable[[Callback], None]
