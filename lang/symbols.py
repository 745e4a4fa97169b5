"""Values that only a run can know, as a traced body sees them.

A symbol can be appended, added to text, and formatted in an f-string; attributes and indices of it are symbols
too. Everything that would need the value (truth, comparison, length, iteration …) raises TraceError with the
line. `str()` and f-strings must return real text, so a symbol formats as a marker that `SymbolTable.split`
turns back into its node when the text is appended.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NoReturn

from forktree.lang import ir
from forktree.lang.errors import TraceError

# Private-use characters frame a marker. Mixed case inside makes `upper()` and `lower()` break it, which is
# noticed, where the change would otherwise be lost without a word.
_OPEN, _CLOSE = "\U00100f74", "\U00100f75"
_MARKER = re.compile(f"{_OPEN}Ft([0-9]+)x{_CLOSE}")


class SymbolTable:
    """The markers of one trace. Owned by its tracer."""

    def __init__(self) -> None:
        self._nodes: list[ir.Argument | ir.Variable] = []

    def mark(self, node: ir.Argument | ir.Variable) -> str:
        """Text that stands for the node."""
        self._nodes.append(node)
        return f"{_OPEN}Ft{len(self._nodes) - 1}x{_CLOSE}"

    def split(self, text: str, markup: bool = False, source: ir.Source | None = None) -> list[ir.Appendable]:
        """Text with markers as text and nodes.

        Raises:
            TraceError: a marker was cut or changed by a string method.
        """
        if _OPEN not in text and _CLOSE not in text:
            return [ir.Text(text, markup, source)] if text else []
        nodes: list[ir.Appendable] = []
        for index, piece in enumerate(_MARKER.split(text)):
            if index % 2:
                nodes.append(self._nodes[int(piece)])
            elif _OPEN in piece or _CLOSE in piece:
                raise TraceError(f"a string method changed text whose value is not known yet{ir.at(source)}")
            elif piece:
                nodes.append(ir.Text(piece, markup, source))
        return nodes

    def check_known(self, node: ir.Node) -> None:
        """Raise TraceError when a name, an option, a stop or a constraint of the node holds a symbol."""
        # `repr` escapes private-use characters wherever they stand in the node.
        if repr(_OPEN)[1:-1] in repr(node):
            what = type(node).__name__.lower()
            raise TraceError(f"{what} needs names, options and constraints that are known{ir.at(node.source)}")

    def has_marker(self, value: object) -> bool:
        """Does this text hold a symbol?"""
        return isinstance(value, str) and (_OPEN in value or _CLOSE in value)


class Symbol(ir.Symbolic, ir.Expr):
    """One symbolic value. `node` is what it stands for."""

    __slots__ = ("_node", "_table")

    def __init__(self, node: ir.Argument | ir.Variable, table: SymbolTable) -> None:
        self._node = node
        self._table = table

    def to_node(self) -> ir.Argument | ir.Variable:
        return self._node

    def __format__(self, spec: str) -> str:
        return self._table.mark(replace(self._node, format_spec=spec, source=ir.caller_source()))

    def __str__(self) -> str:
        return self.__format__("")

    def __repr__(self) -> str:
        return self._table.mark(replace(self._node, conversion="r", source=ir.caller_source()))

    def __getattr__(self, name: str) -> Symbol:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._follow(name)

    def __getitem__(self, key: Any) -> Symbol:
        if not isinstance(key, str | int):
            self._refuse(f"is indexed with {key!r}")
        return self._follow(key)

    def _follow(self, key: ir.Key) -> Symbol:
        return Symbol(replace(self._node, path=(*self._node.path, key)), self._table)

    def _refuse(self, what: str) -> NoReturn:
        kind = "argument" if isinstance(self._node, ir.Argument) else "variable"
        raise TraceError(
            f"{kind} {self._node.name!r} {what}, but a trace does not know its value{ir.at(ir.caller_source())}; "
            "give the argument a value, or run the program instead"
        )

    def __bool__(self) -> bool:
        self._refuse("decides a branch")

    def __eq__(self, other: object) -> bool:
        self._refuse("is compared")

    def __hash__(self) -> int:
        self._refuse("is used as a key")

    def __lt__(self, other: object) -> bool:
        self._refuse("is compared")

    __le__ = __gt__ = __ge__ = __lt__

    def __iter__(self) -> NoReturn:
        self._refuse("is iterated over")

    def __len__(self) -> int:
        self._refuse("is measured with len()")

    def __contains__(self, item: object) -> bool:
        self._refuse("is searched")

    def __int__(self) -> int:
        self._refuse("is made an int")

    def __float__(self) -> float:
        self._refuse("is made a float")

    def __index__(self) -> int:
        self._refuse("is used as an index")

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        self._refuse("is called")
