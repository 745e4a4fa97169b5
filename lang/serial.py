"""Programs to JSON text and back.

A node is an object whose "op" names its class; fields at their defaults are left out. Plain data (a value that
the program assigns or returns) is JSON; tuples, bytes and nodes inside it are objects with one "$…" key.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar

from forktree.lang import constraints, ir
from forktree.lang.errors import LanguageError
from forktree.lang.sampling import Sampling
from forktree.lang.types import Output

if TYPE_CHECKING:
    from forktree.lang.program import Program, Speculation

ProgramT = TypeVar("ProgramT", bound="Program")

FORMAT = "forktree.program/1"

_NODES: Mapping[str, type] = {
    cls.__name__: cls
    for cls in (
        ir.Text,
        ir.Argument,
        ir.Variable,
        ir.Gen,
        ir.Select,
        ir.RoleBegin,
        ir.RoleEnd,
        ir.ScopeBegin,
        ir.ScopeEnd,
        ir.Image,
        ir.Tools,
        ir.Assign,
        ir.Fork,
        ir.Join,
        ir.Call,
    )
}
_SPECS: Mapping[str, type] = {
    cls.__name__: cls
    for cls in (
        constraints.RegexSpec,
        constraints.ChoicesSpec,
        constraints.SchemaSpec,
        constraints.GrammarSpec,
        constraints.SubstringSpec,
        constraints.TagSpec,
        constraints.TagsSpec,
        constraints.ToolSpec,
        constraints.ToolsSpec,
        constraints.ReasoningSpec,
    )
}


def program_to_json(program: Program) -> str:
    """JSON text. Raises LanguageError when the program holds a value that JSON cannot carry."""
    document = {
        "format": FORMAT,
        "name": program.name,
        "parameters": list(program.parameters),
        "ops": [{"on": op.branch, **encode_node(op.node)} for op in program.ops],
        "returns": encode_data(program.returns),
    }
    if program.sampling is not None:
        document["sampling"] = _given(program.sampling)
    if program.speculation is not None:
        document["speculation"] = _given(program.speculation)
    return json.dumps(document, ensure_ascii=False, indent=1)


def program_from_json(text: str, cls: type[ProgramT]) -> ProgramT:
    """The inverse. Raises LanguageError when the text is not a program."""
    from forktree.lang.program import Op, Speculation

    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LanguageError(f"a program is JSON text: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise LanguageError(f"this JSON is not a program: its format is not {FORMAT!r}")
    try:
        ops = []
        for item in document["ops"]:
            branch = item["on"]
            if not isinstance(branch, int) or isinstance(branch, bool) or branch < 0:
                raise LanguageError(f"a branch is a number from 0 on, not {branch!r}")
            ops.append(Op(branch, decode_node({key: value for key, value in item.items() if key != "on"})))
        parameters = tuple(map(str, document["parameters"]))
        returns = decode_data(document["returns"])
        sampling = Sampling(**document["sampling"]) if "sampling" in document else None
        speculation = Speculation(**document["speculation"]) if "speculation" in document else None
        return cls(str(document["name"]), parameters, tuple(ops), returns, sampling, speculation)
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise LanguageError(f"this JSON is not a program: {type(error).__name__}: {error}") from error


def encode_node(node: Any) -> dict[str, Any]:
    """One node as an object."""
    encoded: dict[str, Any] = {"op": type(node).__name__}
    for item in fields(node):
        value = getattr(node, item.name)
        if item.default is not MISSING and value == item.default and item.name != "source":
            continue
        if value is not None or item.default is MISSING:
            encoded[item.name] = _encode_field(item.name, value)
    return encoded


def _encode_field(name: str, value: Any) -> Any:
    match value:
        case ir.Source():
            return [value.file, value.line]
        case Sampling():
            return _given(value)
        case Output():
            return {"spec": _encode_spec(value.spec), "kind": value.kind, "label": value.label}
    return list(value) if name in ("options", "branches", "path") else encode_data(value)


def _given(settings: Sampling | Speculation) -> dict[str, Any]:
    """The fields that are not left to a default."""
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}


def _encode_spec(spec: constraints.ConstraintSpec | constraints.TagSpec | constraints.ToolSpec) -> dict[str, Any]:
    return {"spec": type(spec).__name__, **{item.name: _encode_part(getattr(spec, item.name)) for item in fields(spec)}}


def _encode_part(value: Any) -> Any:
    """A field of a specification: a scalar, texts, or other specifications."""
    if isinstance(value, tuple):
        return [_encode_part(item) for item in value]
    return _encode_spec(value) if type(value).__name__ in _SPECS else value


def decode_node(item: dict[str, Any]) -> Any:
    """The inverse of `encode_node`."""
    cls = _NODES.get(item.get("op", ""))
    if cls is None:
        raise LanguageError(f"{item.get('op')!r} is not an operation; there are {', '.join(_NODES)}")
    known = {each.name for each in fields(cls)}
    arguments = {key: _decode_field(key, value) for key, value in item.items() if key != "op"}
    if not known.issuperset(arguments):
        raise LanguageError(f"{item['op']} has no field {sorted(set(arguments) - known)[0]!r}")
    return cls(**arguments)


def _decode_field(name: str, value: Any) -> Any:
    match name:
        case "source":
            return ir.Source(str(value[0]), int(value[1]))
        case "sampling":
            return Sampling(**value)
        case "output":
            return Output(_decode_spec(value["spec"]), value["kind"], value.get("label", ""))
        case "options" | "branches" | "path":
            return tuple(value)
    return decode_data(value)


def _decode_spec(item: dict[str, Any]) -> constraints.ConstraintSpec:
    cls = _SPECS.get(item["spec"])
    if cls is None:
        raise LanguageError(f"{item['spec']!r} is not a constraint; there are {', '.join(_SPECS)}")
    arguments = {key: _decode_part(value) for key, value in item.items() if key != "spec"}
    return cls(**arguments)  # type: ignore[no-any-return]


def _decode_part(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode_part(item) for item in value)
    return _decode_spec(value) if isinstance(value, dict) else value


def encode_data(value: Any) -> Any:
    """Plain data, with tuples, bytes and nodes marked."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        case tuple():
            return {"$tuple": [encode_data(item) for item in value]}
        case list():
            return [encode_data(item) for item in value]
        case ir.Sequence():
            return {"$text": [encode_node(item) for item in value.items]}
    if type(value).__name__ in _NODES and isinstance(value, _NODES[type(value).__name__]):
        return {"$node": encode_node(value)}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"$map": {key: encode_data(item) for key, item in value.items()}}
    raise LanguageError(f"{value!r} ({type(value).__name__}) cannot be written as JSON; return or assign plain data")


def decode_data(value: Any) -> Any:
    """The inverse of `encode_data`."""
    if isinstance(value, list):
        return [decode_data(item) for item in value]
    if not isinstance(value, dict):
        return value
    key: str | None
    inner: Any
    ((key, inner),) = value.items() if len(value) == 1 else ((None, None),)
    match key:
        case "$bytes":
            return base64.b64decode(inner)
        case "$tuple":
            return tuple(decode_data(item) for item in inner)
        case "$text":
            return ir.Sequence(tuple(decode_node(item) for item in inner))
        case "$node":
            return decode_node(inner)
        case "$map":
            return {name: decode_data(item) for name, item in inner.items()}
    raise LanguageError(f"{str(value)[:80]} is not data of a program")
