"""Running a program's Python body: in the caller's thread, in one of the pool's, or on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forktree.runtime.run import Run, current_scope
from forktree.runtime.state import State
from forktree.runtime.values import Failure, Value, note_line

Submit = Callable[[Callable[[], None]], object]


@dataclass(frozen=True, slots=True)
class Body:
    """A Python function, and the instance that it is a method of, if any."""

    fn: Callable[..., Any]
    receiver: tuple[Any, ...] = ()

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.fn)

    def __call__(self, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.fn(*self.receiver, state, *args, **kwargs)

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise the TypeError that the call would raise."""
        try:
            inspect.signature(self.fn).bind(*self.receiver, None, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.fn.__name__}(): {error}") from None


def launch(body: Body, run: Run, state: State, args: tuple[Any, ...], kwargs: dict[str, Any], submit: Submit) -> None:
    """Start the body and return: on the loop, or as a job for `submit`. Its error is the run's."""
    if body.is_async:
        context = contextvars.copy_context()
        context.run(current_scope.set, run)
        run.executor.spawn(_run_async(body, run, state, args, kwargs), context)
    else:
        submit(functools.partial(contextvars.copy_context().run, _run_quietly, body, run, state, args, kwargs))


def run_here(body: Body, run: Run, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run a synchronous body in this thread. Raises its error, which is the run's too."""
    token = current_scope.set(run)
    try:
        result = body(state, args, kwargs)
    except BaseException as error:
        _note_program_line(error, body.fn, run.name)
        run.fail_body(error)
        raise
    finally:
        current_scope.reset(token)
    run.finish_body(result)


def _run_quietly(body: Body, run: Run, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """In a thread of the pool: the error is raised where the run is read."""
    with contextlib.suppress(BaseException):
        run_here(body, run, state, args, kwargs)


async def _run_async(body: Body, run: Run, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    run.body_task = asyncio.current_task()
    try:
        run.check_open()
        result = await body(state, args, kwargs)
    except BaseException as error:
        reason = run.cancelled_by if isinstance(error, asyncio.CancelledError) else None
        _note_program_line(error, body.fn, run.name)
        run.fail_body(reason or error)
    else:
        run.finish_body(result)


def call_on(body: Body, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the body on a state that exists, and return what it returns; awaitable on the loop."""
    executor = state._run.executor
    if executor.is_loop_thread:
        return _call_on_loop(body, state, args, kwargs)
    if not body.is_async:
        return body(state, args, kwargs)
    result = Value()

    async def work() -> None:
        try:
            result.set(await body(state, args, kwargs))
        except BaseException as error:
            result.fail(Failure(error))

    executor.spawn(work(), contextvars.copy_context())
    executor.wait(lambda: result.is_set, result.on_set, instead="await it")
    return result.get()


async def _call_on_loop(body: Body, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if body.is_async:
        return await body(state, args, kwargs)
    result, context = Value(), contextvars.copy_context()

    def work() -> None:
        try:
            result.set(context.run(body, state, args, kwargs))
        except BaseException as error:
            result.fail(Failure(error))

    state._run.executor.bodies.submit_nested(work)
    await result.wait()
    return result.get()


def _note_program_line(error: BaseException, fn: Callable[..., Any], name: str) -> None:
    """Name the program's line that the error passed through."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is fn.__code__:
            line = trace.tb_lineno
        trace = trace.tb_next
    if line is not None:
        note_line(error, f"program {name} ({fn.__code__.co_filename}:{line})")
