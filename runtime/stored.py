"""Values as JSON text and back, for journals.

Plain data is JSON. Dates, bytes, tuples, sets, enums, pydantic models and dataclasses are objects with one "$…"
key that names them. Reading makes an instance only of a class that the running program has imported already and
that is an enum, a pydantic model or a dataclass: a file cannot name code to import or to call.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import functools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from forktree.lang.errors import LanguageError
from forktree.runtime import protocol


def store(value: Any) -> str:
    """JSON text. Raises LanguageError naming the part that cannot be stored."""
    return json.dumps(_encode(value), ensure_ascii=False, separators=(",", ":"))


def restore(text: str) -> Any:
    """The inverse.

    Raises:
        LanguageError: the text is not what `store` writes, a class is not there any more, or its data does not fit it.
    """
    with _unreadable("value"):
        return _decode(json.loads(text))


@contextmanager
def _unreadable(what: str) -> Iterator[None]:
    try:
        yield
    except LanguageError:
        raise
    except Exception as error:  # the readers of dates, numbers and bytes have their own errors; so has deep nesting
        raise LanguageError(f"a stored {what} cannot be read ({type(error).__name__}: {error})") from error


_SPELLED: Mapping[type, tuple[str, Callable[[Any], str]]] = MappingProxyType(
    {
        dt.datetime: ("datetime", dt.datetime.isoformat),
        dt.date: ("date", dt.date.isoformat),
        dt.time: ("time", dt.time.isoformat),
        Decimal: ("decimal", str),
        bytes: ("bytes", lambda value: base64.b64encode(value).decode("ascii")),
    }
)
_READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "$datetime": dt.datetime.fromisoformat,
        "$date": dt.date.fromisoformat,
        "$time": dt.time.fromisoformat,
        "$decimal": Decimal,
        "$bytes": base64.b64decode,
        "$float": float,
        "$tuple": lambda items: tuple(map(_decode, items)),
        "$set": lambda items: set(map(_decode, items)),
        "$frozenset": lambda items: frozenset(map(_decode, items)),
        "$dict": lambda pairs: {_decode(key): _decode(item) for key, item in pairs},
    }
)


def _encode(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind in _SPELLED:
        name, spell = _SPELLED[kind]
        return {f"${name}": spell(value)}
    if kind is list:
        return [_encode(item) for item in value]
    if kind is tuple:
        return {"$tuple": [_encode(item) for item in value]}
    if kind in (set, frozenset):  # sorted, since their order differs from process to process
        return {f"${kind.__name__}": sorted(map(_encode, value), key=json.dumps)}
    if kind is dict:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _encode(item) for key, item in value.items()}
        return {"$dict": [[_encode(key), _encode(item)] for key, item in value.items()]}
    return _encode_instance(value)


def _encode_instance(value: Any) -> Any:
    cls = type(value)
    if isinstance(value, enum.Enum):
        return {"$class": _name_of(cls), "data": _encode(value.value)}
    if hasattr(cls, "model_validate"):
        return {"$class": _name_of(cls), "data": value.model_dump(mode="json")}
    if dataclasses.is_dataclass(value):
        data = {item.name: _encode(getattr(value, item.name)) for item in dataclasses.fields(value) if item.init}
        return {"$class": _name_of(cls), "data": data}
    raise LanguageError(f"{value!r} ({cls.__name__}) cannot be stored; return or assign plain data, or a typed value")


def _name_of(cls: type) -> str:
    name = f"{cls.__module__}:{cls.__qualname__}"
    if _class_of(name) is not cls:
        raise LanguageError(f"{cls.__qualname__} cannot be stored: it is not a global of its module")
    return name


def _class_of(name: str) -> Any:
    module, _, qualname = name.partition(":")
    try:
        return functools.reduce(getattr, qualname.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return None


def _decode(data: Any) -> Any:
    if isinstance(data, list):
        return [_decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    if "$class" in data:
        return _decode_instance(data["$class"], data["data"])
    if len(data) == 1:
        ((key, inner),) = data.items()
        if key in _READERS:
            return _READERS[key](inner)
    return {key: _decode(item) for key, item in data.items()}


def _decode_instance(name: str, data: Any) -> Any:
    cls = _class_of(name)
    try:
        if isinstance(cls, type) and issubclass(cls, enum.Enum):
            return cls(_decode(data))
        if isinstance(cls, type) and hasattr(cls, "model_validate"):
            return cls.model_validate(data)
        if isinstance(cls, type) and dataclasses.is_dataclass(cls):
            return cls(**{key: _decode(item) for key, item in data.items()})
    except Exception as error:
        raise LanguageError(
            f'a stored {name} does not fit the class any more; map with on_change="rerun", or another file: {error}'
        ) from error
    raise LanguageError(f"a stored value is a {name}, which the program has not imported, or has no more")


_SEGMENTS: Mapping[str, type] = MappingProxyType(
    {
        cls.__name__: cls
        for cls in (
            protocol.Text,
            protocol.RoleBegin,
            protocol.RoleEnd,
            protocol.Generated,
            protocol.ForkMark,
            protocol.Image,
            protocol.Tools,
        )
    }
)


def store_branch(branch: protocol.Branch | None) -> str:
    """The segments of a branch."""
    segments = [] if branch is None else branch.segments()
    fields = [
        [type(segment).__name__, *(_encode(getattr(segment, item.name)) for item in dataclasses.fields(segment))]
        for segment in segments
    ]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def restore_branch(text: str) -> protocol.Branch | None:
    """The inverse: a fresh chain. Raises LanguageError: the text is not what `store_branch` writes."""
    branch = None
    with _unreadable("branch"):
        for name, *arguments in json.loads(text):
            segment = _SEGMENTS[name](*map(_decode, arguments))
            for item in dataclasses.fields(segment):
                _check_field(item, getattr(segment, item.name))
            branch = protocol.Branch(branch, segment)
    return branch


def _check_field(item: dataclasses.Field[Any], value: Any) -> None:
    kinds = {"str": str, "bool": bool, "int": int, "bytes": bytes, "tuple[int, ...]": tuple}
    is_sound = type(value) is kinds[str(item.type)]
    if isinstance(value, tuple):
        is_sound = is_sound and all(type(each) is int for each in value)
    if not is_sound:
        raise TypeError(f"{item.name} must be {item.type}, not {value!r:.40}")
