"""Is a service's answer legal? Read as it may be written, checked as the program's constraint says.

A service's JSON may have blanks, another order of keys and any spelling of numbers: these are forms, not content, so
they are allowed. A key that comes twice is not.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, NamedTuple

from forktree.backend.clients.asks import Means
from forktree.lang.constraints import ConstraintSpec, ReasoningSpec, SchemaSpec, ToolsSpec
from forktree.lang.tools import schema_of_calls

_FENCED = re.compile(r"\s*```[a-zA-Z]*\s*\n(.*?)\n?\s*```\s*", re.DOTALL)
_HALF_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{0,3})?\Z")
_BLANK = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))|[ \t\r\n]+')


class Checked(NamedTuple):
    """An answer's value as text, and what is wrong with it; "" is nothing."""

    text: str
    problem: str


def check(text: str, spec: ConstraintSpec, means: Means) -> Checked:
    """The value that an answer holds.

    Args:
        text: what the service wrote, or the calls that it made as JSON.
    """
    if isinstance(spec, ReasoningSpec):
        return Checked(text, "") if spec.content is None else check(text, spec.content, means)
    try:
        value = means.unwrapped(_bare(text))
    except (ValueError, TypeError, KeyError) as error:
        return Checked(text, f"it is not wrapped as was asked for: {type(error).__name__}: {error}")
    if isinstance(spec, ToolsSpec):
        spec = schema_of_calls(spec)
    if isinstance(spec, SchemaSpec):
        return _check_json(value, spec)
    if _accepts(spec, value):
        return Checked(value, "")
    stripped = value.strip()
    if _accepts(spec, stripped):
        return Checked(stripped, "")
    return Checked(value, _deviation(spec, stripped))


def can_go_on(text: str, spec: ConstraintSpec, means: Means) -> bool:
    """Whether an answer that was cut may have been on its way to a legal one. Where that is not clear, it may."""
    if isinstance(spec, ReasoningSpec):
        return spec.content is None or can_go_on(text, spec.content, means)
    begun = text.lstrip()
    if means.key or isinstance(spec, ToolsSpec) or begun.startswith("`"):
        return True
    if isinstance(spec, SchemaSpec):
        spec, begun = _as_free(spec), _HALF_ESCAPE.sub("", _compact(begun))
    return _accepts_prefix(spec, begun) or _accepts_prefix(spec, begun.rstrip())


def check_constraint(spec: ConstraintSpec) -> None:
    """Raises ConstraintError: it cannot be checked in full, or nothing satisfies it."""
    from forktree.backend.grammar.constraints import constraint_from_spec

    if isinstance(spec, ReasoningSpec):
        if spec.content is not None:
            check_constraint(spec.content)
        return
    constraint_from_spec(spec)


def _check_json(text: str, spec: SchemaSpec) -> Checked:
    try:
        json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        return Checked(text, f"it is no JSON: {error}")
    compact, free = _compact(text), _as_free(spec)
    if _accepts(free, compact):
        return Checked(text.strip(), "")
    return Checked(text, _deviation(free, compact))


def _compact(text: str) -> str:
    """JSON without blanks outside its strings; it may end in the middle of one."""
    return _BLANK.sub(lambda found: found.group(1) or "", text)


def _as_free(spec: SchemaSpec) -> SchemaSpec:
    """The schema with every spelling that JSON allows, but for blanks."""
    return replace(spec, order="any", whitespace="compact", numbers="any")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError(f"a key comes twice among {[key for key, _ in pairs]}")
    return data


def _bare(text: str) -> str:
    """The text without a fence of code around it."""
    fenced = _FENCED.fullmatch(text)
    return fenced.group(1) if fenced else text


def _accepts(spec: ConstraintSpec, text: str) -> bool:
    from forktree.backend.grammar.constraints import constraint_from_spec

    return constraint_from_spec(spec).accepts(text)


def _accepts_prefix(spec: ConstraintSpec, text: str) -> bool:
    from forktree.backend.grammar.constraints import constraint_from_spec

    return constraint_from_spec(spec).accepts_prefix(text)


def _deviation(spec: ConstraintSpec, text: str) -> str:
    """Where the text leaves the constraint."""
    from forktree.backend.grammar.constraints import constraint_from_spec

    constraint = constraint_from_spec(spec)
    low, high = 0, len(text)  # the first `low` characters may begin a legal answer; `high` + 1 may not
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if constraint.accepts_prefix(text[:middle]) else (low, middle - 1)
    if low == len(text):
        return f"it ends too early, after {text[-40:]!r}"
    return f"it is not legal from {text[low : low + 20]!r} on, behind {text[max(0, low - 30) : low]!r}"
