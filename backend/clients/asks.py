"""How a service is asked for a constrained output, by the means that it has, and how its answer is read.

    kind of constraint      means, the first that the dialect has
    ─────────────────────────────────────────────────────────────────────────────────────────────
    Regex, Choices, Grammar a field of its own (vLLM, SGLang, forktree), else a schema
    Schema                  the service's own schemas (OpenAI's strict ones where the schema is one), a forced call
                            of a tool (Anthropic), JSON without a schema and words (DeepSeek), else words
    Tools                   a forced call of a tool, else a schema of calls
    Substring, Grammar      words

A schema whose root is no object, and a pattern or choice, is wrapped in an object of one key where only objects can
be asked for. Whatever the means, the answer is checked when it has come (`checks`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from forktree.backend.clients.dialects import Dialect
from forktree.lang.constraints import (
    VERBATIM,
    ChoicesSpec,
    ConstraintSpec,
    GrammarSpec,
    ReasoningSpec,
    RegexSpec,
    SchemaSpec,
    SubstringSpec,
    TagsSpec,
    ToolsSpec,
)
from forktree.lang.errors import UnsupportedError
from forktree.lang.tools import schema_of_calls

ANSWER = "answer"
"""The name of the schema, the tool and the key that an answer is wrapped in."""


@dataclass(frozen=True, slots=True)
class Means:
    """What is added to a request, and how its answer is read.

    Attributes:
        schema: JSON Schema of the answer, for the service's own mechanism.
        is_strict: the schema is one of those that OpenAI's strict mode takes.
        fields: further fields of the body.
        tools: tools of which one has to be called.
        calls_are_value: the calls themselves are the value; else the arguments of the one call are.
        words: what the system is told.
        key: the key that the value is wrapped in; "" where it is not. `is_text`: the value there is text, not JSON.
    """

    schema: Mapping[str, Any] | None = None
    is_strict: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    calls_are_value: bool = False
    is_list: bool = False
    words: str = ""
    key: str = ""
    is_text: bool = False

    def unwrapped(self, text: str) -> str:
        """The value as the program is to see it. Raises ValueError: it is not wrapped as was asked for."""
        if not self.key:
            return text
        value = json.loads(text)[self.key]
        if self.is_text:
            if not isinstance(value, str):
                raise ValueError(f"{self.key!r} holds {value!r}, which is no text")
            return value
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def supported_kinds(dialect: Dialect) -> frozenset[str]:
    """The kinds of constraint that a backend of this dialect takes, by class name."""
    kinds = {"RegexSpec", "ChoicesSpec", "SchemaSpec", "ToolsSpec", "SubstringSpec", "GrammarSpec"}
    return frozenset(kinds | {"ReasoningSpec"} if dialect.reasoning else kinds)


def means_of(spec: ConstraintSpec, dialect: Dialect, *, has_begun: bool) -> Means:
    """How this constraint is asked for.

    Args:
        has_begun: the model goes on with a turn; a tool cannot be called there.
    Raises:
        UnsupportedError: the dialect has no means for it.
    """
    match spec:
        case ReasoningSpec(content, begin, _, max_tokens):
            return _reasoned(content, begin, max_tokens, dialect, has_begun)
        case RegexSpec() | ChoicesSpec() | GrammarSpec() if type(spec).__name__ in dialect.native:
            return Means(fields=_native(spec, dialect))
        case RegexSpec(pattern):
            # What only Python's syntax has is told in words, and checked like all else when the answer has come.
            is_common = re.search(r"\(\?[^:]|\\[AZdDwWsSbB]", pattern) is None
            typed = {"type": "string", "pattern": f"^(?:{pattern})$"} if is_common else {"type": "string"}
            return _by_schema(typed, dialect, has_begun, _words_of(spec), is_text=True, says_all=is_common)
        case ChoicesSpec(options):
            return _by_schema(
                {"type": "string", "enum": list(options)}, dialect, has_begun, _words_of(spec), is_text=True
            )
        case SchemaSpec(schema):
            return _by_schema(_sendable(json.loads(schema)), dialect, has_begun, _words_of(spec))
        case ToolsSpec():
            return _by_tools(spec, dialect, has_begun)
        case GrammarSpec() | SubstringSpec():
            return Means(words=_words_of(spec))
        case TagsSpec():
            raise UnsupportedError(f"{dialect.service} cannot write tags; ask a local engine or a forktree server")


def _reasoned(
    content: ConstraintSpec | None, begin: str | None, max_tokens: int | None, dialect: Dialect, has_begun: bool
) -> Means:
    if begin is not None or max_tokens is not None:
        raise UnsupportedError(
            f"{dialect.service} reasons in its own way: drop begin=, end= and max_tokens= of Reasoning, or ask a local "
            "engine"
        )
    return Means() if content is None else means_of(content, dialect, has_begun=has_begun)


def _native(spec: RegexSpec | ChoicesSpec | GrammarSpec, dialect: Dialect) -> dict[str, Any]:
    value: Any
    match spec:
        case RegexSpec(pattern):
            value = pattern
        case ChoicesSpec(options):
            value = list(options)
        case GrammarSpec(text, start):
            if start != "start":
                raise UnsupportedError(f"{dialect.service} takes grammars whose start rule is 'start', not {start!r}")
            value = text
    named = {dialect.native[type(spec).__name__]: value}
    return named if dialect.native_under is None else {dialect.native_under: named}


def _by_schema(
    schema: Any, dialect: Dialect, has_begun: bool, words: str, *, is_text: bool = False, says_all: bool = True
) -> Means:
    """A schema by the service's own mechanism, wrapped where its root is no object."""
    is_forced_call = dialect.schema == "tool" and not has_begun
    is_enforced = dialect.schema in ("enforced", "json_mode")
    if dialect.schema == "strict" or is_enforced or is_forced_call:
        wrapped, key = _wrapped(_typed(schema) if dialect.schema == "strict" else schema)
        if wrapped is None:
            return Means(words=words)
        if is_forced_call:
            tool = {"name": ANSWER, "description": "Gives the answer.", "parameters": wrapped}
            return Means(tools=(tool,), key=key, is_text=is_text, words="" if says_all else words)
        is_strict = is_enforced or is_strict_schema(wrapped)
        words = "" if is_strict and says_all else words
        return Means(schema=wrapped, is_strict=is_strict, key=key, is_text=is_text, words=words)
    if dialect.schema == "object" and not is_text and isinstance(schema, dict) and schema.get("type") == "object":
        return Means(fields={"response_format": {"type": "json_object"}}, words=words)
    return Means(words=words)


def _by_tools(spec: ToolsSpec, dialect: Dialect, has_begun: bool) -> Means:
    if not dialect.has_tools or has_begun:
        schema = schema_of_calls(spec)
        words = (
            f"Answer with {_CALLS[spec.is_list]}, as JSON that satisfies this JSON Schema:\n{schema.schema}\n{_ALONE}"
        )
        return _by_schema(json.loads(schema.schema), dialect, has_begun, words)
    tools = tuple(
        {"name": tool.name, "description": "", "parameters": json.loads(tool.parameters)} for tool in spec.tools
    )
    return Means(tools=tools, calls_are_value=True, is_list=spec.is_list)


_CALLS = {False: "one call of a tool", True: "a list of calls of tools"}
_ALONE = "Write nothing else, and no fence around it."


def _words_of(spec: ConstraintSpec) -> str:
    """What a model is told that has to satisfy this."""
    match spec:
        case RegexSpec(pattern):
            return f"Your whole answer matches this regular expression of Python's re: {pattern}\n{_ALONE}"
        case ChoicesSpec(options):
            return f"Your whole answer is exactly one of these: {json.dumps(options, ensure_ascii=False)}\n{_ALONE}"
        case SchemaSpec(schema):
            sent = json.dumps(_sendable(json.loads(schema)), ensure_ascii=False)
            return f"Answer with JSON that satisfies this JSON Schema:\n{sent}\n{_ALONE}"
        case GrammarSpec(text, start):
            what = f"a sentence of the rule {start!r} of this grammar (lark's notation)"
            return f"Your whole answer is {what}:\n{text}\n{_ALONE}"
        case SubstringSpec(text, unit):
            return f"Your whole answer is a literal piece of this text, cut at any {unit}:\n{text}\n{_ALONE}"
    raise AssertionError(f"{type(spec).__name__} has no words")


def _wrapped(schema: Any) -> tuple[dict[str, Any] | None, str]:
    """A schema whose root is an object, and the key that holds the value; None where it cannot be moved there."""
    if isinstance(schema, dict) and schema.get("type") == "object":
        return schema, ""
    if not isinstance(schema, dict) or '"$ref": "#"' in json.dumps(schema):
        return None, ""
    inner = {key: value for key, value in schema.items() if key not in ("$defs", "definitions", "$schema")}
    kept = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    root = {"type": "object", "properties": {ANSWER: inner}, "required": [ANSWER], "additionalProperties": False}
    return {**root, **kept}, ANSWER


def _sendable(schema: Any) -> Any:
    """The schema without what only forktree knows."""
    if isinstance(schema, dict):
        return {key: _sendable(value) for key, value in schema.items() if key != VERBATIM}
    return [_sendable(item) for item in schema] if isinstance(schema, list) else schema


_TYPES: Mapping[type, str] = MappingProxyType(
    {
        str: "string",
        bool: "boolean",
        int: "integer",
        float: "number",
        type(None): "null",
        dict: "object",
        list: "array",
    }
)
_INNER = ("properties", "$defs", "definitions")


def _typed(schema: Any) -> Any:
    """The same schema with the type written out that `enum` or `const` implies: strict mode takes none without one."""
    if isinstance(schema, list):
        return [_typed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    typed = {
        key: {name: _typed(value) for name, value in inner.items()}
        if key in _INNER and isinstance(inner, dict)
        else inner
        for key, inner in schema.items()
    }
    typed |= {key: _typed(schema[key]) for key in ("anyOf", "items") if key in schema}
    if "type" in schema or not ("enum" in schema or "const" in schema):
        return typed
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
    kinds = list(dict.fromkeys(_TYPES[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, **typed}


_STRICT_KEYWORDS = frozenset(
    {
        *("type", "enum", "const", "anyOf", "$ref", "$defs", "title", "description"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)


def is_strict_schema(schema: Any) -> bool:
    """Does OpenAI's strict mode take it: known keywords alone, a type everywhere, every object closed and all its keys
    required?"""
    if not isinstance(schema, dict) or not set(schema) <= _STRICT_KEYWORDS:
        return False
    if schema.keys().isdisjoint(("type", "anyOf", "$ref")):
        return False
    if any(isinstance(value, dict | list) for value in (*schema.get("enum", ()), schema.get("const"))):
        return False
    named = {**schema.get("properties", {}), **schema.get("$defs", {})}
    inner: list[Any] = [*named.values(), *schema.get("anyOf", [])]
    inner += [schema["items"]] if "items" in schema else []
    if schema.get("type") == "object" or "properties" in schema:
        is_closed = schema.get("additionalProperties") is False
        if not is_closed or set(schema.get("required", ())) != set(schema.get("properties", {})):
            return False
    return all(map(is_strict_schema, inner))
