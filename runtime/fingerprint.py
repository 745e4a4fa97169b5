"""A program's checksum: what a journal compares, so that results of an older program do not pass for new.

It covers the body's code without comments and layout, what was bound to it, and what the body names: functions,
programs and classes of its own module, texts, and constants (names in capitals). Prompts live in such constants.
Other variables are left out, since programs count and collect in them.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from forktree.lang.errors import LanguageError
from forktree.runtime.stored import store


def fingerprint_function(fn: Callable[..., Any], bound: Mapping[str, Any], extra: Any) -> str:
    """Of a function, of all that it names in its module, of its bound arguments, and of what `extra` prints as."""
    parts = [*_parts_of(inspect.unwrap(fn), set())]
    parts += [f"{name} := {_text_of(value)}" for name, value in bound.items()]
    return hashlib.sha256("\n".join([*parts, repr(extra)]).encode("utf-8", "surrogatepass")).hexdigest()


def _parts_of(fn: Any, seen: set[Any]) -> Iterator[str]:
    seen.add(fn)
    yield _code_of(fn)
    for name, value in sorted(_named_by(fn).items()):
        inner = inspect.unwrap(value) if callable(value) else value
        if isinstance(inner, FunctionType | type):
            if inner.__module__ == fn.__module__ and inner not in seen:
                seen.add(inner)
                yield from _parts_of(inner, seen) if isinstance(inner, FunctionType) else (_code_of(inner),)
        elif isinstance(value, str) or name.isupper():
            yield f"{name} = {_text_of(value)}"


def _named_by(fn: FunctionType) -> dict[str, Any]:
    """The globals that the code names, and what it closes over."""
    found = {name: fn.__globals__[name] for name in _names_in(fn.__code__) if name in fn.__globals__}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return found


def _names_in(code: CodeType) -> set[str]:
    """Global names that are read, in inner functions too; attributes of the same name are not among them."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    return own.union(*(_names_in(const) for const in code.co_consts if isinstance(const, CodeType)))


def _code_of(item: Any) -> str:
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(item))))
    except (OSError, SyntaxError, TypeError):  # typed at a prompt, or made by code
        code = getattr(item, "__code__", None)
        return item.__qualname__ if code is None else repr((code.co_code, code.co_names, _plain_consts(code)))


def _plain_consts(code: CodeType) -> list[Any]:
    """Constants without addresses of code objects, which differ from run to run."""
    return [_plain_consts(const) if isinstance(const, CodeType) else const for const in code.co_consts]


def _text_of(value: Any) -> str:
    """Code of a class or function; other values as stored; of what cannot be stored, only the type."""
    inner = inspect.unwrap(value) if callable(value) else value
    if isinstance(inner, FunctionType | type):
        return _code_of(inner)
    try:
        return store(value)
    except (LanguageError, RecursionError):
        return type(value).__qualname__
