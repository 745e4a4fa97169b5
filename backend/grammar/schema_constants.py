"""`const` and `enum`: values of a schema as meanings. What is inside arrays and objects becomes goals again."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from forktree.backend.grammar.number_sets import MAX_DIGITS, Numbers
from forktree.backend.grammar.schema_shapes import NEVER, Arrays, Goal, KeyRule, Meaning, Objects, Strings, goal_of
from forktree.lang.errors import ConstraintError


def listed(values: list[Any], string_set: Callable[[frozenset[str]], Strings], pointer: str) -> Meaning:
    """Any of these values. Texts with half a surrogate pair cannot be written, so they are left out.

    Raises:
        ConstraintError: a number has too many digits.
    """
    strings = frozenset(value for value in values if isinstance(value, str) and not _has_surrogate(value))
    numbers = frozenset(
        bounded(value, pointer) for value in values if isinstance(value, int | Decimal) and not isinstance(value, bool)
    )
    objects = (value for value in values if isinstance(value, dict) and not any(map(_has_surrogate, value)))
    return Meaning(
        (string_set(strings),) if strings else (),
        (_number_set(numbers),) if numbers else (),
        tuple(dict.fromkeys(_array_of(value) for value in values if isinstance(value, list))),
        tuple(dict.fromkeys(map(_object_of, objects))),
        frozenset(value for value in values if isinstance(value, bool)),
        any(value is None for value in values),
    )


def bounded(value: int | Decimal, pointer: str) -> Decimal:
    """A number of a schema, exactly.

    Raises:
        ConstraintError: it has more than `MAX_DIGITS` digits before or after the point.
    """
    exact = Decimal(value)
    if exact and not -MAX_DIGITS <= exact.adjusted() <= MAX_DIGITS:
        raise ConstraintError(f"the number {value} has more than {MAX_DIGITS} digits", pointer=pointer)
    return exact


def _number_set(values: frozenset[Decimal]) -> Numbers:
    return Numbers(only=values, is_integer=all(value == value.to_integral_value() for value in values))


def _array_of(value: list[Any]) -> Arrays:
    return Arrays(tuple(map(_goal, value)), NEVER, len(value), len(value))


def _object_of(value: dict[str, Any]) -> Objects:
    named = tuple((name, _goal(one)) for name, one in value.items())
    return Objects((KeyRule(named, (), NEVER),), tuple(value))


def _goal(value: Any) -> Goal:
    return goal_of(("const", _written(value)))


def _written(value: Any) -> str:
    """JSON text of a value with exact decimals."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_written(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
