"""Tools as a constraint: Python functions or schemas in, a call with legal name and arguments out.

A model that was taught a markup for calls writes them in that; any other writes JSON,
`{"name": "<tool>", "arguments": {...}}`, or an array of those. Either way the value is a `ToolCall`, or a list of them.
A function's schema comes from its signature and docstring, through pydantic.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_type_hints

from forktree.lang.constraints import SchemaSpec, ToolSpec, ToolsSpec
from forktree.lang.errors import LanguageError
from forktree.lang.patience import await_for, run_for
from forktree.lang.types import Output, close_objects


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its name, what it does, the schema of its arguments, and the function where there is one."""

    name: str
    description: str
    parameters: str
    function: Callable[..., Any] | None = field(default=None, compare=False)
    validate: Callable[[Any], Mapping[str, Any]] | None = field(default=None, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The form that chat templates and services take."""
        parameters = json.loads(self.parameters)
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the model asked for. Calling it runs the function.

    Attributes:
        arguments: by name, typed as the function's annotations say.
    """

    name: str
    arguments: Mapping[str, Any]
    tool: Tool = field(compare=False, repr=False)

    def __call__(self, *, timeout: float | None = None) -> Any:
        """Run the tool. Its own exception comes out as itself.

        Args:
            timeout: seconds to wait for it. A synchronous tool runs on a thread of its own then, which is left behind
                when the time is over: Python cannot stop it.
        Raises:
            TimeoutError: it had not ended by then; of an asynchronous tool, when it is awaited.
        """
        function = self.tool.function
        if function is None:
            raise LanguageError(f"tool {self.name!r} was given as a schema, so there is no function to run")
        if timeout is None:
            return function(**self.arguments)
        run = partial(function, **self.arguments)
        return (await_for if inspect.iscoroutinefunction(function) else run_for)(run, timeout, f"tool {self.name!r}")


def tool_of(item: Any) -> Tool:
    """A function, a `Tool`, or a schema as services write it."""
    if isinstance(item, Tool):
        return item
    if callable(item) and not isinstance(item, type):
        return _tool_of_function(item)
    if isinstance(item, Mapping):
        body = item.get("function", item)
        if isinstance(body, Mapping) and isinstance(body.get("name"), str):
            parameters = body.get("parameters", {"type": "object", "properties": {}, "additionalProperties": False})
            return Tool(body["name"], str(body.get("description", "")), json.dumps(parameters, ensure_ascii=False))
    raise LanguageError(f"{item!r} is not a tool: give a function, or a dict with name, description and parameters")


def _tool_of_function(function: Callable[..., Any]) -> Tool:
    from pydantic import ConfigDict, create_model

    hints = get_type_hints(function, include_extras=True)  # Annotated[...] carries bounds and patterns
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise LanguageError(f"tool {function.__name__}: parameter {parameter} cannot be passed by name")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    model = create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)

    def validate(arguments: Any) -> Mapping[str, Any]:
        checked = model.model_validate(arguments)
        return {name: getattr(checked, name) for name in fields if name in checked.model_fields_set}

    schema = json.dumps(close_objects(model.model_json_schema()), ensure_ascii=False)
    return Tool(function.__name__, inspect.getdoc(function) or "", schema, function, validate)


def output_from_tools(tools: Iterable[Any]) -> Output:
    """The constraint "one call of one of these tools".

    Raises:
        LanguageError: no tools, two of one name, or something that is no tool.
    """
    by_name = _by_name(tools)
    spec = ToolsSpec(_tool_specs(by_name))
    return Output(spec, "json", f"tools[{', '.join(by_name)}]", lambda text: _call_of(json.loads(text), by_name))


def output_from_parallel_tools(tools: Iterable[Any], max_calls: int | None) -> Output:
    """The constraint "a list of one to `max_calls` calls of these tools"; None is no bound.

    Raises:
        LanguageError: as `output_from_tools`.
    """
    by_name = _by_name(tools)
    spec = ToolsSpec(_tool_specs(by_name), is_list=True, high=max_calls)

    def parse(text: str) -> list[ToolCall]:
        return [_call_of(call, by_name) for call in json.loads(text)]

    return Output(spec, "json", f"list[tools[{', '.join(by_name)}]]", parse)


def schema_of_calls(spec: ToolsSpec) -> SchemaSpec:
    """Calls as JSON."""
    calls = [_call_schema(tool) for tool in spec.tools]
    one: dict[str, Any] = {"anyOf": calls} if len(calls) > 1 else calls[0]
    if spec.is_list:
        bound = {} if spec.high is None else {"maxItems": spec.high}
        one = {"type": "array", "items": one, "minItems": spec.low, **bound}
    return SchemaSpec(json.dumps(_hoist_definitions(one, spec.tools), ensure_ascii=False))


def _tool_specs(by_name: Mapping[str, Tool]) -> tuple[ToolSpec, ...]:
    specs = tuple(ToolSpec(tool.name, tool.parameters) for tool in by_name.values())
    _hoist_definitions({}, specs)  # two types of one name are a mistake here already
    return specs


def listed_tools(tools: object, what: str) -> list[Tool]:
    """Each of a list as a `Tool`. Raises LanguageError: one tool where a list is wanted, or something that is no tool.

    `what`: how the list is given, for the message: "tools=" or "tools()".
    """
    if isinstance(tools, Tool | Mapping) or callable(tools):
        one = getattr(tools, "__name__", "…")
        meant = f"tools([{one}])" if what == "tools()" else f"tools=[{one}]"
        raise LanguageError(f"{what} takes a list of tools, not one tool; write {meant}")
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise LanguageError(f"{what} takes a list of functions or schemas, not {tools!r}")
    return [tool_of(item) for item in tools]


def _by_name(tools: Iterable[Any]) -> dict[str, Tool]:
    items = listed_tools(tools, "tools=")
    by_name = {tool.name: tool for tool in items}
    if not items or len(by_name) < len(items):
        raise LanguageError(f"tools= takes at least one tool and each name once, not {[t.name for t in items]}")
    return by_name


def _call_of(call: Mapping[str, Any], by_name: Mapping[str, Tool]) -> ToolCall:
    tool = by_name[call["name"]]
    arguments = call["arguments"]
    return ToolCall(tool.name, tool.validate(arguments) if tool.validate else arguments, tool)


def _call_schema(tool: ToolSpec) -> dict[str, Any]:
    parameters = {key: value for key, value in json.loads(tool.parameters).items() if key != "$defs"}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _hoist_definitions(schema: dict[str, Any], tools: Iterable[ToolSpec]) -> dict[str, Any]:
    """Definitions move to the root, where the references of each tool's schema look for them."""
    definitions: dict[str, Any] = {}
    for tool in tools:
        for name, body in json.loads(tool.parameters).get("$defs", {}).items():
            if definitions.setdefault(name, body) != body:
                raise LanguageError(f"tools= has two different types named {name!r}; rename one")
    return {**schema, "$defs": definitions} if definitions else schema
