"""The protocol's messages as JSON, for recordings and for backends in other processes.

Every dataclass of the protocol is an object whose "$" names its class; a branch is the list of its segments, and
comes back as a fresh chain.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from forktree.lang import constraints
from forktree.lang.errors import BackendError
from forktree.lang.sampling import Sampling
from forktree.runtime import protocol

_CLASSES: Mapping[str, type] = MappingProxyType(
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
            protocol.GenerateRequest,
            protocol.ScoreRequest,
            protocol.TokenLogprob,
            protocol.Usage,
            protocol.Delta,
            protocol.Completion,
            protocol.OptionScore,
            protocol.ScoreResult,
            protocol.Capabilities,
            Sampling,
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
)


def dump(message: Any) -> str:
    """JSON text, the same for equal messages."""
    return json.dumps(encode(message), ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def load(text: str) -> Any:
    """The inverse of `dump`. Raises BackendError when the text is no message."""
    try:
        return decode(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BackendError(f"{text[:80]!r} is not a message: {type(error).__name__}: {error}") from error


def encode(value: Any) -> Any:
    """Plain data."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return {"$": "bytes", "base64": base64.b64encode(value).decode("ascii")}
        case tuple():
            return {"$": "tuple", "items": [encode(item) for item in value]}
        case frozenset():
            return {"$": "frozenset", "items": sorted(value)}
        case protocol.Branch():
            return {"$": "Branch", "segments": [encode(segment) for segment in value.segments()]}
    name = type(value).__name__
    if _CLASSES.get(name) is not type(value):
        raise BackendError(f"{value!r} is not part of a message")
    told = [item.name for item in fields(value) if item.compare]  # hints are no part of a message
    return {"$": name, **{field: encode(getattr(value, field)) for field in told}}


def decode(data: Any) -> Any:
    """The inverse of `encode`."""
    if not isinstance(data, dict):
        return data
    match data["$"]:
        case "bytes":
            return base64.b64decode(data["base64"])
        case "tuple":
            return tuple(decode(item) for item in data["items"])
        case "frozenset":
            return frozenset(data["items"])
        case "Branch":
            return chain(decode(segment) for segment in data["segments"])
    cls = _CLASSES[data["$"]]
    return cls(**{key: decode(item) for key, item in data.items() if key != "$"})


def chain(segments: Any) -> protocol.Branch | None:
    """A fresh branch of these segments."""
    branch = None
    for segment in segments:
        branch = protocol.Branch(branch, segment)
    return branch
