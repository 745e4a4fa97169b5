"""`@function`: a Python function as a program, and the ways to run it."""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from forktree.lang import ir
from forktree.lang.errors import LanguageError
from forktree.lang.keywords import did_you_mean, keyword_checked, unknown_keyword
from forktree.lang.program import Speculation
from forktree.lang.sampling import Sampling
from forktree.runtime.bodies import Body, call_on, launch, run_here
from forktree.runtime.cursor import Cursor
from forktree.runtime.defaults import NoBackend, get_defaults
from forktree.runtime.executor import Executor, get_executor
from forktree.runtime.mappable import Mappable
from forktree.runtime.options import Options
from forktree.runtime.ported import (
    DEFAULT_MAX_TOKENS,
    SAMPLING_KEYWORDS,
    is_ported,
    run_batch,
    sampling_of,
    taken_sampling,
)
from forktree.runtime.protocol import Backend
from forktree.runtime.references import global_of, load_global
from forktree.runtime.run import Run, current_scope
from forktree.runtime.state import State

if TYPE_CHECKING:
    from forktree.runtime.map import Row
    from forktree.runtime.plan import Plan, Prices
    from forktree.runtime.programs import Program

_RUN_OPTIONS = ("backend", "sampling", "seed")
_RUN_BATCH_OPTIONS = ("num_threads", "progress_bar", "generator_style", "backend", "max_new_tokens")


class Function(Mappable):
    """A program. Made by `@function`; immutable, so it may be shared by threads.

    A function inside a class is a method: the instance comes first, the state second.
    """

    __slots__ = ("__dict__", "_body", "_bound", "_fn", "_is_async", "_options", "_parameters", "_receiver")

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options = Options(),
        bound: tuple[tuple[str, Any], ...] = (),
        receiver: tuple[Any, ...] = (),
    ) -> None:
        if not inspect.isfunction(fn):
            raise LanguageError(f"@function goes on a def or async def, not on {fn!r}")
        if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
            raise LanguageError(f"@function goes on a plain function, and {fn.__qualname__} is a generator")
        self._fn = fn
        self._options = options
        self._bound = bound
        self._receiver = receiver
        self._body = Body(fn, receiver)
        self._is_async = inspect.iscoroutinefunction(fn)
        self._parameters = frozenset(fn.__code__.co_varnames[: _num_parameters(fn)])
        functools.update_wrapper(self, fn)
        if not _has_state(fn, len(receiver)):
            raise LanguageError(f"{fn.__qualname__} takes no parameter for the state; write def {fn.__name__}(s, …)")

    def __repr__(self) -> str:
        return f"<program {self.name}>"

    @property
    def name(self) -> str:
        return self._fn.__name__

    @property
    def fn(self) -> Callable[..., Any]:
        """The Python function itself."""
        return self._fn

    @property
    def is_async(self) -> bool:
        return self._is_async

    @property
    def options(self) -> Options:
        return self._options

    @property
    def receiver(self) -> tuple[Any, ...]:
        """The instance, for a method; else empty."""
        return self._receiver

    @property
    def bound(self) -> dict[str, Any]:
        """What `bind` gave."""
        return dict(self._bound)

    @property
    def num_leading(self) -> int:
        """How many parameters come before the program's own: the receiver and the state."""
        return len(self._receiver) + 1

    def __get__(self, instance: Any, owner: type | None = None) -> Function:
        if instance is None:
            return self
        return Function(self._fn, self._options, self._bound, (instance,))

    # Other versions of the same program

    def using(
        self,
        *,
        backend: Backend | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
        **parameters: Any,
    ) -> Function:
        """The same program with other defaults.

        Args:
            parameters: sampling parameters by name, as `run` takes them: `temperature=0` goes over `sampling`.

        Raises:
            TypeError: an unknown name.
        """
        options = self._options.over(backend, sampling, seed).over(None, taken_sampling(parameters, ()), None)
        for name in parameters:
            raise TypeError(
                unknown_keyword(
                    f"{self.name}.using()", name, [*_RUN_OPTIONS, *sorted(SAMPLING_KEYWORDS - {*_RUN_OPTIONS})]
                )
            )
        return Function(self._fn, options, self._bound, self._receiver)

    def bind(self, **arguments: Any) -> Function:
        """The same program with these arguments given; a call may still give others in their place.

        Raises:
            TypeError: the program has no such parameter.
        """
        if not _takes_any_keyword(self._fn):
            for key in arguments:
                if key not in self._parameters:
                    near = did_you_mean(key, self._parameters)
                    raise TypeError(f"{self.name}() has no parameter {key!r} to bind{near}")
        bound = {**dict(self._bound), **arguments}
        return Function(self._fn, self._options, tuple(bound.items()), self._receiver)

    # Running

    def run(self, *args: Any, **kwargs: Any) -> State:
        """Run to the end and return the finished state.

        Besides the program's own arguments it takes `backend=`, `sampling=` and `seed=`, where the program has
        no parameter of that name; and sampling parameters by name (`temperature=`, SGLang's `max_new_tokens=` …) and
        `stream=`, where it takes no `**kwargs` either.

        Raises:
            TypeError: arguments that do not fit, before any request.
            LanguageError: inside an async program; write `await f.arun(...)` there.
            Exception: what the program raised, and the first failed generation that it never looked at.
        """
        if "stream" in kwargs and "stream" not in self._parameters and not _takes_any_keyword(self._fn):
            return self._run_ported(args, kwargs)
        executor = get_executor()
        if executor.is_loop_thread:
            raise LanguageError(f"{self.name}.run() would block the loop here: await {self.name}.arun()")
        run, kwargs = self._new_run(executor, kwargs)
        state = State(run.cursors[0])
        try:
            if self._is_async:
                self._body.check(args, kwargs)
                launch(self._body, run, state, args, kwargs, executor.bodies.submit)
            else:
                run_here(self._body, run, state, args, kwargs)
            executor.wait(lambda: run.is_settled, run.on_settled, instead="await arun()")
        except BaseException:
            run.cancel()
            raise
        run.raise_unhandled()
        return state

    def _run_ported(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        """SGLang's `run(..., stream=True)` is `stream(...)`."""
        rest = {key: value for key, value in kwargs.items() if key != "stream"}
        return self.stream(*args, **rest) if kwargs["stream"] else self.run(*args, **rest)

    async def arun(self, *args: Any, **kwargs: Any) -> State:
        """As `run`, awaited, in any event loop. Cancelling the awaiting task cancels the run."""
        run, state = self._start(args, kwargs, _leave_alone)
        await run.afinish()
        return state

    def stream(self, *args: Any, **kwargs: Any) -> State:
        """Start, and return at once a state to iterate with `text_iter` or `text_async_iter`.

        Raises:
            TypeError: arguments that do not fit, before any request.
        """
        run, _ = self._start(args, kwargs, _leave_alone)
        return State(run.cursors[0], is_outside=True)

    def trace(self, *args: Any, **kwargs: Any) -> Program:
        """The program as data: given arguments and defaults are constants; missing ones and `ft.SYMBOLIC` stay open.

        Raises:
            TraceError: the body needs a value that only a run can know; the message names the line.
        """
        from forktree.runtime.trace import trace

        return trace(self, args, kwargs)

    def explain(
        self,
        rows: Iterable[Row],
        *,
        backend: Backend | None = None,
        prices: Prices | Mapping[str, float] | None = None,
        max_context: int | None = None,
    ) -> Plan:
        """What `map(rows)` would ask for, before anything runs: the tree, what is shared, what does not fit.

        Each row's body is traced, so it runs once with that row's arguments; the backend is asked for token ids,
        what its cache holds of them and how long its context is; nothing is computed. `explain_run(results)` shows the
        same tree after the run.

        Args:
            prices: for a million tokens: `Prices(input=…, output=…)`, or a dict of the same.
            max_context: the context's length, where the backend does not say.
        """
        from forktree.runtime.explain import explain

        return explain(
            self, rows, self._options.over(backend, None, None).backend or get_defaults().backend(), prices, max_context
        )

    def run_batch(
        self,
        batch_kwargs: Iterable[Row],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        backend: Backend | None = None,
        max_new_tokens: int = DEFAULT_MAX_TOKENS,
        **sampling: Any,
    ) -> list[State] | Iterator[State]:
        """SGLang's batch: finished states in order of the rows; a failed one raises when it is read.

        `map` is the form that tells which rows failed and why.
        """
        unknown = sorted(sampling.keys() - SAMPLING_KEYWORDS)
        if unknown:
            near = did_you_mean(unknown[0], [*_RUN_BATCH_OPTIONS, *SAMPLING_KEYWORDS])
            raise TypeError(f"run_batch() has no parameter {unknown[0]!r}{near}")
        settled = self.using(backend=backend, sampling=sampling_of({"max_new_tokens": max_new_tokens, **sampling}))
        return run_batch(settled, batch_kwargs, num_threads, progress_bar, generator_style)

    def idle_run(self) -> Run:
        """See `Mappable`."""
        return Run(get_executor(), self._options.backend or NoBackend(), self._options.sampling, self.name)

    def fingerprint(self) -> Mapping[str, str]:
        """See `Mappable`: the body and what it refers to, what is bound to it, its sampling and its backend."""
        from forktree.runtime.fingerprint import fingerprint_function

        return fingerprint_function(self, self._options.backend or get_defaults().backend())

    def failed_run(self, error: BaseException) -> Run:
        """A run that ended with `error` before its body began."""
        run, _ = self._new_run(get_executor(), {})
        run.fail_body(error)
        return run

    def __getitem__(self, name: object) -> NoReturn:
        """A program has no values; the state that its run returns has. Raises LanguageError."""
        raise LanguageError(
            f"{self.name} is a program, and its values are in the state that a run returns: "
            f"write {self.name}.run(…)[{name!r}]{ir.at(ir.caller_source())}"
        )

    def __iter__(self) -> NoReturn:
        """Raises LanguageError: a program is not iterated over."""
        raise LanguageError(
            f"{self.name} is a program, and not iterated over: {self.name}.stream(…).text_iter() gives its text as it "
            f"is made{ir.at(ir.caller_source())}"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> State:
        """Inside another program: start this one on its own fresh text, and return its state at once.

        Raises:
            LanguageError: outside any program; write `run` there.
        """
        scope = current_scope.get()
        if scope is None:
            raise LanguageError(
                f"{self.name}(...) starts a program inside another; outside, write {self.name}.run(...)"
                f"{ir.at(ir.caller_source())}"
            )
        return scope.call(self, args, kwargs)

    # How a run begins

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any], adopt: Callable[[Run], None]) -> tuple[Run, State]:
        """See `Mappable`."""
        return self._start(args, kwargs, adopt)

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any], adopt: Callable[[Run], None]) -> tuple[Run, State]:
        executor = get_executor()
        run, kwargs = self._new_run(executor, kwargs)
        self._body.check(args, kwargs)
        adopt(run)
        state = State(run.cursors[0])
        is_nested = current_scope.get() is not None
        submit = executor.bodies.submit_nested if is_nested else executor.bodies.submit
        launch(self._body, run, state, args, kwargs, submit)
        return run, state

    def start_nested(self, parent: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        """Start on a fresh branch of the caller's record; a synchronous body that finds no thread runs here."""
        executor = parent.executor
        arguments, options = self._split(kwargs, self._options.within(parent.sampling, len(parent.children)))
        self._body.check(args, arguments)
        source = ir.caller_source()
        with parent.lock:
            parent.check_open()
            branch = parent.new_branch_id()
            parent.recorder.add(min(parent.cursors), ir.Call(self.name, branch, source))
        backend = options.backend or parent.backend
        run = Run(executor, backend, options.sampling, self.name, parent, options.speculation)
        Cursor(run, branch, {}, None)
        with parent.lock:
            parent.children.append(run)
        state = State(run.cursors[branch])
        if executor.is_loop_thread:
            launch(self._body, run, state, args, arguments, executor.bodies.submit_nested)
        else:
            launch(self._body, run, state, args, arguments, executor.bodies.start_or_run)
        return State(run.cursors[branch], is_outside=True)

    def call_on(self, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the body on a state that exists, and return what it returns; awaitable on the loop."""
        arguments = {**dict(self._bound), **kwargs}
        self._body.check(args, arguments)
        return call_on(self._body, state, args, arguments)

    def _new_run(self, executor: Executor, kwargs: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
        arguments, options = self._split(kwargs, self._options)
        backend = options.backend or get_defaults().backend()
        run = Run(executor, backend, options.sampling, self.name, speculation=options.speculation)
        Cursor(run, 0, {}, None)
        return run, arguments

    def arguments_of(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], Options]:
        """What a call with these keywords gives the program, and what it gives the run."""
        return self._split(kwargs, self._options)

    def _split(self, kwargs: dict[str, Any], defaults: Options) -> tuple[dict[str, Any], Options]:
        """The program's arguments, and the options of the run."""
        if not self._bound and kwargs.keys() <= self._parameters:
            return kwargs, defaults
        arguments = {**dict(self._bound), **kwargs}
        given = {key: arguments.pop(key, None) for key in _RUN_OPTIONS if key not in self._parameters}
        options = defaults.over(given.get("backend"), given.get("sampling"), given.get("seed"))
        if not _takes_any_keyword(self._fn):
            options = options.over(None, taken_sampling(arguments, self._parameters), None)
            for key in arguments:
                if key not in self._parameters:
                    near = did_you_mean(key, [*self._parameters, *_RUN_OPTIONS, *SAMPLING_KEYWORDS])
                    raise TypeError(f"{self.name}() got an unexpected keyword argument {key!r}{near}")
        return arguments, options

    # Pickling and copying

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        return self

    def __copy__(self) -> Function:
        return self

    def __reduce__(self) -> tuple[Any, ...] | str:
        """By reference to the module's global, as Python functions do."""
        base = global_of(self._fn)
        if base is self:
            return str(self._fn.__qualname__)
        if not isinstance(base, Function) or base._fn is not self._fn:
            raise pickle.PicklingError(
                f"program {self._fn.__qualname__!r} cannot be pickled: it is not a global of {self._fn.__module__}"
            )
        return _rebuild, (self._fn.__module__, self._fn.__qualname__, self._options, self._bound, self._receiver)


def _leave_alone(run: Run) -> None:
    """Nobody looks after this run but the state's reader."""


def _rebuild(
    module: str, qualname: str, options: Options, bound: tuple[tuple[str, Any], ...], receiver: tuple[Any, ...]
) -> Function:
    base = load_global(module, qualname)
    assert isinstance(base, Function)
    return Function(base._fn, options, bound, receiver)


def _num_parameters(fn: Callable[..., Any]) -> int:
    return fn.__code__.co_argcount + fn.__code__.co_kwonlyargcount


def _has_state(fn: Callable[..., Any], num_before: int) -> bool:
    code = fn.__code__
    return code.co_argcount > num_before or bool(code.co_flags & inspect.CO_VARARGS)


def _takes_any_keyword(fn: Callable[..., Any]) -> bool:
    return bool(fn.__code__.co_flags & inspect.CO_VARKEYWORDS)


@overload
def function(fn: Callable[..., Any], /) -> Function: ...
@overload
def function(
    *,
    backend: Backend | None = None,
    sampling: Sampling | None = None,
    api_speculation: bool = False,
    num_api_spec_tokens: int | None = None,
) -> Callable[..., Function]: ...
@keyword_checked(name="function()")
def function(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    backend: Backend | None = None,
    sampling: Sampling | None = None,
    api_speculation: bool = False,
    num_api_spec_tokens: int | None = None,
) -> Any:
    """Make a program of a `def` or `async def`. Its first parameter is the state, whatever its name.

    Args:
        api_speculation: on a backend without token ids, ask in one call for generations in a row with fixed text
            between, each but the last with a `stop`; see `forktree.runtime.speculation`. They are asked for when
            their turn ends, the program reads something, or its body ends; each value comes in one piece.
        num_api_spec_tokens: SGLang's name for the same, with the most tokens of such a call.
    """
    speculation = Speculation(num_api_spec_tokens) if api_speculation or num_api_spec_tokens else None

    def decorate(fn: Callable[..., Any]) -> Function:
        options = Options(speculation=speculation).over(backend, sampling, None)
        if inspect.isfunction(fn) and is_ported(fn):
            options = replace(options, sampling=Sampling(max_tokens=DEFAULT_MAX_TOKENS)).over(None, sampling, None)
        return Function(fn, options)

    return decorate if fn is None else decorate(fn)
