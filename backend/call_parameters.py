"""Markup of calls whose arguments are written one by one, as a model's own chat template shows it.

    <tool_call>\\n<function= NAME > \\n<parameter= KEY >\\n VALUE \\n</parameter> \\n</function>\\n</tool_call>
    └────── before ────────┘  within └── key ────┘ text_value └─ closing ─┘ └──────── after ────────┘

Texts stand as they are, up to the first `closing`; every other value is JSON. An argument that may be a text or
something else could not be read back, so a tool that has one cannot be written so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from forktree.backend.call_markup import NAMES, FoundCall, behind_blank, rendered_calls
from forktree.backend.chat import ChatTemplate
from forktree.backend.grammar.markup import Concat, Markup, OneOf, Spec, Until
from forktree.lang.constraints import ChoicesSpec, SchemaSpec, ToolSpec

_LOOSE = frozenset(["title", "description", "default", "examples", "deprecated"])
_OBJECT = frozenset(["type", "properties", "required", "additionalProperties", "$defs", "$schema"]) | _LOOSE


@dataclass(frozen=True, slots=True)
class ParameterMarkup:
    """
    Attributes:
        before: what stands before the first call's name.
        within: what stands between a call's name and its first argument.
        key: what stands before an argument's name.
        text_value, json_value: what stands between an argument's name and its value.
        closing: what ends a value.
        joint: what stands between two calls; None where the template writes one call only.
        after: what stands behind the last argument, before the end of the turn.
    """

    before: str
    within: str
    key: str
    text_value: str
    json_value: str
    closing: str
    joint: str | None
    after: str

    def arguments(self, values: Mapping[str, str | int]) -> str:
        """Arguments as the template writes them."""
        opened = {
            name: self.text_value if isinstance(value, str) else self.json_value for name, value in values.items()
        }
        return "".join(f"{self.key}{name}{opened[name]}{value}{self.closing}" for name, value in values.items())


class Parameter(NamedTuple):
    """One argument of a tool: whether it is a text, and what its value satisfies; None is any text."""

    name: str
    is_text: bool
    spec: Spec | None
    is_required: bool


def parameter_markup(chat: ChatTemplate) -> ParameterMarkup | None:
    """How the template writes calls with their arguments one by one; None where it does not."""
    one, two = rendered_calls(chat, 1), rendered_calls(chat, 2)
    if one is None:
        return None
    marks = ("qprobe_one", "qkey", "qvalue", "qcount", "71937")
    places = [one.find(mark) for mark in marks]
    if min(places) < 0 or places != sorted(places) or any(one.count(mark) != 1 for mark in marks):
        return None
    ends = [place + len(mark) for place, mark in zip(places, marks, strict=True)]
    first, text_value, between, json_value = (one[end:at] for end, at in zip(ends, places[1:], strict=False))
    key = _common_end(first, between)
    closing, rest = between[: len(between) - len(key)], one[ends[-1] :]
    if not (key and closing and text_value and json_value and rest.startswith(closing)):
        return None
    within, after = first[: len(first) - len(key)], rest[len(closing) :]
    lead = key[: min(key.find(one) % (len(key) + 1) for one in "\n<")]  # the end of a tag belongs to what it closes
    if after.startswith(lead) and len(lead) < len(key):
        within, closing, key, after = within + lead, closing + lead, key[len(lead) :], after[len(lead) :]
    markup = ParameterMarkup(one[: places[0]], within, key, text_value, json_value, closing, None, after)
    return replace(markup, joint=None if two is None else _joint(two, markup))


def _common_end(one: str, other: str) -> str:
    size = 0
    while size < min(len(one), len(other)) and one[-size - 1] == other[-size - 1]:
        size += 1
    return one[len(one) - size :]


def _joint(text: str, markup: ParameterMarkup) -> str | None:
    """What stands between two calls, if both are written as the one was."""
    start = f"{markup.before}qprobe_one{markup.within}{markup.arguments({'qkey': 'qvalue', 'qcount': 71937})}"
    end = f"qprobe_two{markup.within}{markup.arguments({'qkey': 'qother'})}{markup.after}"
    fits = text.startswith(start) and text.endswith(end) and len(text) > len(start) + len(end)
    return text[len(start) : len(text) - len(end)] if fits else None


def parameters_of(tool: ToolSpec, markup: ParameterMarkup) -> list[Parameter] | None:
    """The arguments of a tool; None where one of them cannot be written exactly."""
    schema = json.loads(tool.parameters)
    if not isinstance(schema, dict) or schema.get("type") != "object" or schema.keys() - _OBJECT:
        return None
    definitions = schema.get("$defs", {})
    found = []
    for name, body in schema.get("properties", {}).items():
        parameter = _parameter(name, body, definitions, name in schema.get("required", ()), markup)
        if parameter is None:
            return None
        found.append(parameter)
    return None if set(schema.get("required", ())) - {one.name for one in found} else found


def _parameter(name: str, body: Any, definitions: Any, is_required: bool, markup: ParameterMarkup) -> Parameter | None:
    if not NAMES.fullmatch(name) or not isinstance(body, dict):
        return None
    target = body
    while isinstance(target.get("$ref"), str) and not target.keys() - {"$ref"} - _LOOSE:
        target = definitions.get(target["$ref"].removeprefix("#/$defs/"))
        if not isinstance(target, dict):
            return None
    choices = target.get("enum", [target["const"]] if "const" in target else None)
    if choices is not None and all(isinstance(one, str) for one in choices):
        is_plain = not target.keys() - {"enum", "const", "type"} - _LOOSE
        fits = is_plain and choices and not any(markup.closing in one for one in choices)
        return Parameter(name, True, ChoicesSpec(tuple(dict.fromkeys(choices))), is_required) if fits else None
    if target.get("type") == "string":
        return None if target.keys() - {"type"} - _LOOSE else Parameter(name, True, None, is_required)
    if not _is_no_text(target, choices):
        return None
    schema = json.dumps({**body, "$defs": definitions} if definitions else body, ensure_ascii=False)
    return Parameter(name, False, SchemaSpec(schema, whitespace=1), is_required)


def _is_no_text(schema: dict[str, Any], choices: Sequence[Any] | None) -> bool:
    """Whether it is plain that no text satisfies a schema."""
    named = schema.get("type")
    if choices is not None:
        return not any(isinstance(one, str) for one in choices)
    return named is not None and "string" not in (named if isinstance(named, list) else [named])


def call_spec(tool: ToolSpec, parameters: Sequence[Parameter], markup: ParameterMarkup) -> Concat:
    """What one call of a tool satisfies, from its name on."""
    parts: list[Spec] = [ChoicesSpec((tool.name,)), Markup(markup.within)]
    for one in parameters:
        opening = Markup(markup.key + one.name + (markup.text_value if one.is_text else markup.json_value))
        value: tuple[Spec, ...] = (Until(markup.closing),) if one.spec is None else (one.spec, Markup(markup.closing))
        written = Concat((opening, *value))
        parts.append(written if one.is_required else OneOf((Markup(""), written)))
    return Concat(tuple(parts))


def read_parameter_calls(
    text: str, markup: ParameterMarkup, tools: Mapping[str, Sequence[Parameter]], after: str
) -> list[FoundCall] | None:
    """The calls that a text in this markup makes; None where it is not whole."""
    if not text.startswith(markup.before):
        return None
    found, at = [], len(markup.before)
    while (read := _read_call(text, at, markup, tools, (markup.joint, after))) is not None:
        call, at = read
        found.append(call)
        if text[at:] == after:
            return found
        if markup.joint is None or not text.startswith(markup.joint, at):
            return None
        at += len(markup.joint)
    return None


def _read_call(
    text: str, at: int, markup: ParameterMarkup, tools: Mapping[str, Sequence[Parameter]], ends: tuple[str | None, ...]
) -> tuple[FoundCall, int] | None:
    followers = (markup.within + markup.key, *(markup.within + end for end in ends if end is not None))
    names = [name for name in tools if any(text.startswith(name + one, at) for one in followers)]
    if not names:
        return None
    name = max(names, key=len)
    at += len(name) + len(markup.within)
    arguments: dict[str, Any] = {}
    for one in tools[name]:
        opening = markup.key + one.name + (markup.text_value if one.is_text else markup.json_value)
        if not text.startswith(opening, at):
            continue
        value = _read_value(text, at + len(opening), one, markup.closing)
        if value is None:
            return None
        arguments[one.name], at = value
    return FoundCall(name, arguments), at


def _read_value(text: str, at: int, one: Parameter, closing: str) -> tuple[Any, int] | None:
    if one.is_text:
        end = text.find(closing, at)
        return None if end < 0 else (text[at:end], end + len(closing))
    try:
        value, at = json.JSONDecoder().raw_decode(text, behind_blank(text, at, ("\0",)))
    except ValueError:
        return None
    at = behind_blank(text, at, (closing,))
    return (value, at + len(closing)) if text.startswith(closing, at) else None
