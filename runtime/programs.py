"""`Program`: a traced or received program, run with no Python body and no thread of its own.

Running one is appending its operations in program order: names bind as they are appended, so the branches find
their values exactly as they would under the body, and one pass over the list starts everything at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from forktree.lang import ir
from forktree.lang.program import Op
from forktree.lang.program import Program as ProgramData
from forktree.lang.sampling import Sampling, seeded_for
from forktree.runtime import protocol
from forktree.runtime.cursor import Cursor
from forktree.runtime.data import follow, show, value_of_data
from forktree.runtime.defaults import NoBackend, get_defaults
from forktree.runtime.executor import get_executor
from forktree.runtime.map import Row
from forktree.runtime.mappable import Mappable
from forktree.runtime.openings import branch_of, segment_of
from forktree.runtime.options import Options
from forktree.runtime.order import Path
from forktree.runtime.ported import taken_sampling
from forktree.runtime.protocol import Backend, Branch
from forktree.runtime.run import Run
from forktree.runtime.state import State
from forktree.runtime.whole import begin_whole, runner_of

_RUN_OPTIONS = ("backend", "sampling", "seed")


@dataclass(frozen=True, slots=True)
class Program(ProgramData, Mappable):
    """A program as data that runs. Arguments are given by name: those that its trace left open.

    `run`, `arun`, `stream`, `map` and its kin are those of a `@function`.
    """

    _prepared: tuple[_Stretch, ...] | None = field(default=None, init=False, compare=False, repr=False)

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
        """Run to the end. Takes sampling parameters by name too, where the program has no parameter of that name.

        Raises:
            TypeError: missing or unknown arguments, before any request.
        """
        run, state = self._begin(self._options.over(backend, sampling, seed), arguments)
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
        run, state = self._begin(self._options.over(backend, sampling, seed), arguments)
        await run.afinish()
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
        run, _ = self._begin(self._options.over(backend, sampling, seed), arguments)
        return State(run.cursors[0], is_outside=True)

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any], adopt: Callable[[Run], None]) -> tuple[Run, State]:
        """See `Mappable`. Positional arguments are taken in the order of the parameters."""
        if len(args) > len(self.parameters):
            raise TypeError(f"{self.name}() takes {len(self.parameters)} arguments, not {len(args)}")
        arguments = {**dict(zip(self.parameters, args, strict=False)), **kwargs}
        given = [arguments.pop(name, None) if name not in self.parameters else None for name in _RUN_OPTIONS]
        return self._begin(self._options.over(*given), arguments, adopt)

    def idle_run(self) -> Run:
        """See `Mappable`."""
        return Run(get_executor(), NoBackend(), self.sampling, self.name)

    def fingerprint(self) -> Mapping[str, str]:
        """See `Mappable`: the operations without their lines, the sampling and the backend."""
        from forktree.runtime.fingerprint import fingerprint_backend

        described = (*_without_sources(self.ops), self.sampling)
        operations = hashlib.sha256(repr(described).encode("utf-8", "surrogatepass")).hexdigest()
        return {"operations": operations, **fingerprint_backend(self._options.backend or get_defaults().backend())}

    def beginnings(self, rows: Sequence[Row]) -> list[Path]:
        """The text of each row's prompt up to its first generation, piece by piece."""
        return [tuple(self._beginning(row)) for row in rows]

    def _beginning(self, row: Row) -> Iterator[Hashable]:
        values = row if isinstance(row, tuple) else ()  # what is no row is refused when it starts
        given = row if isinstance(row, Mapping) else dict(zip(self.parameters, values, strict=False))
        for branch, node in self.ops:
            if branch != 0 or isinstance(node, ir.Gen | ir.Select | ir.Variable | ir.Fork | ir.Call):
                return
            if isinstance(node, ir.Argument):
                with contextlib.suppress(Exception):  # a row that does not fit fails when it starts
                    yield show(follow(given[node.name], node.path), node)

    def announce(self, rows: Sequence[Row]) -> None:
        """See `Mappable`: what is on the trunk before its first generation."""
        backend = self._options.backend or get_defaults().backend()
        expect = getattr(backend, "expect", None)
        branches = [] if expect is None else [branch_of(self._opening(row)) for row in rows]
        if expect is not None and (openings := [branch for branch in branches if branch is not None]):
            get_executor().spawn(expect(openings))

    def _opening(self, row: Row) -> Iterator[protocol.Segment]:
        values = row if isinstance(row, tuple) else ()
        given = row if isinstance(row, Mapping) else dict(zip(self.parameters, values, strict=False))
        for branch, node in self.ops:
            if isinstance(node, ir.Argument):
                try:
                    node = ir.Text(show(follow(given[node.name], node.path), node))
                except Exception:  # a row that does not fit fails when it starts
                    return
            segment = segment_of(node) if branch == 0 else None
            if segment is None:
                return
            yield segment

    @property
    def _options(self) -> Options:
        return Options(sampling=self.sampling, speculation=self.speculation)

    def _begin(
        self, options: Options, arguments: dict[str, Any], adopt: Callable[[Run], None] | None = None
    ) -> tuple[Run, State]:
        options = options.over(None, taken_sampling(arguments, self.parameters), None)
        self._check(arguments)
        executor = get_executor()
        backend = options.backend or get_defaults().backend()
        run = Run(executor, backend, options.sampling, self.name, speculation=options.speculation)
        trunk = Cursor(run, 0, {}, None)
        if adopt is not None:
            adopt(run)
        runner = runner_of(backend)
        try:
            if runner is None:
                self._play(run, trunk, arguments)
            else:
                begin_whole(runner, self, run, trunk, arguments, lambda: self._play(run, trunk, arguments))
        except BaseException:
            run.cancel()
            raise
        return run, State(trunk)

    def _play(self, run: Run, trunk: Cursor, arguments: dict[str, Any]) -> None:
        """Append everything in one go."""
        run.cork()
        player = _Player(run, trunk, arguments)
        player.play(self._stretches())
        run.release()  # all is appended: nothing more can be asked for together
        run.finish_body_with(value_of_data(player.localised(self.returns), run))
        run.uncork()

    def _stretches(self) -> tuple[_Stretch, ...]:
        """How a run appends the operations; worked out once."""
        if self._prepared is None:
            object.__setattr__(self, "_prepared", tuple(_stretches(self.ops)))
        assert self._prepared is not None
        return self._prepared

    def _check(self, arguments: dict[str, Any]) -> None:
        missing = [name for name in self.parameters if name not in arguments]
        unknown = [name for name in arguments if name not in self.parameters]
        if not missing and not unknown:
            return
        what = f"is missing {missing}" if missing else f"has no parameter {unknown[0]!r}"
        if unknown:  # what the function takes besides is not known here, only what its trace left open
            what += (
                f"; if the function has {unknown[0]!r}, its default or what trace() was given is a constant here, "
                f"and trace({unknown[0]}=ft.SYMBOLIC) keeps it open"
            )
        raise TypeError(f"program {self.name}({', '.join(self.parameters)}) {what}")


async def run_behind(
    program: Program,
    branch: Branch | None,
    *,
    backend: Backend,
    sampling: Sampling | None,
    arguments: Mapping[str, Any],
) -> State:
    """For servers: as `Program.arun`, and the trunk goes on behind what stands on `branch` already."""

    def adopt(run: Run) -> None:
        run.cursors[0].tip = branch

    options = program._options.over(backend, sampling, None)
    run, state = program._begin(options, dict(arguments), adopt)
    await run.afinish()
    return state


def _without_sources(ops: Iterable[Op]) -> Iterator[tuple[int, ir.Node]]:
    for op in ops:
        yield op.branch, replace(op.node, source=None)


class _Stretch(NamedTuple):
    """Steps in a row on one branch that are appended at once, or one step that is no append.

    `is_fixed`: the nodes hold no argument and no variable, so every run appends the same ones.
    """

    branch: int
    nodes: tuple[ir.Node, ...]
    is_append: bool
    is_fixed: bool


def _stretches(ops: Iterable[Op]) -> Iterator[_Stretch]:
    for (branch, is_append), group in itertools.groupby(ops, key=_place):
        nodes = tuple(op.node for op in group)
        if not is_append:
            yield from (_Stretch(branch, (node,), False, False) for node in nodes)
            continue
        yield _Stretch(branch, nodes, True, not any(isinstance(each, ir.Argument | ir.Variable) for each in nodes))


def _place(op: Op) -> tuple[int, bool]:
    return op.branch, not isinstance(op.node, ir.Assign | ir.Fork | ir.Join | ir.Call)


class _Player:
    """Appends one program's operations to one run: its branches by number, its arguments by value."""

    def __init__(self, run: Run, trunk: Cursor, arguments: dict[str, Any]) -> None:
        self._run = run
        self._cursors = {0: trunk}
        self._arguments = arguments
        self._num_calls: dict[int, int] = {}

    def play(self, stretches: Iterable[_Stretch]) -> None:
        """All operations in order."""
        for branch, nodes, is_append, is_fixed in stretches:
            if not is_append:
                self._play_whole(branch, nodes[0])
            elif is_fixed:
                self._cursors[branch].append(nodes)
            else:
                self._cursors[branch].append([self._filled_in(node) for node in nodes])

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
                called = self._cursors[node.branch] = Cursor(self._run, branch_id, {}, None)
                called.sampling = seeded_for(cursor.sampling, "call", self._num_calls.get(branch, 0))
                self._num_calls[branch] = self._num_calls.get(branch, 0) + 1
            case _:
                raise AssertionError(f"{type(node).__name__} is appended")

    def _filled_in(self, node: ir.Node) -> ir.Node:
        """The node with what this run knows in the place of an argument, and its own number of a branch."""
        if isinstance(node, ir.Argument):
            return ir.Text(show(follow(self._arguments[node.name], node.path), node), source=node.source)
        if isinstance(node, ir.Variable):
            return replace(node, branch=self._cursors[node.branch].id)
        return node

    def localised(self, data: Any) -> Any:
        """Data with arguments filled in and variables of this run's branches."""
        match data:
            case ir.Argument():
                value = follow(self._arguments[data.name], data.path)
                return show(value, data) if data.conversion or data.format_spec else value
            case ir.Variable():
                return self._filled_in(data)
            case ir.Sequence(items=items):
                return ir.Sequence(tuple(self._filled_in(item) for item in items))  # type: ignore[misc]
            case tuple():
                return tuple(self.localised(item) for item in data)
            case list():
                return [self.localised(item) for item in data]
            case dict():
                return {key: self.localised(item) for key, item in data.items()}
        return data
