"""Checksums of values that are the same in every process: no address, no hash order, no clock, nothing called.

Data counts by value: texts, numbers, containers, enum members, dataclasses, pydantic models and plain instances of
the user's classes. Code and classes count by a reference that the caller gives. Anything else (an open file, a
lock, a client, an object of a library) counts by its type alone, and so do names that sound like secrets.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import hashlib
import pathlib
import re
import string
import types
import typing
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MAX_VALUES = 50_000
"""Values of one global or default that count one by one; of longer containers the rest counts by its number."""

MAX_TEXT = 1 << 20
"""Characters or bytes of one text that count; of a longer one its two ends and its length."""

_SECRET = re.compile(r"(^|_)(api_?key|secret(_key)?|password|passwd|(access|auth|api|bearer)_?token)$", re.IGNORECASE)
_SPELLED = (
    dt.date,
    dt.time,
    dt.timedelta,
    dt.tzinfo,
    decimal.Decimal,
    fractions.Fraction,
    pathlib.PurePath,
    uuid.UUID,
    range,
    slice,
    typing.TypeVar,
)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)

Refer = Callable[[Any], str | None]


def is_secret(name: object) -> bool:
    """Is this the name of a key or a password? Such values never count."""
    return isinstance(name, str) and _SECRET.search(name) is not None


class ValueDigest:
    """The checksum of one value.

    Args:
        refer: the text for a function, class, module or program, and None for anything else.
        is_left_out: (owner, attribute): does this attribute change while programs run?
    """

    def __init__(self, refer: Refer, is_left_out: Callable[[Any, str], bool]) -> None:
        self._refer = refer
        self._is_left_out = is_left_out
        self._hash = hashlib.sha256()
        self._num_left = MAX_VALUES
        self._open: set[int] = set()  # what is being written now, against cycles

    def of(self, *values: Any) -> str:
        """The checksum as hexadecimal text; once per instance."""
        for value in values:
            self._feed(value)
        return self._hash.hexdigest()

    def _put(self, kind: str, text: str = "") -> None:
        self._hash.update(f"{kind}:{len(text)}:{text};".encode("utf-8", "surrogatepass"))

    def _feed(self, value: Any) -> None:
        self._num_left -= 1
        if self._num_left < 0:
            return
        if value is None or type(value) in (bool, float, complex):
            self._put(type(value).__name__, repr(value))
        elif type(value) is int:
            self._put("int", f"{value:x}")
        elif type(value) is str:
            self._put("str", _ends_of(value))
        elif type(value) in (bytes, bytearray):
            self._put("bytes", hashlib.sha256(_ends_of(value)).hexdigest())
        elif id(value) in self._open:
            self._put("cycle")
        else:
            self._open.add(id(value))
            try:
                self._feed_object(value)
            except RecursionError:
                self._put("deep")
            finally:
                self._open.discard(id(value))

    def _feed_object(self, value: Any) -> None:
        referred = self._refer(value)
        if referred is not None:
            self._put("code", referred)
        elif typing.get_origin(value) is not None:
            self._feed_items("generic", (typing.get_origin(value), *typing.get_args(value)))
        elif isinstance(value, types.CodeType):
            self._feed_code(value)
        elif isinstance(value, enum.Enum):
            self._feed_items("enum", (type(value), value.name, value.value))
        elif isinstance(value, str | bytes | int | float):  # a subclass; its own repr is not asked
            self._feed_items("of", (type(value), _plain(value)))
        elif isinstance(value, list | tuple | deque | set | frozenset | dict | types.MappingProxyType):
            self._feed_container(value)
        elif isinstance(value, _SPELLED):
            self._put(type(value).__qualname__, repr(value))
        else:
            self._feed_instance(value)

    def _feed_container(self, value: Any) -> None:
        if isinstance(value, dict | types.MappingProxyType):
            self._put("dict", str(len(value)))
            for key, item in list(value.items()):
                self._feed(key)
                self._feed_named(key, item)
        elif isinstance(value, set | frozenset):
            digests = (ValueDigest(self._refer, self._is_left_out).of(item) for item in value)
            self._feed_items("set", sorted(digests) if len(value) <= MAX_VALUES else [len(value)])
        else:
            self._feed_items("list" if isinstance(value, list) else "sequence", list(value))
        if type(value).__module__ not in ("builtins", "collections"):
            self._feed(type(value))

    def _feed_items(self, kind: str, items: Iterable[Any]) -> None:
        items = list(items)
        self._put(kind, str(len(items)))
        for item in items[: max(self._num_left, 0) + 1]:
            self._feed(item)

    def _feed_named(self, name: Any, value: Any) -> None:
        if is_secret(name):
            self._put("secret")
        else:
            self._feed(value)

    def _feed_code(self, code: types.CodeType) -> None:
        """Without file, lines, and the code's own name; constants are told apart by type."""
        self._put("code", hashlib.sha256(code.co_code + getattr(code, "co_exceptiontable", b"")).hexdigest())
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._feed_items("names", (counts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
        self._feed_items("consts", code.co_consts)

    def _feed_instance(self, value: Any) -> None:
        match value:
            case types.MethodType():
                self._feed_items("method", (value.__func__, value.__self__))
            case functools.partial():
                self._feed_items("partial", (value.func, value.args, value.keywords))
            case re.Pattern():
                self._feed_items("pattern", (value.pattern, value.flags))
            case string.Template():
                self._feed_items("template", (type(value), value.template))
            case staticmethod() | classmethod():
                self._feed_items(type(value).__name__, (value.__func__,))
            case property():
                self._feed_items("property", (value.fget, value.fset, value.fdel))
            case functools.cached_property():
                self._feed_items("property", (value.func,))
            case typing.ForwardRef():
                self._put("forward", value.__forward_arg__)
            case _:
                self._feed_attributes(value)

    def _feed_attributes(self, value: Any) -> None:
        self._feed(type(value))
        attributes = _attributes_of(value)
        if attributes is None:
            return
        for name, item in attributes.items():
            if not self._is_left_out(value, name):
                self._put("attribute", name)
                self._feed_named(name, item)


def _attributes_of(value: Any) -> Mapping[str, Any] | None:
    """Of a dataclass, a pydantic model, a wrapper of a function, or an instance of the user's class."""
    from forktree.runtime.origins import library_of

    cls = type(value)
    own: dict[str, Any] = getattr(value, "__dict__", None) or {}
    if dataclasses.is_dataclass(value):
        return {item.name: _slot(value, item.name) for item in dataclasses.fields(value)}
    if "__pydantic_fields_set__" in dir(cls):
        return {name: item for name, item in own.items() if not name.startswith("_")}
    if "__wrapped__" in own:
        return {"__wrapped__": own["__wrapped__"]}
    if library_of(cls.__module__) is not None:
        return None
    slots = [name for base in cls.__mro__ for name in _names_of_slots(base)]
    return {**{name: _slot(value, name) for name in slots}, **own}


def _names_of_slots(cls: type) -> list[str]:
    slots = cls.__dict__.get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _slot(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def _plain(value: Any) -> Any:
    base: Any = next(each for each in (str, bytes, int, float) if isinstance(value, each))
    return base.__getnewargs__(value)[0]  # what it holds, whatever its `__str__` says


def _ends_of(text: Any) -> Any:
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    size = str(len(text))
    return text[:half] + (size if isinstance(text, str) else size.encode()) + text[-half:]
