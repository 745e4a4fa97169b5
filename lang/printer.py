"""The readable form of a program: one step a line, branches indented below their fork.

program judge(essay)
  user
    "Essay: " {essay}
  fork 1, 2
    branch 1
      assistant
        gen clarity max_tokens=4
    branch 2
      ...
  join 1, 2
  return clarity
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, assert_never

from forktree.lang import ir
from forktree.lang.constraints import (
    ChoicesSpec,
    GrammarSpec,
    ReasoningSpec,
    RegexSpec,
    SchemaSpec,
    SubstringSpec,
    TagsSpec,
    ToolsSpec,
)
from forktree.lang.sampling import Sampling
from forktree.lang.tool_head import names_of_tools
from forktree.lang.types import Output

if TYPE_CHECKING:
    from forktree.lang.program import Program

_TAB = "  "
_MAX_TEXT = 400


def print_program(program: Program, *, sources: bool = False) -> str:
    """See the module. Texts longer than 400 characters are shown by their ends; equality never looks here."""
    settings = " ".join(_given(program.sampling)) if program.sampling is not None else ""
    header = f"program {program.name}({', '.join(program.parameters)}){' with ' + settings if settings else ''}"
    body = [_TAB + line for line in _Printer(program, sources).branch_lines(0)]
    if program.returns is not None:
        body.append(f"{_TAB}return {_show_data(program.returns, 0)}")
    return "\n".join([header, *body]) + "\n"


class _Printer:
    """The nodes of each branch, and how to show them."""

    def __init__(self, program: Program, sources: bool) -> None:
        self._nodes: dict[int, list[ir.Node]] = {}
        for op in program.ops:
            self._nodes.setdefault(op.branch, []).append(op.node)
        self._sources = sources

    def branch_lines(self, branch: int) -> Iterator[str]:
        depth = 0
        for node in _grouped(self._nodes.get(branch, [])):
            if isinstance(node, ir.RoleEnd | ir.ScopeEnd):
                depth = max(0, depth - 1)
                continue
            for line in self._node_lines(node, branch):
                yield _TAB * depth + line
            if isinstance(node, ir.RoleBegin | ir.ScopeBegin):
                depth += 1

    def _node_lines(self, node: ir.Node | list[ir.Node], branch: int) -> Iterator[str]:
        if isinstance(node, list):
            yield " ".join(_show_piece(piece, branch) for piece in node) + self._note(node[0])
            return
        yield _show_step(node, branch) + self._note(node)
        match node:
            case ir.Fork(branches=branches):
                opened: tuple[int, ...] = branches
            case ir.Call(branch=called):
                opened = (called,)
            case _:
                return
        for child in opened:
            yield f"{_TAB}branch {child}"
            for line in self.branch_lines(child):
                yield _TAB * 2 + line

    def _note(self, node: ir.Node) -> str:
        return f"    # {node.source}" if self._sources and node.source is not None else ""


def _grouped(nodes: list[ir.Node]) -> list[ir.Node | list[ir.Node]]:
    """Text and the references between it stand on one line."""
    groups: list[ir.Node | list[ir.Node]] = []
    for node in nodes:
        if not isinstance(node, ir.Text | ir.Argument | ir.Variable):
            groups.append(node)
        elif groups and isinstance(groups[-1], list):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _show_piece(node: ir.Node, branch: int) -> str:
    if isinstance(node, ir.Text):
        return ("markup " if node.markup else "") + show_text(node.text)
    return "{" + _show_reference(node, branch) + "}"


def show_text(text: str) -> str:
    """Quoted; the middle of a long text is left out."""
    if len(text) > _MAX_TEXT:
        half = _MAX_TEXT // 2
        left_out = len(text) - 2 * half
        return f"{_quote(text[:half])} … {left_out} characters … {_quote(text[-half:])}"
    return _quote(text)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _show_reference(node: ir.Node, branch: int) -> str:
    assert isinstance(node, ir.Argument | ir.Variable)
    name = node.name
    if isinstance(node, ir.Variable) and node.branch != branch:
        name = f"{name}@{node.branch}"
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in node.path)
    conversion = f"!{node.conversion}" if node.conversion else ""
    spec = f":{node.format_spec}" if node.format_spec else ""
    return f"{name}{path}{conversion}{spec}"


def _show_step(node: ir.Node, branch: int) -> str:
    match node:
        case ir.Text() | ir.Argument() | ir.Variable():
            return _show_piece(node, branch)
        case ir.Gen():
            return _show_gen(node)
        case ir.Select():
            options = " | ".join(show_text(option) for option in node.options)
            method = "" if node.method == "token_length_normalized" else f" by {node.method}"
            return f"select{_name(node.name)} from {options}{method}"
        case ir.RoleBegin():
            return node.role
        case ir.RoleEnd():
            return f"end of {node.role}"
        case ir.ScopeBegin():
            return f"scope {node.name}"
        case ir.ScopeEnd():
            return f"end of scope {node.name}"
        case ir.Image():
            return f"image {node.media_type} of {len(node.data)} bytes"
        case ir.Tools():
            return f"tools {', '.join(names_of_tools(node.definitions))}"
        case ir.Assign():
            return f"set {node.name} = {_show_data(node.value, branch)}"
        case ir.Fork():
            policy = "" if node.on_error == "cancel" else " on_error=continue"
            return f"fork {_ids(node.branches)}{policy}"
        case ir.Join():
            style = "" if node.style == "values" else f" as {node.style}"
            return f"join {_ids(node.branches)}{style}"
        case ir.Call():
            return f"call {node.function}"
    assert_never(node)


def _name(name: str | None) -> str:
    return "" if name is None else f" {name}"


def _ids(branches: tuple[int, ...]) -> str:
    return ", ".join(map(str, branches))


def _show_gen(node: ir.Gen) -> str:
    parts = [f"gen{_name(node.name)}"]
    if node.output is not None:
        parts[0] += f": {_show_output(node.output)}"
    parts += _given(node.sampling)
    if node.on_budget != "cut":
        parts.append(f"on_budget={node.on_budget}")
    if not node.heal:
        parts.append("heal=False")
    return " ".join(parts)


def _given(sampling: Sampling) -> Iterator[str]:
    """What the sampling says, as it would be written."""
    for each in fields(sampling):
        value = getattr(sampling, each.name)
        if value is not None:
            yield f"{each.name}={value!r}"


def _show_output(output: Output) -> str:
    match output.spec:
        case RegexSpec(pattern):
            return output.kind if output.kind != "text" else f"/{pattern}/"
        case ChoicesSpec(options):
            return output.kind if output.kind == "bool" else " | ".join(map(_quote, options))
        case SchemaSpec(schema):
            if output.label not in ("", "json"):
                return output.label
            return f"schema {schema}" if len(schema) <= _MAX_TEXT else f"schema of {len(schema)} characters"
        case GrammarSpec(text, start):
            return f"grammar {start} of {len(text)} characters"
        case SubstringSpec(text):
            return f"piece of {show_text(text)}"
        case TagsSpec(tags):
            return f"text with {' | '.join(_quote(tag.begin) for tag in tags)}"
        case ToolsSpec():
            return output.label
        case ReasoningSpec(content):
            answer = "" if content is None else f", then {_show_output(replace(output, spec=content))}"
            return f"reasoning{answer}"
    assert_never(output.spec)


def _show_data(value: object, branch: int) -> str:
    match value:
        case ir.Argument() | ir.Variable():
            return _show_reference(value, branch)
        case tuple():
            items = [_show_data(item, branch) for item in value]
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        case list():
            return f"[{', '.join(_show_data(item, branch) for item in value)}]"
        case dict():
            return "{" + ", ".join(f"{key!r}: {_show_data(item, branch)}" for key, item in value.items()) + "}"
        case ir.Sequence(items=pieces):
            return " ".join(_show_piece(piece, branch) for piece in pieces)
    return repr(value)
