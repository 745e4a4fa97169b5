"""`State`: what a program holds. Appending returns at once; reading waits.

The program's own state knows at once when a name can never come: nobody else assigns it. A state that is held
outside its program (from `stream`, or from calling a program inside another) waits for names until the
program's body has ended.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from forktree.lang import expressions, ir
from forktree.lang.errors import LanguageError, ParameterError, TimeoutError, UndefinedVariableError
from forktree.runtime import protocol, streams
from forktree.runtime.forks import ForkGroup
from forktree.runtime.messages import messages_of
from forktree.runtime.missing import undefined
from forktree.runtime.record import Meta
from forktree.runtime.spans import Appended, RoleTurn, ScopeSpan
from forktree.runtime.values import Value, wait_on_loop

if TYPE_CHECKING:
    from forktree.runtime.cursor import Cursor
    from forktree.runtime.function import Function
    from forktree.runtime.programs import Program
    from forktree.runtime.run import Run


_IN_WITH: object = object()
"""No expression: the turn is written in a `with` block. None is a value that somebody has lost, and is refused."""


class State:
    """One branch of a running program."""

    __slots__ = ("__weakref__", "_cursor", "_is_outside")

    def __init__(self, cursor: Cursor, *, is_outside: bool = False) -> None:
        self._cursor = cursor
        self._is_outside = is_outside

    def __format__(self, spec: str) -> str:
        raise LanguageError(
            f"a state does not go into an f-string: write s['name'] or s.text(){ir.at(ir.caller_source())}"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):
                raise AttributeError(name)
            raise AttributeError(f"a state has no attribute {name!r}; a variable is read as s[{name!r}]")

    def __add__(self, other: object) -> NoReturn:
        """Raises LanguageError: appending is `s += expr`."""
        raise LanguageError(f"a state is appended to in place: write s += expr{ir.at(ir.caller_source())}")

    @property
    def _run(self) -> Run:
        return self._cursor.run

    def __repr__(self) -> str:
        names = ", ".join(self._cursor.names) or "no variables yet"
        return f"<State of {self._run.name}, branch {self._cursor.id}: {names}>"

    # Appending

    def __iadd__(self, expr: object) -> State:
        """Append text, an expression, or a sum of them; returns at once.

        Raises:
            LanguageError: it is neither, at this line.
            RoleError: turns nest, or one ends that is not open.
        """
        if isinstance(expr, Appended):
            if expr.state is not self:
                raise LanguageError(f"that turn is on another state already{ir.at(ir.caller_source())}")
            return self
        if isinstance(expr, RoleTurn | ScopeSpan):
            where = ir.at(ir.caller_source())
            raise LanguageError(f"a turn without content is used as `with s.user(): …`, not appended{where}")
        self._cursor.append(ir.nodes_of(expr))
        return self

    def system(self, expr: object = _IN_WITH) -> Any:
        """Append a system turn; without an expression, `with s.system(): …`."""
        return self._turn("system", expr)

    def user(self, expr: object = _IN_WITH) -> Any:
        """Append a user's turn; without an expression, `with s.user(): …`."""
        return self._turn("user", expr)

    def assistant(self, expr: object = _IN_WITH) -> Any:
        """Append the model's turn; without an expression, `with s.assistant(): …`."""
        return self._turn("assistant", expr)

    def tool(self, expr: object = _IN_WITH) -> Any:
        """Append a tool's result; without an expression, `with s.tool(): …`."""
        return self._turn("tool", expr)

    def role(self, name: str, expr: object = _IN_WITH) -> Any:
        """Append a turn of any role; without an expression, `with s.role(name): …`."""
        return self._turn(name, expr)

    def _turn(self, role: str, expr: object) -> Appended | RoleTurn:
        if expr is _IN_WITH:
            return RoleTurn(self, role)
        self._cursor.append(expressions.role(role, expr).items)
        return Appended(self)

    def scope(self, name: str) -> ScopeSpan:
        """`with s.scope("name"): …`: the text that is appended inside becomes a variable."""
        if not isinstance(name, str) or not name:
            raise LanguageError(
                f"scope takes a variable's name as non-empty text, not {name!r}{ir.at(ir.caller_source())}"
            )
        return ScopeSpan(self, name)

    var_scope = scope  # SGLang's name

    def call(self, function: Function, *args: Any, **kwargs: Any) -> Any:
        """Run another program's body on this state and return what it returns.

        In an `async def` body the result must be awaited.
        """
        if not hasattr(function, "call_on"):
            where = ir.at(ir.caller_source())
            raise LanguageError(
                f"s.call takes a program, made by @ft.function, and its arguments, not {function!r}{where}"
            )
        return function.call_on(self, args, kwargs)

    # Variables

    def __getitem__(self, name: str) -> Any:
        """The value; waits for it.

        Raises:
            UndefinedVariableError: no path of the program can set the name any more.
            IncompleteError: a constrained output was cut.
            Exception: the generation's own error, or the program's.
        """
        return self.get(name)

    def get(self, name: str, timeout: float | None = None) -> Any:
        """As `s[name]`, for at most `timeout` seconds. Raises TimeoutError when it is not there by then."""
        value = self._find(name, timeout)
        instead = f"await s.aget({name!r})"
        if not self._wait(value, instead, timeout):
            raise TimeoutError(f"variable {name!r} was not there within {timeout} s")
        return value.get()

    async def aget(self, name: str, timeout: float | None = None) -> Any:
        """As `get`, awaited: in `async def` programs and in any event loop."""
        known = self._bound(name)
        if known is not None and known.is_set:
            return known.get()
        self._release()
        try:
            async with asyncio.timeout(timeout):
                while (value := self._bound(name)) is None:
                    await wait_on_loop(self._register_name(name))
                await value.wait()
        except builtins.TimeoutError as error:
            raise TimeoutError(f"variable {name!r} was not there within {timeout} s") from error
        return value.get()

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a variable in program order: a generation of that name that is still pending is not waited for."""
        if not isinstance(name, str) or not name:
            raise LanguageError(f"a variable's name is non-empty text, not {name!r}{ir.at(ir.caller_source())}")
        self._cursor.assign(name, value, ir.caller_source())

    def __contains__(self, name: str) -> bool:
        """Is the variable set? Waits for one that is pending; raises its error if it failed."""
        try:
            self.get(name)
        except UndefinedVariableError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        raise LanguageError(
            f"a state is not iterated over: s.text_iter() gives its text as it is made, s.text_iter('name') that of a "
            f"variable, s.variables() the dict of its variables{ir.at(ir.caller_source())}"
        )

    def __aiter__(self) -> AsyncIterator[str]:
        raise LanguageError(
            f"a state is not iterated over: s.text_async_iter() gives its text as it is made{ir.at(ir.caller_source())}"
        )

    def variables(self) -> dict[str, Any]:
        """Every variable of the branch, waited for."""
        self._settle_outside()
        return {name: self.get(name) for name in list(self._cursor.names)}

    def meta(self, name: str) -> Meta:
        """How the variable was made: finish reason, token counts, log-probabilities, options. Waits for it."""
        value = self._find(name, None)
        self._wait(value, f"await s.aget({name!r}) first", None)
        if value.failure is not None:
            value.failure.throw()
        return value.meta or Meta()

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """SGLang's name for `meta`, as a dict."""
        return self.meta(name).to_dict()

    # The whole branch

    def text(self) -> str:
        """The program's own text and the values, joined; what a chat template writes around turns is not shown."""
        branch = self._branch()
        return "" if branch is None else branch.text()

    def messages(self) -> list[dict[str, Any]]:
        """The turns as `{"role": …, "content": …}`; text outside turns belongs to none."""
        return messages_of(self._branch())

    def tokens(self) -> tuple[int, ...]:
        """The token ids of the whole branch, template included.

        Raises:
            UnsupportedError: the backend has no token ids.
        """
        return self._run.tokens(self._branch())

    async def atokens(self) -> tuple[int, ...]:
        """As `tokens`, awaited."""
        await self.asettle()
        return await self._run.backend.tokens(self._branch())

    def settle(self) -> State:
        """Wait until everything that was appended so far is done. Raises the first error."""
        self._branch()
        return self

    sync = settle

    async def asettle(self) -> State:
        """As `settle`, awaited; afterwards `text()` and `messages()` do not wait."""
        value = self._cursor.tip_value()
        self._release()
        await value.wait()
        value.get()
        return self

    def error(self) -> BaseException | None:
        """The error that the program ended with, or None; waits for its end."""
        run = self._run
        self._wait_settled("await s.asettle()")
        failure = run.body.failure or next((each for each in run.failures if not each.observed), None)
        return None if failure is None else failure.error

    @property
    def ret_value(self) -> Any:
        """What the body returned; waits for its end and raises its error."""
        self._wait(self._run.body, "read it after the program has ended", None)
        return self._run.body.get()

    @property
    def program(self) -> Program:
        """The IR of what ran so far, in all branches."""
        from forktree.runtime.programs import Program

        recorder = self._run.recorder
        return Program(recorder.name, (), tuple(recorder.ops), sampling=self._run.outermost.sampling)

    # Branches

    def fork(
        self, size_or_items: int | Sequence[Any] = 1, *, on_error: Literal["cancel", "continue"] = "cancel"
    ) -> ForkGroup:
        """Branches that go on from here alone and at the same time.

        Args:
            size_or_items: how many, at least 1; or a list, and each branch begins with its item.
            on_error: a failed branch cancels its siblings, or they go on.

        Raises:
            ParameterError: fewer than one branch.
            LanguageError: neither a number nor a list.
        """
        source = ir.caller_source()
        items = None if isinstance(size_or_items, int) else _items_of(size_or_items, source)
        count = size_or_items if isinstance(size_or_items, int) else len(items or ())
        if isinstance(size_or_items, bool) or count < 1:
            raise ParameterError(f"fork needs at least one branch, not {size_or_items!r}{ir.at(source)}")
        if on_error not in ("cancel", "continue"):
            raise LanguageError(f'on_error must be "cancel" or "continue", not {on_error!r}{ir.at(source)}')
        group = ForkGroup(self, [State(cursor) for cursor in self._cursor.fork(count, on_error, source)])
        if items is not None:
            group += items
        return group

    def join(self, *branches: State | ForkGroup) -> State:
        """Variables of the branches come back; their text does not.

        A name set in one branch comes back as its value, in several as a list in branch order. Waits for
        nothing: what is pending stays pending under its name.

        Raises:
            LanguageError: a name that this state already has, or something that is no branch of it.
        """
        self._join(branches, "values")
        return self

    def _join(self, branches: Sequence[State | ForkGroup], style: ir.JoinStyle) -> None:
        source = ir.caller_source()
        states = [state for each in branches for state in (each if isinstance(each, ForkGroup) else (each,))]
        for state in states:
            if isinstance(state, list | tuple):
                where = ir.at(source)
                raise LanguageError(
                    f"join takes branches one by one, not in a {type(state).__name__}; write join(*branches){where}"
                )
            if not isinstance(state, State):
                raise LanguageError(f"join takes branches of s.fork() or s.copy(), not {state!r}{ir.at(source)}")
        if not states:
            raise LanguageError(f"join needs at least one branch{ir.at(source)}")
        self._cursor.join([state._cursor for state in states], style, source)

    def copy(self) -> Copy:
        """A branch that begins here. As a context manager it joins at the end."""
        (cursor,) = self._cursor.fork(1, "cancel", ir.caller_source())
        return Copy(cursor, self)

    # Streaming

    def text_iter(self, var: str | None = None) -> Iterator[str]:
        """Pieces of one variable, or of the branch's whole text, as they are made. See streams.py."""
        return streams.iterate(self, var)

    @overload
    def text_async_iter(
        self, var: str | None = None, return_meta_data: Literal[False] = False
    ) -> AsyncIterator[str]: ...
    @overload
    def text_async_iter(
        self, var: str, return_meta_data: Literal[True]
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]: ...
    def text_async_iter(self, var: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """As `text_iter`, for `async for`. With `return_meta_data` (SGLang's) pairs of a piece and a dict.

        The dicts have the keys of `meta`. The last pair is an empty piece with the variable's whole meta.

        Raises:
            LanguageError: meta data without a variable: the whole branch has none.
        """
        if not return_meta_data:
            return streams.iterate_async(self, var)
        if var is None:
            where = ir.at(ir.caller_source())
            raise LanguageError(f"return_meta_data goes with a variable: text_async_iter(name, True){where}")
        return streams.iterate_with_meta(self, var)

    def cancel(self) -> None:
        """Stop the program that this state belongs to."""
        self._run.cancel()

    # Waiting

    def _release(self) -> None:
        """The program is about to wait: nothing may be held back any more. A reader outside waits for the program."""
        if not self._is_outside:
            self._run.release()

    def _wait(self, value: Value, instead: str, timeout: float | None) -> bool:
        self._release()
        return self._run.executor.wait(lambda: value.is_set, value.on_set, instead=instead, timeout=timeout)

    def _wait_settled(self, instead: str) -> None:
        self._release()
        run = self._run
        run.executor.wait(lambda: run.is_settled, run.on_settled, instead=instead)

    def _settle_outside(self) -> None:
        """Outside, nothing is whole before the body has ended; what it ended with is raised here."""
        if self._is_outside:
            run = self._run
            self._wait(run.body, "await s.asettle()", None)
            if run.is_settled and run.outcome is not None:
                run.outcome.throw()

    def _branch(self) -> protocol.Branch | None:
        self._settle_outside()
        value = self._cursor.tip_value()
        self._wait(value, "await s.asettle() first", None)
        return value.get()  # type: ignore[no-any-return]

    def _find(self, name: str, timeout: float | None) -> Value:
        """The variable's value, pending or not; waits for the name itself where it may still be bound."""
        run = self._run
        while (value := self._bound(name)) is None:
            is_known = self._is_decided(name)
            if not run.executor.wait(
                is_known, self._register_name(name), instead=f"await s.aget({name!r})", timeout=timeout
            ):
                raise TimeoutError(f"variable {name!r} was not set within {timeout} s")
        return value

    def _bound(self, name: str) -> Value | None:
        """The variable's value, or None while its name may still be bound.

        Raises:
            UndefinedVariableError: it cannot be bound any more.
            Exception: the program's own error, when that is why.
        """
        if not isinstance(name, str):
            raise UndefinedVariableError(f"a variable is read by its name, not by {name!r}{ir.at(ir.caller_source())}")
        run = self._run
        has_ended = not self._is_outside or run.body.is_set
        value = self._cursor.names.get(name)
        if value is not None or not has_ended:
            return value
        if self._is_outside and run.body.failure is not None:
            run.body.failure.throw()
        raise UndefinedVariableError(f"{undefined(name, self._cursor)}{ir.at(ir.caller_source())}")

    def _is_decided(self, name: str) -> Any:
        return lambda: name in self._cursor.names or self._run.body.is_set

    def _register_name(self, name: str) -> Any:
        is_decided = self._is_decided(name)

        def register(callback: Any) -> None:
            def look() -> None:
                if is_decided():
                    callback()
                    return
                self._run.on_name(look)
                if is_decided():
                    callback()

            look()

        return register


def _items_of(items: Any, source: ir.Source | None) -> list[Any]:
    """What each branch of a fork begins with."""
    if isinstance(items, str):
        raise LanguageError(
            f"fork takes a number of branches or a list, not one text; write list({items!r}), if each character is "
            f"one, or [{items!r}]{ir.at(source)}"
        )
    if isinstance(items, ir.Expr) and not isinstance(items, ir.Symbolic):
        raise LanguageError(
            f"fork takes a number of branches or a list, not one expression; write [expr]{ir.at(source)}"
        )
    if not isinstance(items, Iterable):
        meant = f"; write {int(items)}" if isinstance(items, float) and items.is_integer() else ""
        raise LanguageError(
            f"fork takes a whole number of branches or a list of their items, not {items!r}{meant}{ir.at(source)}"
        )
    return list(items)


class Copy(State):
    """A branch made by `copy`. As a context manager it joins its variables at the end, unless the block raised."""

    __slots__ = ("_origin",)

    def __init__(self, cursor: Cursor, origin: State) -> None:
        super().__init__(cursor)
        self._origin = origin

    def __enter__(self) -> Copy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._origin.join(self)
