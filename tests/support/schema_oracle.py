"""jsonschema as the judge of outputs, set up to mean what forktree means."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
from jsonschema.validators import extend, validator_for


def _ecma_pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Any:
    if validator.is_type(instance, "string") and not re.search(pattern, instance, re.ASCII):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def oracle(schema: Any) -> Any:
    """A validator of the schema's own draft, patterns searched as ASCII."""
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    return extend(kind, {"pattern": _ecma_pattern})(schema)


def loads(text: str) -> Any:
    """Strict JSON: no duplicate keys, no NaN, no raw control characters."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        assert len(set(names)) == len(names), f"duplicate key in {text}"
        return dict(pairs)

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} in {text}")

    return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
