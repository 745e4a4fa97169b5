"""What a function's code reads, imports and writes, found without running or importing anything."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import linecache
import textwrap
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"})
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"})
_CHAIN = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_CHANGING_METHODS = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft"}
    | {"remove", "reverse", "setdefault", "sort", "update"}
)


class Read(NamedTuple):
    """A name from outside, with the attributes that are taken from it: `helper.texts.PROMPT`."""

    name: str
    attributes: tuple[str, ...]


class Import(NamedTuple):
    """An import statement inside a body; `level` counts the dots before the name."""

    module: str
    level: int
    names: tuple[str, ...]


class Write(NamedTuple):
    """`name[...] = `, `name.append(...)` (no attribute), or `name.attribute = ` and the like."""

    name: str
    attribute: str | None


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """The code and that of the functions and classes inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from nested_codes(const)


def reads_of(code: CodeType) -> list[Read]:
    """Sorted, each once; attributes of locals are not among them."""
    found: set[Read] = set()
    for each in nested_codes(code):
        name: str | None = None
        chain: list[str] = []
        for step in dis.get_instructions(each):
            if name is not None and step.opname in _CHAIN:
                chain.append(str(step.argval))
                continue
            if name is not None:
                found.add(Read(name, tuple(chain)))
            name, chain = (str(step.argval), []) if step.opname in _LOADS else (None, [])
    return sorted(found)


def rebound_names(code: CodeType) -> set[str]:
    """Globals and closed-over names that the code itself binds anew, as a counter is."""
    return {
        str(step.argval) for each in nested_codes(code) for step in dis.get_instructions(each) if step.opname in _STORES
    }


def imports_of(code: CodeType) -> list[Import]:
    """The import statements inside a body, in order."""
    found = []
    for each in nested_codes(code):
        consts: list[object] = [0, None]
        for step in dis.get_instructions(each):
            if step.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
                consts.append(step.argval)
            elif step.opname == "IMPORT_NAME":
                level, names = consts[-2:]
                given = tuple(map(str, names)) if isinstance(names, tuple) else ()
                found.append(Import(str(step.argval), level if isinstance(level, int) else 0, given))
    return found


@functools.lru_cache(maxsize=2048)
def writes_of(code: CodeType) -> frozenset[Write]:
    """What the body changes in place, as far as its source is there to read: caches, logs and collected results."""
    try:
        tree = ast.parse(textwrap.dedent(_source_of(code)))
    except (SyntaxError, ValueError):  # typed at a prompt, made by code, or a lambda's half line
        return frozenset()
    return frozenset(write for node in ast.walk(tree) for write in _writes_in(node))


def _source_of(code: CodeType) -> str:
    """As `inspect.getsource`, which looks at every module there is, and so may load some that wait to be used."""
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    return "".join(inspect.getblock(lines)) if lines else ""


def _writes_in(node: ast.AST) -> Iterator[Write]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING_METHODS:
        yield from _target(node.func.value)
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        yield from _target(node.value)
    elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        yield from _target(node)


def _target(node: ast.AST) -> Iterator[Write]:
    if isinstance(node, ast.Name):
        yield Write(node.id, None)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield Write(node.value.id, node.attr)
