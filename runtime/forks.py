"""`ForkGroup`: the branches of one fork."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, overload

from forktree.lang import ir
from forktree.lang.errors import LanguageError

if TYPE_CHECKING:
    from forktree.runtime.state import State


class ForkGroup:
    """The branches of one fork, in order. As a context manager it joins at the end, unless the block raised."""

    __slots__ = ("_parent", "_states")

    def __init__(self, parent: State, states: list[State]) -> None:
        self._parent = parent
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[State]:
        return iter(self._states)

    @overload
    def __getitem__(self, index: int) -> State: ...
    @overload
    def __getitem__(self, index: slice) -> list[State]: ...
    def __getitem__(self, index: int | slice) -> State | list[State]:
        if isinstance(index, str):
            where = ir.at(ir.caller_source())
            raise LanguageError(f"a variable is read from one branch, as forks[0][{index!r}], or after a join{where}")
        return self._states[index]

    def __setitem__(self, index: int, value: State) -> None:
        """`group[i] += expr` ends here; a branch cannot be replaced by another."""
        if self._states[index] is not value:
            raise LanguageError(f"a branch of a fork cannot be replaced{ir.at(ir.caller_source())}")

    def __iadd__(self, other: object) -> ForkGroup:
        """Append to all branches: the same to each, the item of each from a list, or what a function of the
        index returns.

        Raises:
            LanguageError: a list of another length, or something that cannot be appended.
        """
        for index, (state, item) in enumerate(zip(self._states, self._items(other), strict=True)):
            state += item
            assert state is self._states[index]
        return self

    def _items(self, other: object) -> list[Any]:
        if isinstance(other, list | tuple):
            if len(other) != len(self._states):
                raise LanguageError(f"{len(other)} items for {len(self._states)} branches{ir.at(ir.caller_source())}")
            return list(other)
        if isinstance(other, Callable) and not isinstance(other, ir.Expr):  # type: ignore[arg-type]
            return [other(index) for index in range(len(self._states))]  # type: ignore[operator]
        return [other] * len(self._states)

    def join(self, mode: str = "gather_variable") -> None:
        """Every new variable comes back to the parent as a list, in branch order.

        With "concate_and_append" (SGLang's spelling) the branches' text comes back too, one after another.
        `s.join(*branches)` is the form that gives single values back as themselves.

        Raises:
            LanguageError: a name that the parent already has, or an unknown mode.
        """
        styles: dict[str, ir.JoinStyle] = {"gather_variable": "lists", "concate_and_append": "text"}
        if mode not in styles:
            raise LanguageError(f"join mode is one of {', '.join(styles)}, not {mode!r}{ir.at(ir.caller_source())}")
        self._parent._join(self._states, styles[mode])

    def __enter__(self) -> ForkGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.join()
