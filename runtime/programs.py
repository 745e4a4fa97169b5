"""`Program`: a traced or received program, run with no Python body and no thread of its own.

Running one is appending its operations in program order: names bind as they are appended, so the branches find
their values exactly as they would under the body, and one pass over the list starts everything at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from forktree.lang import ir
from forktree.lang.program import Op
from forktree.lang.program import Program as ProgramData
from forktree.lang.sampling import Sampling
from forktree.runtime.cursor import Cursor
from forktree.runtime.data import follow, show, value_of_data
from forktree.runtime.defaults import NoBackend, get_defaults
from forktree.runtime.executor import get_executor
from forktree.runtime.options import Options
from forktree.runtime.protocol import Backend
from forktree.runtime.run import Run
from forktree.runtime.state import State
from forktree.runtime.values import wait_on_loop

if TYPE_CHECKING:
    from forktree.runtime.map import AnyJournal, Result, Row


@dataclass(frozen=True, slots=True)
class Program(ProgramData):
    """A program as data that runs. Arguments are given by name: those that its trace left open.

    `run`, `arun`, `stream`, `map` and `imap` are those of a `@function`.
    """

    @property
    def is_async(self) -> bool:
        """It occupies no thread, as an `async def` program does."""
        return True

    def run(
        self,
        *,
        backend: Backend | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
        **arguments: Any,
    ) -> State:
        """Run to the end. Raises TypeError for missing or unknown arguments, before any request."""
        run, state = self._begin(Options().over(backend, sampling, seed), arguments)
        try:
            run.executor.wait(lambda: run.is_settled, run.on_settled, instead="await p.arun(...)")
        except BaseException:
            run.cancel()
            raise
        run.raise_unhandled()
        return state

    async def arun(
        self,
        *,
        backend: Backend | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
        **arguments: Any,
    ) -> State:
        """As `run`, awaited, in any event loop."""
        run, state = self._begin(Options().over(backend, sampling, seed), arguments)
        try:
            if not run.is_settled:
                await wait_on_loop(run.on_settled)
        except BaseException:
            run.cancel()
            raise
        run.raise_unhandled()
        return state

    def stream(
        self,
        *,
        backend: Backend | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
        **arguments: Any,
    ) -> State:
        """Start, and return at once a state to iterate over."""
        run, _ = self._begin(Options().over(backend, sampling, seed), arguments)
        return State(run.cursors[0], is_outside=True)

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any], adopt: Callable[[Run], None]) -> tuple[Run, State]:
        """Start and return at once. Positional arguments are taken in the order of the parameters.

        `adopt` is given the run before anything of it goes on.
        """
        if len(args) > len(self.parameters):
            raise TypeError(f"{self.name}() takes {len(self.parameters)} arguments, not {len(args)}")
        kwargs = dict(kwargs)
        options = Options().over(*(kwargs.pop(key, None) for key in ("backend", "sampling", "seed")))
        return self._begin(options, {**dict(zip(self.parameters, args, strict=False)), **kwargs}, adopt)

    def idle_run(self) -> Run:
        """A run that has not begun and has no branch yet."""
        return Run(get_executor(), NoBackend(), None, self.name)

    def fingerprint(self) -> str:
        """A checksum of the operations, without their lines."""
        return hashlib.sha256(repr(tuple(_without_sources(self.ops))).encode()).hexdigest()

    def map(
        self,
        rows: Iterable[Row],
        *,
        concurrency: int | None = None,
        progress: bool = False,
        journal: AnyJournal = None,
        on_error: Literal["return", "raise"] = "return",
        ordered: bool = True,
    ) -> list[Result]:
        """Run once for each row; see `forktree.runtime.map`."""
        from forktree.runtime.map import run_map

        return run_map(self, rows, concurrency, progress, journal, on_error, ordered)

    def imap(
        self,
        rows: Iterable[Row],
        *,
        concurrency: int | None = None,
        progress: bool = False,
        journal: AnyJournal = None,
        on_error: Literal["return", "raise"] = "return",
        ordered: bool = True,
    ) -> Iterator[Result]:
        """As `map`, one result after another with bounded memory."""
        from forktree.runtime.map import iterate_map

        return iterate_map(self, rows, concurrency, progress, journal, on_error, ordered)

    def aimap(
        self,
        rows: Iterable[Row],
        *,
        concurrency: int | None = None,
        progress: bool = False,
        journal: AnyJournal = None,
        on_error: Literal["return", "raise"] = "return",
        ordered: bool = True,
    ) -> AsyncIterator[Result]:
        """As `imap`, for `async for`."""
        from forktree.runtime.map import iterate_map_async

        return iterate_map_async(self, rows, concurrency, progress, journal, on_error, ordered)

    def _begin(
        self, options: Options, arguments: dict[str, Any], adopt: Callable[[Run], None] | None = None
    ) -> tuple[Run, State]:
        self._check(arguments)
        executor = get_executor()
        run = Run(executor, options.backend or get_defaults().backend(), options.sampling, self.name)
        trunk = Cursor(run, 0, {}, None)
        if adopt is not None:
            adopt(run)
        try:
            run.cork()
            player = _Player(run, trunk, arguments)
            player.play(self.ops)
            run.finish_body_with(value_of_data(player.localised(self.returns), run))
            run.uncork()
        except BaseException:
            run.cancel()
            raise
        return run, State(trunk)

    def _check(self, arguments: dict[str, Any]) -> None:
        missing = [name for name in self.parameters if name not in arguments]
        unknown = [name for name in arguments if name not in self.parameters]
        if missing or unknown:
            what = f"is missing {missing}" if missing else f"has no parameter {unknown[0]!r}"
            raise TypeError(f"program {self.name}({', '.join(self.parameters)}) {what}")


def _without_sources(ops: Iterable[Op]) -> Iterator[tuple[int, ir.Node]]:
    for op in ops:
        yield op.branch, replace(op.node, source=None)


class _Player:
    """Appends one program's operations to one run: its branches by number, its arguments by value."""

    def __init__(self, run: Run, trunk: Cursor, arguments: dict[str, Any]) -> None:
        self._run = run
        self._cursors = {0: trunk}
        self._arguments = arguments

    def play(self, ops: Iterable[Op]) -> None:
        """All operations in order; what stands in a row on one branch is appended at once."""
        row: list[ir.Node] = []
        on = 0
        for branch, node in ops:
            is_whole = isinstance(node, ir.Assign | ir.Fork | ir.Join | ir.Call)
            if row and (branch != on or is_whole):
                self._cursors[on].append(row)
                row = []
            if is_whole:
                self._play_whole(branch, node)
                continue
            on = branch
            row.append(self._appendable(node) if isinstance(node, ir.Argument | ir.Variable) else node)
        if row:
            self._cursors[on].append(row)

    def _play_whole(self, branch: int, node: ir.Node) -> None:
        """A step that is no append."""
        cursor = self._cursors[branch]
        match node:
            case ir.Assign():
                cursor.assign(node.name, self.localised(node.value), node.source)
            case ir.Fork():
                children = cursor.fork(len(node.branches), node.on_error, node.source)
                self._cursors.update(zip(node.branches, children, strict=True))
            case ir.Join():
                cursor.join([self._cursors[child] for child in node.branches], node.style, node.source)
            case ir.Call():
                branch_id = self._run.new_branch_id()
                self._run.recorder.add(cursor.id, replace(node, branch=branch_id))
                self._cursors[node.branch] = Cursor(self._run, branch_id, {}, None)
            case _:
                raise AssertionError(f"{type(node).__name__} is appended")

    def _appendable(self, node: ir.Argument | ir.Variable) -> ir.Node:
        if isinstance(node, ir.Argument):
            return ir.Text(show(follow(self._arguments[node.name], node.path), node), source=node.source)
        return replace(node, branch=self._cursors[node.branch].id)

    def localised(self, data: Any) -> Any:
        """Data with arguments filled in and variables of this run's branches."""
        match data:
            case ir.Argument():
                value = follow(self._arguments[data.name], data.path)
                return show(value, data) if data.conversion or data.format_spec else value
            case ir.Variable():
                return self._appendable(data)
            case ir.Sequence(items=items):
                return ir.Sequence(
                    tuple(self._appendable(i) if isinstance(i, ir.Argument | ir.Variable) else i for i in items)  # type: ignore[misc]
                )
            case tuple():
                return tuple(self.localised(item) for item in data)
            case list():
                return [self.localised(item) for item in data]
            case dict():
                return {key: self.localised(item) for key, item in data.items()}
        return data
