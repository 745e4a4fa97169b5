"""From the fields of a request to what the engine takes: sampling, constraint, how many samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from forktree.backend.grammar.constraints import constraint_from_spec
from forktree.backend.grammar.markup import Spec
from forktree.backend.server.conversation import NO_PARAMETERS
from forktree.backend.server.errors import ApiError, api_error
from forktree.backend.server.schemas.chat import (
    AllowedToolsChoice,
    ChatRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    OfferedTool,
)
from forktree.backend.server.schemas.sampling import SamplingFields
from forktree.backend.server.tool_calls import CallPlan, plan_calls
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.constraints import ChoicesSpec, GrammarSpec, ReasoningSpec, RegexSpec, SchemaSpec, ToolSpec
from forktree.lang.errors import ConstraintError
from forktree.lang.sampling import Sampling


def check_stream(body: SamplingFields) -> None:
    """Raises ApiError: how to stream is said of an answer that is not streamed."""
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options goes with stream: true", param="stream_options")


def sampling_of(body: SamplingFields, *, max_tokens: int | None, logprobs: int | None) -> Sampling:
    """Raises ApiError: the values contradict each other."""
    bias = {int(key): value for key, value in (body.logit_bias or {}).items()}
    stop = [body.stop] if isinstance(body.stop, str) else body.stop
    try:
        return Sampling(
            max_tokens=max_tokens,
            min_tokens=body.min_tokens,
            stop=tuple(stop) if stop else None,
            stop_token_ids=tuple(body.stop_token_ids) if body.stop_token_ids else None,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            min_p=body.min_p,
            frequency_penalty=body.frequency_penalty,
            presence_penalty=body.presence_penalty,
            repetition_penalty=body.repetition_penalty,
            logit_bias=tuple(sorted(bias.items())) or None,
            seed=body.seed,
            ignore_eos=body.ignore_eos,
            logprobs=logprobs,
        )
    except ValueError as error:
        raise ApiError(400, str(error), param=str(error).split(" ", 1)[0]) from None


def constraint_of(body: SamplingFields) -> Spec | None:
    """What the whole output satisfies. Raises ApiError: several things, or one that cannot be honoured."""
    asked: dict[str, Callable[[], Spec]] = {}
    if body.regex is not None:
        asked["regex"] = lambda: RegexSpec(body.regex or "")
    if body.grammar is not None:
        asked["grammar"] = lambda: GrammarSpec(body.grammar or "")
    if body.choices is not None:
        asked["choices"] = lambda: ChoicesSpec(tuple(body.choices or ()))
    form = body.response_format if isinstance(body, ChatRequest) else None
    if isinstance(form, JsonObjectFormat):
        asked["response_format"] = lambda: SchemaSpec('{"type":"object"}')
    if isinstance(form, JsonSchemaFormat):
        schema = form.json_schema.schema_
        asked["response_format"] = lambda: SchemaSpec(json.dumps(schema, ensure_ascii=False))
    if len(asked) > 1:
        raise ApiError(400, f"an output obeys one constraint, not {' and '.join(asked)}", param=list(asked)[-1])
    for name, spec in asked.items():
        return checked_constraint(spec(), "response_format.json_schema.schema" if name == "response_format" else name)
    return None


def checked_constraint(spec: Spec, param: str) -> Spec:
    """The same. Raises ApiError, naming the field: it cannot be honoured in full."""
    try:
        constraint_from_spec(spec)
    except ConstraintError as error:
        raise api_error(error, param=param) from None
    return spec


def offered_tools(body: ChatRequest) -> list[OfferedTool]:
    """The tools that the model is told of: none where it may not call any.

    Raises ApiError: two of one name, or a choice that names none of them.
    """
    tools = body.tools or []
    names = [tool.function.name for tool in tools]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ApiError(400, f"tools has {doubled!r} twice", param="tools")
    for name in _chosen(body):
        if name not in names:
            raise ApiError(400, f"tool_choice names {name!r}, and tools has {names or 'none'}", param="tool_choice")
    if body.tool_choice == "required" and not tools:
        raise ApiError(400, 'tool_choice is "required", and there are no tools', param="tool_choice")
    return [] if body.tool_choice == "none" else tools


def calls_of(body: ChatRequest, tools: list[OfferedTool], tokenizer: Tokenizer) -> CallPlan | None:
    """Which calls the output may make. Raises ApiError: the arguments of a tool cannot be constrained."""
    if not tools:
        return None
    chosen = _chosen(body)
    mode = body.tool_choice
    is_required = mode == "required" or isinstance(mode, NamedTool)
    if isinstance(mode, AllowedToolsChoice):
        is_required = mode.allowed_tools.mode == "required"
    specs = []
    for index, tool in enumerate(body.tools or ()):
        parameters = NO_PARAMETERS if tool.function.parameters is None else tool.function.parameters
        schema = json.dumps(parameters, ensure_ascii=False)
        if not chosen or tool.function.name in chosen:
            checked_constraint(SchemaSpec(schema), f"tools[{index}].function.parameters")
            specs.append(ToolSpec(tool.function.name, schema))
    is_parallel = body.parallel_tool_calls is not False and not isinstance(mode, NamedTool)
    return plan_calls(specs, tokenizer, is_required=is_required, is_parallel=is_parallel)


def _chosen(body: ChatRequest) -> list[str]:
    """The names that the choice of tools holds."""
    match body.tool_choice:
        case NamedTool(function=function):
            return [function.name]
        case AllowedToolsChoice(allowed_tools=allowed):
            return [tool.function.name for tool in allowed.tools]
    return []


def with_reasoning(body: ChatRequest, spec: Spec | None, tokenizer: Tokenizer) -> Any:
    """The same behind reasoning, if that is asked for. Raises ApiError: the model has no markup for it."""
    if body.reasoning is None:
        return spec
    if tokenizer.reasoning_markup is None:
        raise ApiError(400, "the model's chat template shows no reasoning: leave reasoning out", param="reasoning")
    return ReasoningSpec(spec, max_tokens=body.reasoning.max_tokens)  # type: ignore[arg-type]


def num_samples(body: SamplingFields, num_prompts: int, most: int, *, best_of: int | None = None) -> int:
    """Samples of each prompt. Raises ApiError: more than the server allows."""
    count = best_of or body.n or 1
    if count * num_prompts > most:
        what = "best_of" if best_of else "n"
        raise ApiError(400, f"{what} times prompts is {count * num_prompts}, above the {most} allowed", param=what)
    return count
