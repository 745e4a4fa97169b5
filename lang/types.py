"""Python types as constraints: what `schema=` and `dtype=` accept, and how the output becomes a typed value.

An `Output` pairs the constraint on the text with the way back: `kind` names the way in data (so a program
survives JSON), `parse` is the function. A type's schema comes from pydantic, loaded when first needed; objects
that come from a Python type are closed (`additionalProperties: false`), a schema written by the user is left
as it is.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from forktree.lang.constraints import (
    ChoicesSpec,
    ConstraintSpec,
    GrammarSpec,
    HasSpec,
    ReasoningSpec,
    RegexSpec,
    SchemaSpec,
    SubstringSpec,
    TagsSpec,
)
from forktree.lang.errors import ConstraintError, LanguageError
from forktree.lang.verbatim import Verbatim, dumped_schema

Kind = Literal["text", "json", "int", "float", "bool", "date", "datetime", "time", "choice"]


@dataclass(frozen=True, slots=True)
class Output:
    """A constraint, and how text that satisfies it becomes a value.

    Attributes:
        kind: how to parse, for when `parse` is lost (a program that came through JSON).
        label: the type as the user wrote it, for printing.
        parse: text to value; not part of equality, since equal types may bring different functions.
    """

    spec: ConstraintSpec
    kind: Kind = "text"
    label: str = field(default="", compare=False)
    parse: Callable[[str], Any] | None = field(default=None, compare=False, repr=False)

    def value_of(self, text: str) -> Any:
        """The typed value. Raises what the type's own validation raises."""
        return (self.parse or _PARSERS[self.kind])(text)


def _parse_bool(text: str) -> bool:
    return text.strip() == "True"


_PARSERS: Mapping[Kind, Callable[[str], Any]] = types.MappingProxyType(
    {
        "text": str,
        "choice": str,
        "json": json.loads,
        "int": int,
        "float": float,
        "bool": _parse_bool,
        "date": dt.date.fromisoformat,
        "datetime": dt.datetime.fromisoformat,
        "time": dt.time.fromisoformat,
    }
)

# Gregorian dates of years 1 to 9999, exactly: what `date.fromisoformat` takes in its long form.
_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = rf"(?:{_YEAR}-{_DAY}|{_LEAP}-02-29)"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_INT = r"-?(?:0|[1-9][0-9]*)"
_FLOAT = rf"{_INT}(?:\.[0-9]{{1,17}})?"

_SCALARS: Mapping[type, tuple[ConstraintSpec, Kind]] = types.MappingProxyType(
    {
        int: (RegexSpec(_INT), "int"),
        float: (RegexSpec(_FLOAT), "float"),
        bool: (ChoicesSpec(("True", "False")), "bool"),
        str: (SchemaSpec('{"type": "string"}'), "json"),
        dt.date: (RegexSpec(_DATE), "date"),
        dt.datetime: (RegexSpec(f"{_DATE}T{_TIME}"), "datetime"),
        dt.time: (RegexSpec(_TIME), "time"),
    }
)


def output_from_dtype(dtype: Any) -> Output:
    """A Python type as plain text where it has a plain spelling (`24`, `2024-03-01`), as JSON otherwise.

    `bool` is True or False; `str` is a quoted JSON string, whose value comes without quotes; an Enum or a
    Literal of strings is one of its values, unquoted.
    """
    if isinstance(dtype, HasSpec) and not isinstance(dtype, type):
        return output_from_spec(dtype.spec)
    if isinstance(dtype, type) and dtype in _SCALARS:
        spec, kind = _SCALARS[dtype]
        return Output(spec, kind, dtype.__name__)
    if isinstance(dtype, str | dict):
        raise LanguageError(
            f"dtype= takes a Python type such as int or list[str], not {dtype!r}; a schema goes to schema="
        )
    members = _string_members(dtype)
    if members is not None:
        return Output(ChoicesSpec(tuple(members)), "choice", type_label(dtype), members.__getitem__)
    return output_from_schema(dtype)


def _string_members(dtype: Any) -> dict[str, Any] | None:
    """Spelling to value, for an Enum or Literal whose values are all strings."""
    if isinstance(dtype, type) and issubclass(dtype, enum.Enum):
        values: dict[Any, Any] = {member.value: member for member in dtype}
    elif typing.get_origin(dtype) is Literal:
        values = {value: value for value in typing.get_args(dtype)}
    else:
        return None
    return values if values and all(isinstance(value, str) for value in values) else None


def output_from_schema(schema: Any) -> Output:
    """A dict or JSON text as written; a Python type through pydantic, its objects closed."""
    if isinstance(schema, HasSpec) and not isinstance(schema, type):
        return output_from_spec(schema.spec)
    if isinstance(schema, bool):
        return Output(SchemaSpec(json.dumps(schema)), "json", str(schema))
    if isinstance(schema, Mapping):
        return Output(SchemaSpec(dumped_schema(schema)), "json", "json")
    if isinstance(schema, Verbatim):
        return Output(SchemaSpec(dumped_schema(schema.to_schema())), "json", "Verbatim")
    if isinstance(schema, str):
        return Output(SchemaSpec(_check_schema_text(schema)), "json", "json")
    return _output_from_type(schema)


def output_from_spec(spec: ConstraintSpec) -> Output:
    """What a constraint object asks for: JSON comes out parsed, everything else as text."""
    match spec:
        case SchemaSpec():
            return Output(spec, "json", "json")
        case RegexSpec() | ChoicesSpec() | GrammarSpec() | SubstringSpec() | TagsSpec() | ReasoningSpec():
            return Output(spec)
    raise LanguageError(f"{spec!r} is not a constraint")


def _check_schema_text(text: str) -> str:
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ConstraintError(f"the schema is not JSON text: {error}") from error
    if not isinstance(schema, dict | bool):
        raise ConstraintError(f"a schema is an object or a boolean, not {type(schema).__name__}")
    return text


def _output_from_type(tp: Any) -> Output:
    try:
        return _memoised_output(tp)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _build_output(tp)


@functools.lru_cache(maxsize=256)
def _memoised_output(tp: Any) -> Output:
    return _build_output(tp)


def _build_output(tp: Any) -> Output:
    if not _looks_like_type(tp):
        raise LanguageError(
            f"{tp!r} is not a schema: give a dict, JSON text, a pydantic model, a dataclass, a TypedDict, an Enum, "
            "a Literal or another Python type"
        )
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

    try:
        adapter = TypeAdapter(_modern(tp))
        schema = adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError, NameError) as error:
        raise ConstraintError(f"no schema for {type_label(tp)}: {str(error).splitlines()[0]}") from error
    text = json.dumps(close_objects(schema), ensure_ascii=False)
    return Output(SchemaSpec(text), "json", type_label(tp), adapter.validate_json)


def _looks_like_type(tp: Any) -> bool:
    return isinstance(tp, type) or typing.get_origin(tp) is not None or tp is Any or tp is None


def type_label(tp: Any) -> str:
    """The type as a reader would write it."""
    if typing.get_origin(tp) is not None:
        return str(tp).replace("typing.", "")
    return str(getattr(tp, "__name__", tp))


_SCHEMA_MAPS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_SCHEMA_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SCHEMA_VALUES = ("items", "additionalProperties", "not", "contains")


def close_objects(schema: Any) -> Any:
    """The schema with `additionalProperties: false` in every object that lists its properties and does not say.

    Only schemas made from Python types go through here: a field typed `dict` stays as open as it is.
    """
    if not isinstance(schema, dict):
        return schema
    closed = {key: _close_keyword(key, value) for key, value in schema.items()}
    if closed.get("type") == "object" and "properties" in closed and "additionalProperties" not in closed:
        closed["additionalProperties"] = False
    return closed


def _close_keyword(key: str, value: Any) -> Any:
    if key in _SCHEMA_MAPS and isinstance(value, dict):
        return {name: close_objects(sub) for name, sub in value.items()}
    if key in _SCHEMA_LISTS and isinstance(value, list):
        return [close_objects(sub) for sub in value]
    return close_objects(value) if key in _SCHEMA_VALUES else value


def _modern(tp: Any) -> Any:
    """The type with `typing.TypedDict`s replaced by typing_extensions', which pydantic needs before Python 3.12."""
    if sys.version_info >= (3, 12):
        return tp
    if typing.is_typeddict(tp):
        return _modern_typed_dict(tp)
    if dataclasses.is_dataclass(tp) or typing.get_origin(tp) in (None, Literal):
        return tp
    arguments = tuple(_modern(argument) for argument in typing.get_args(tp))
    if arguments == typing.get_args(tp):
        return tp
    origin = typing.get_origin(tp)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[arguments]  # noqa: UP007 (built from a tuple)
    return origin[arguments]


def _modern_typed_dict(tp: Any) -> Any:
    import typing_extensions as te

    fields: dict[str, Any] = {}
    for key, hint in typing.get_type_hints(tp, include_extras=True).items():
        mark = typing.get_origin(hint)
        is_required = key in tp.__required_keys__
        if mark in (typing.Required, typing.NotRequired):
            is_required = mark is typing.Required
            (hint,) = typing.get_args(hint)
        fields[key] = _modern(hint) if is_required else te.NotRequired[_modern(hint)]
    return te.TypedDict(tp.__name__, fields)  # type: ignore[operator]
