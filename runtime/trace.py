"""`trace`: running a body with symbolic arguments to get its program, with no backend and no thread.

The body runs once, only because the user asked, with the real language: its state is an ordinary `State` over a
`TraceCursor`, which records what is appended and answers reads with symbols. What Python knows at trace time
(loops over lists, branches over given arguments) unrolls; what only a run can know raises TraceError with the
line.
"""

from __future__ import annotations

import contextvars
import enum
import inspect
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from forktree.lang import ir
from forktree.lang.errors import LanguageError, TraceError
from forktree.lang.program import Op
from forktree.lang.sampling import Sampling
from forktree.lang.symbols import Symbol, SymbolTable
from forktree.lang.verify import check_head, clash_message, next_role, verify
from forktree.runtime.programs import Program
from forktree.runtime.record import Recorder
from forktree.runtime.run import current_scope
from forktree.runtime.state import State
from forktree.runtime.values import Value

if TYPE_CHECKING:
    from forktree.runtime.function import Function


class _Symbolic(enum.Enum):
    """`ft.SYMBOLIC`, given to `trace` for a parameter: it stays open though it has a default."""

    SYMBOLIC = enum.auto()

    def __repr__(self) -> str:
        return "ft.SYMBOLIC"


SYMBOLIC: Final = _Symbolic.SYMBOLIC


def trace(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
    """The program of `function`: given arguments and defaults are constants; missing ones and `SYMBOLIC` stay open.

    Raises:
        TypeError: arguments that the function does not take.
        TraceError: the body needs a value that only a run can know.
    """
    table = SymbolTable()
    bound, parameters = _bind(function, args, kwargs, table)
    tracer = Tracer(function.name, table)
    cursor = TraceCursor(tracer, 0, {}, None)
    returned = tracer.run_body(function, State(cursor), bound.args, bound.kwargs)  # type: ignore[arg-type]
    returns = plain_data(returned, table)
    options = function.options
    ops = tuple(tracer.recorder.ops)
    return verify(Program(function.name, parameters, ops, returns, options.sampling, options.speculation))


def trace_as_far_as_possible(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Op], TraceError | None]:
    """The operations up to the first line that only a run can know, and why it ends there.

    Raises:
        TypeError: arguments that the function does not take, or that are missing.
    """
    table = SymbolTable()
    bound, parameters = _bind(function, args, kwargs, table)
    if parameters:
        raise TypeError(f"{function.name}() is missing {', '.join(parameters)}")
    tracer = Tracer(function.name, table)
    cursor = TraceCursor(tracer, 0, {}, None)
    try:
        tracer.run_body(function, State(cursor), bound.args, bound.kwargs)  # type: ignore[arg-type]
    except TraceError as error:
        return tracer.recorder.ops, error
    return tracer.recorder.ops, None


def _bind(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], table: SymbolTable
) -> tuple[inspect.BoundArguments, tuple[str, ...]]:
    """All arguments but receiver and state, and the names of those that stay open."""
    signature = inspect.signature(function.fn)
    rest = list(signature.parameters.values())[function.num_leading :]
    signature = signature.replace(parameters=rest)
    try:
        bound = signature.bind_partial(*args, **{**function.bound, **kwargs})
    except TypeError as error:
        raise TypeError(f"{function.name}(): {error}") from None
    open_names: list[str] = []

    def opened(name: str, value: Any) -> Any:
        if value is not SYMBOLIC:
            return value
        open_names.append(name)
        return Symbol(ir.Argument(name), table)

    for parameter in rest:
        given = bound.arguments.get(parameter.name, parameter.default)
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = bound.arguments.get(parameter.name, {})
            bound.arguments[parameter.name] = {name: opened(name, value) for name, value in extra.items()}
        elif parameter.kind is parameter.VAR_POSITIONAL:
            if any(value is SYMBOLIC for value in bound.arguments.get(parameter.name, ())):
                raise TypeError(f"{function.name}(): *{parameter.name} cannot stay open; its values have no names")
        else:
            value = SYMBOLIC if given is parameter.empty else given
            bound.arguments[parameter.name] = opened(parameter.name, value)
    bound.apply_defaults()
    return bound, tuple(open_names)


class Tracer:
    """One trace. Looks to its states like a run that never has a value.

    Attributes:
        body: what the traced body returned.
        sampling: of a nested program: the defaults of its own, and of those that called it.
    """

    def __init__(
        self,
        name: str,
        table: SymbolTable,
        root: int = 0,
        recorder: Recorder | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        self.name = name
        self.root = root
        self.sampling = sampling
        self.table = table
        self.recorder = recorder or Recorder(name)
        self.body = Value()
        self.executor = _NoExecutor()

    def tokens(self, branch: object) -> NoReturn:
        _refuse("tokens()")

    def release(self) -> None:
        """A trace holds nothing back."""

    def run_body(self, function: Function, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the body here and now, in its own context."""
        context = contextvars.copy_context()
        context.run(current_scope.set, self)
        self.executor.is_loop_thread = function.is_async
        result = context.run(function.fn, *function.receiver, state, *args, **kwargs)
        if inspect.iscoroutine(result):
            result = context.run(drive, result)
        self.body.set(result)
        return result

    def call(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        """A nested program: traced in place, on a fresh branch; what it samples by becomes its generations' own."""
        if function.options.backend is not None:
            where = ir.at(ir.caller_source())
            raise TraceError(f"{function.name} names its own backend, and a program as data has one{where}")
        branch = self.recorder.new_branch()
        self.recorder.add(self.root, ir.Call(function.name, branch, ir.caller_source()))
        sampling = _merged(function.options.sampling, self.sampling)
        tracer = Tracer(function.name, self.table, branch, self.recorder, sampling)
        state = State(TraceCursor(tracer, branch, {}, None))  # type: ignore[arg-type]
        tracer.run_body(function, state, args, {**function.bound, **kwargs})
        return state


def _merged(own: Sampling | None, defaults: Sampling | None) -> Sampling | None:
    return defaults if own is None else own if defaults is None else own.over(defaults)


def drive(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never really waits. Raises TraceError when it does."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    work.close()
    raise TraceError("the body awaits something that only a run can wait for; run the program instead")


class _NoExecutor:
    """Everything that a trace reads is there, or cannot be known.

    Attributes:
        is_loop_thread: the body is an `async def`, so that what it calls is awaited.
    """

    def __init__(self) -> None:
        self.is_loop_thread = False
        self.bodies = self

    def wait(
        self, is_done: Callable[[], bool], register: object, *, instead: str, timeout: float | None = None
    ) -> bool:
        if not is_done():
            _refuse("waiting for a value")
        return True

    def spawn(self, work: Coroutine[Any, Any, None], context: contextvars.Context) -> None:
        before, self.is_loop_thread = self.is_loop_thread, True
        try:
            context.run(drive, work)
        finally:
            self.is_loop_thread = before

    def submit_nested(self, job: Callable[[], None]) -> None:
        job()


def _refuse(what: str) -> NoReturn:
    raise TraceError(f"{what} needs a run{ir.at(ir.caller_source())}; a trace knows no text that a model makes")


class _UnknownBranch:
    """The branch at some point of a trace: it can be reached, and not looked into."""

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(f"{name}()")


class SymbolValue(Value):
    """A variable of a trace."""

    __slots__ = ()

    @property
    def meta(self) -> Any:
        _refuse("meta()")

    @meta.setter
    def meta(self, meta: object) -> None:
        assert meta is None


def _symbol_value(name: str, branch: int, table: SymbolTable) -> Value:
    value = SymbolValue()
    value.set(Symbol(ir.Variable(name, branch), table))
    return value


class TraceCursor:
    """The growing end of a traced branch: the same face as `Cursor`, and nothing behind it."""

    def __init__(self, run: Tracer, branch_id: int, names: dict[str, Value], role: str | None) -> None:
        self.run = run
        self.id = branch_id
        self.names = names
        self.own: dict[str, Value] = {}
        self.role = role
        self.has_head = False
        self.trunk = None
        self.failure = None
        self.is_idle = True

    @property
    def feed(self) -> NoReturn:
        _refuse("text_iter()")

    def append(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            match node:
                case ir.Text():
                    self._record(self.run.table.split(node.text, node.markup, node.source))
                    continue
                case ir.Argument() | ir.Variable():
                    self._record([node])
                    continue
                case _:
                    self.run.table.check_known(node)
            if isinstance(node, ir.Gen) and self.run.sampling is not None:
                node = replace(node, sampling=node.sampling.over(self.run.sampling))
            match node:
                case ir.Gen(name=str(name)) | ir.Select(name=str(name)) | ir.ScopeEnd(name=name):
                    self._bind(name)
                case ir.RoleBegin() | ir.RoleEnd():
                    self.role = next_role(self.role, node)
                    self.has_head = True
                case ir.Tools():
                    check_head(self.has_head, node)
                    self.has_head = True
                case _:
                    pass
            self._record([node])

    def _record(self, nodes: Iterable[ir.Node]) -> None:
        self.run.recorder.ops.extend(Op(self.id, node) for node in nodes)

    def _bind(self, name: str) -> None:
        self.names[name] = self.own[name] = _symbol_value(name, self.id, self.run.table)

    def assign(self, name: str, data: Any, source: ir.Source | None) -> None:
        """What was assigned is what is read again, so that Python values stay known to the trace."""
        self._record([ir.Assign(name, plain_data(data, self.run.table), source)])
        self.names[name] = self.own[name] = Value.ready(data)

    def fork(self, count: int, on_error: Any, source: ir.Source | None) -> list[TraceCursor]:
        ids = tuple(self.run.recorder.new_branch() for _ in range(count))
        self._record([ir.Fork(ids, on_error, source)])
        branches = [TraceCursor(self.run, branch, dict(self.names), self.role) for branch in ids]
        for branch in branches:
            branch.has_head = self.has_head
        return branches

    def join(self, branches: list[TraceCursor], style: ir.JoinStyle, source: ir.Source | None) -> None:
        names = {name: None for branch in branches for name in branch.own}
        for name in names:
            if name in self.names:
                raise LanguageError(f"{clash_message(name)}{ir.at(source)}")
        self._record([ir.Join(tuple(branch.id for branch in branches), style, source)])
        for name in names:
            self._bind(name)

    def tip_value(self) -> Value:
        return Value.ready(_UnknownBranch())


def plain_data(value: Any, table: SymbolTable) -> Any:
    """A value of the body as data of the program: symbols and text with symbols become nodes."""
    match value:
        case ir.Symbolic():
            return value.to_node()
        case str() if table.has_marker(value):
            return ir.Sequence(tuple(table.split(value)))
        case ir.Sequence():
            return ir.Sequence(tuple(node for item in value.items for node in _split(item, table)))
        case tuple() if type(value) is tuple:
            return tuple(plain_data(item, table) for item in value)
        case list():
            return [plain_data(item, table) for item in value]
        case dict():
            return {key: plain_data(item, table) for key, item in value.items()}
    return value


def _split(node: ir.Appendable, table: SymbolTable) -> list[ir.Appendable]:
    return table.split(node.text, node.markup, node.source) if isinstance(node, ir.Text) else [node]
