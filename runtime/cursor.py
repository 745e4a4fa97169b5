"""The growing end of one branch.

Appending works in program order: names are bound when the program appends, so `s["x"]` always means the newest
`x` that the program wrote, ready or not. The work itself queues up behind what the branch still waits for and
is carried out by one task at a time on the loop; while nothing is pending, text and answers that are at hand
go straight onto the branch in the caller's thread.

Who owns what, between two appends:

    program's thread   appends to `queue`, binds `names`, tracks `role`
    whoever drains     takes from `queue`, moves `tip`, sets values         (only while `is_active`)

One thread or task drains at a time: the one that set `is_active`, until it finds the queue empty or hands over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from forktree.lang import ir
from forktree.lang.errors import LanguageError, RunCancelledError
from forktree.lang.program import Op
from forktree.lang.sampling import seeded_for
from forktree.lang.verify import check_head, clash_message, next_role
from forktree.runtime import interpreter, protocol
from forktree.runtime.data import value_of_data
from forktree.runtime.run import Run
from forktree.runtime.values import Failure, Feed, Value, combine


@dataclass(frozen=True, slots=True)
class TipStep:
    """Hand out the branch as it is at this point; `mark`: closed for a fork."""

    mark: bool


Step = tuple[ir.Node | TipStep, Value | None]


class Cursor:
    """The growing end of one branch. See the module for who may touch what."""

    __slots__ = (
        "_cancelling",
        "_is_working",
        "base",
        "failure",
        "feed",
        "forks",
        "group",
        "has_head",
        "held",
        "id",
        "is_active",
        "names",
        "num_plain",
        "own",
        "queue",
        "role",
        "run",
        "sampling",
        "scopes",
        "task",
        "tip",
        "trunk",
    )

    def __init__(self, run: Run, branch_id: int, names: dict[str, Value], role: str | None) -> None:
        self.run = run
        self.sampling = run.sampling  # with a seed: a forked branch has one of its own
        self.id = branch_id
        self.names = names
        self.own: dict[str, Value] = {}
        self.role = role
        self.has_head = False  # a turn, or tools: nothing can be put before it any more
        self.tip: protocol.Branch | None = None
        self.base: Value | None = None
        self.trunk: Value | None = None
        self.queue: deque[Step] = deque()
        self.held: list[Step] = []  # with speculation: behind the queue, until the turn ends or somebody waits
        self.num_plain = 0  # generations ahead that speculation has failed for
        self.is_active = False
        self.task: asyncio.Task[None] | None = None
        self.failure: Failure | None = None
        self._cancelling: Failure | None = None
        self._is_working = False
        self.feed = Feed()
        self.scopes: list[tuple[str, protocol.Branch | None]] = []
        self.group: tuple[Cursor, ...] = ()
        self.forks: list[Cursor] = []
        run.cursors[branch_id] = self

    # The program's side

    def append(self, nodes: Iterable[ir.Node]) -> None:
        """Append in program order; returns at once.

        Raises:
            RoleError: turns nest, or one ends that is not open.
            RunCancelledError: the run was cancelled.
        """
        with self.run.lock:
            self.run.check_open()
            self._forget_seen_failure()
            try:
                for node in nodes:
                    self._enqueue(node)
            except BaseException:
                self._start()
                raise
            if not self._take_over():
                self._start()
                return
        self._go_on_here()

    def assign(self, name: str, data: Any, source: ir.Source | None) -> None:
        """Set a variable: what is read from here on is `data`, whatever was pending under the name."""
        with self.run.lock:
            self.run.check_open()
            self.run.recorder.add(self.id, ir.Assign(name, data, source))
            self._bind(name, value_of_data(data, self.run))

    def fork(self, count: int, on_error: Any, source: ir.Source | None) -> list[Cursor]:
        """Branches that begin at this point of the program; they cost nothing until something is appended."""
        with self.run.lock:
            self.run.check_open()
            self._forget_seen_failure()
            ids = tuple(self.run.new_branch_id() for _ in range(count))
            self.run.recorder.add(self.id, ir.Fork(ids, on_error, source))
            base = self._tip_value(mark=True)
            children = [Cursor(self.run, branch_id, dict(self.names), self.role) for branch_id in ids]
            for index, child in enumerate(children, len(self.forks)):
                child.sampling = seeded_for(self.sampling, "branch", index)
                child.has_head = self.has_head
                child._begin_at(base)
                if on_error == "cancel" and count > 1:
                    child.group = tuple(children)
            self.forks.extend(children)
            self._start()
        return children

    def _begin_at(self, base: Value) -> None:
        self.trunk = base
        if base.is_set and base.failure is None:
            self.tip = base.get()
        else:
            self.base = base

    def join(self, branches: list[Cursor], style: ir.JoinStyle, source: ir.Source | None) -> None:
        """Bring back what the branches set. Binds at once and waits for nothing.

        Raises:
            LanguageError: a name that this branch already has, or a branch of another run.
        """
        for branch in branches:
            if branch.run is not self.run or branch is self:
                raise LanguageError(f"join takes branches that this program forked{ir.at(source)}")
        with self.run.lock:
            self.run.check_open()
            names = {name: None for branch in branches for name in branch.own}
            for name in names:
                if name in self.names:
                    raise LanguageError(f"{clash_message(name)}{ir.at(source)}")
            node = ir.Join(tuple(branch.id for branch in branches), style, source)
            self.run.recorder.add(self.id, node)
            for name in names:
                values = [branch.own[name] for branch in branches if name in branch.own]
                self._bind(name, values[0] if len(values) == 1 and not node.brings_lists else combine(values))
            if node.brings_text and self.failure is None:
                self._release()
                tips = [branch._tip_value(mark=False) for branch in branches]
                for branch in branches:
                    branch._start()
                self.queue.append((node, combine(tips)))
                self._start()

    def tip_value(self) -> Value:
        """The branch as it is at this point of the program."""
        with self.run.lock:
            self._forget_seen_failure()
            value = self._tip_value(mark=False)
            self._start()
            return value

    def _tip_value(self, *, mark: bool) -> Value:
        if self.failure is not None:
            value = Value()
            value.fail(self.failure)
            return value
        if self.is_idle:
            return Value.ready(self.marked_tip() if mark else self.tip)
        self._release()
        value = Value()
        self.queue.append((TipStep(mark), value))
        return value

    def _enqueue(self, node: ir.Node) -> None:
        value: Value | None = None
        match node:
            case ir.Text():
                pass
            case ir.Gen() | ir.Select():
                value = Value()
                value.feed = Feed()
                if node.name is not None:
                    self._bind(node.name, value)
            case ir.RoleBegin() | ir.RoleEnd():
                self.role = next_role(self.role, node)
                self.has_head = True
            case ir.Tools():
                check_head(self.has_head, node)
                self.has_head = True
            case ir.ScopeEnd():
                value = Value()
                self._bind(node.name, value)
            case ir.Variable():
                value = self.run.cursors[node.branch].names[node.name]
        self.run.recorder.ops.append(Op(self.id, node))
        if self.failure is not None:
            if value is not None and not isinstance(node, ir.Variable):
                value.fail(self.failure)
        elif self.is_idle and value is None:
            interpreter.apply(self, node)
        elif self.run.speculation is not None and self._is_held(node):
            self.held.append((node, value))
        else:
            self._release()
            self.queue.append((node, value))

    def _is_held(self, node: ir.Node) -> bool:
        """A generation, and text behind one: the body may append more of the turn."""
        if self.run.body.is_set:
            return False
        return isinstance(node, ir.Gen) or (isinstance(node, ir.Text) and bool(self.held))

    def _release(self) -> None:
        if self.held:
            self.queue.extend(self.held)
            self.held.clear()

    def release(self) -> None:
        """Start what is held back; from any thread."""
        with self.run.lock:
            self._release()
            self._start()

    def _bind(self, name: str, value: Value) -> None:
        self.names[name] = value
        self.own[name] = value
        self.run.notify_names()

    def _forget_seen_failure(self) -> None:
        """Once the program has seen the error, the branch goes on from before what failed."""
        if self.failure is not None and self.failure.observed:
            self.failure = None

    def _start(self) -> None:
        if self.queue and not self.is_active:
            self.is_active = True
            self.run.enter()
            self.run.schedule(self)

    @property
    def is_idle(self) -> bool:
        """Nothing is pending: whoever holds the lock may move the tip."""
        return not self.is_active and not self.queue and not self.held and self.base is None

    # In the program's thread, where nothing has to be waited for

    def _take_over(self) -> bool:
        """Does the caller's thread drain the queue, as far as answers are at hand? The lock is held."""
        if not self.queue or self.is_active or self.base is not None or self.run.at_hand is None:
            return False
        self.is_active = True
        self.run.enter()
        return True

    def _go_on_here(self) -> None:
        """Carry out the queue up to the first step that has to wait; the loop goes on from there."""
        while True:
            with self.run.lock:
                if not self.queue:
                    self._stop_draining()
                    break
                node, value = self.queue.popleft()
            try:
                if not interpreter.carry_out_now(self, node, value):
                    self._hand_over(node, value)
                    return
            except Exception as error:
                self.fail(Failure(error), value)
            except BaseException as error:  # an interrupt of the program's own thread
                self.fail(Failure(error), value)
                self._hand_over()
                raise
        self.feed.wake()
        self.run.leave()

    def _hand_over(self, *step: Any) -> None:
        """The loop drains from here on, the step that has to wait first."""
        with self.run.lock:
            if step and self.failure is None:
                self.queue.appendleft(step)
        if step and self.failure is not None and step[1] is not None and not isinstance(step[0], ir.Variable):
            step[1].fail(self.failure)  # the branch was cancelled meanwhile
        self.run.schedule(self)

    def _stop_draining(self) -> None:
        self.is_active = False
        self.task = None
        self._cancelling = None

    # The drain task's side

    async def drain(self) -> None:
        """Carry out the queue until it is empty."""
        while (step := self._next_step()) is not None:
            node, value = step
            try:
                self._is_working = True
                if self.base is not None:
                    await self._reach_base()
                if not interpreter.carry_out_now(self, node, value):
                    await interpreter.carry_out(self, node, value)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()  # the task lives on: the program may append again
                self.fail(self._cancelling or Failure(RunCancelledError("the executor was stopped")), value)
            except BaseException as error:
                self.fail(self._failure_of(error), value)
            finally:
                self._is_working = False

    def _next_step(self) -> Step | None:
        with self.run.lock:
            if self.queue:
                return self.queue.popleft()
            self._stop_draining()
        self.feed.wake()
        self.run.leave()
        return None

    def upcoming(self) -> list[Step]:
        """What is queued behind the step at hand."""
        with self.run.lock:
            return list(self.queue)

    def take_next(self) -> Step:
        """The next step, which the step at hand has settled too."""
        with self.run.lock:
            return self.queue.popleft()

    async def _reach_base(self) -> None:
        base = self.base
        assert base is not None
        await base.wait()
        if base.failure is not None:
            raise base.failure.error
        self.tip = base.get()
        self.base = None

    def _failure_of(self, error: BaseException) -> Failure:
        """The trunk's own failure, where it is the reason, so that seeing one is seeing both."""
        base = self.base
        if base is not None and base.failure is not None and not base.failure.observed:
            return base.failure
        return Failure(error)

    def fail(self, failure: Failure, value: Value | None = None) -> None:
        """The step at hand failed, and with it everything that is queued behind; siblings are cancelled."""
        self._flush(failure, value)
        if failure is not self._cancelling:
            self.run.add_failure(failure)
            for sibling in self.group:
                if sibling is not self:
                    sibling.cancel(failure)

    def _flush(self, failure: Failure, value: Value | None) -> None:
        with self.run.lock:
            self.failure = failure
            steps = [*self.queue, *self.held]
            self.queue.clear()
            self.held.clear()
            self.num_plain = 0
        for node, pending in [(None, value), *steps]:
            if pending is not None and not isinstance(node, ir.Variable):
                pending.fail(failure)

    def cancel(self, failure: Failure) -> None:
        """Stop the branch and all that forked from it; from any thread."""
        with self.run.lock:
            is_active = self.is_active
            if is_active:
                self._cancelling = failure
            forks = list(self.forks)
        self._flush(failure, None)
        if is_active:
            self.run.executor.call(self._cancel_task)
        for child in forks:
            child.cancel(failure)

    def _cancel_task(self) -> None:
        # Between steps there is nothing to interrupt: the queue was emptied, so the task ends by itself.
        if self.task is not None and self._cancelling is not None and self._is_working:
            self.task.cancel()

    def push(self, segment: protocol.Segment, shown: str = "") -> None:
        """Put a segment on the branch; `shown` is the part of its text that no reader has seen yet."""
        self.tip = protocol.Branch(self.tip, segment)
        self.feed.push(shown)

    def marked_tip(self) -> protocol.Branch | None:
        """The tip, closed for a fork. An empty branch has nothing to close."""
        tip = self.tip
        if tip is None or isinstance(tip.segment, protocol.ForkMark):
            return tip
        return protocol.Branch(tip, protocol.ForkMark())
