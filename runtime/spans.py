"""What `s.user(...)` and `s.scope(...)` return."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forktree.lang import ir

if TYPE_CHECKING:
    from forktree.runtime.state import State


class Appended:
    """What `s.system("…")` returns: it is on the state already, so `s += s.system("…")` adds nothing more."""

    __slots__ = ("state",)

    def __init__(self, state: State) -> None:
        self.state = state


class RoleTurn:
    """`with s.user(): …`: what is appended inside belongs to the turn."""

    __slots__ = ("_role", "_state")

    def __init__(self, state: State, role: str) -> None:
        self._state = state
        self._role = role

    def __enter__(self) -> State:
        self._state._cursor.append((ir.RoleBegin(self._role, ir.caller_source()),))
        return self._state

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._state._cursor.append((ir.RoleEnd(self._role, ir.caller_source()),))


class ScopeSpan:
    """`with s.scope("name"): …`: the text inside becomes a variable."""

    __slots__ = ("_name", "_state")

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name

    def __enter__(self) -> State:
        self._state._cursor.append((ir.ScopeBegin(self._name, ir.caller_source()),))
        return self._state

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._state._cursor.append((ir.ScopeEnd(self._name, ir.caller_source()),))
