"""One step of a program as a program of its own, for a forktree server.

The chat routes cannot say everything that a branch is: a turn that has begun, healing, options behind turns, tags,
reasoning. A program can, so such a step is sent as one: the branch as text and roles, and the one generation or
choice. What a model made before is sent as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from forktree.lang import ir
from forktree.lang.constraints import ToolsSpec
from forktree.lang.errors import BackendError
from forktree.lang.program import Op, Program
from forktree.lang.types import Output
from forktree.runtime.protocol import (
    Branch,
    Completion,
    ForkMark,
    Generated,
    GenerateRequest,
    Image,
    OptionScore,
    RoleBegin,
    RoleEnd,
    ScoreRequest,
    ScoreResult,
    StoredRun,
    Text,
    TokenLogprob,
    Tools,
)

_NAME = "value"
_NO_ID = -1


def program_of(request: GenerateRequest | ScoreRequest) -> Program:
    """The step, whose one variable is what it makes."""
    nodes = list(_nodes(request.branch))
    nodes.append(_asked(request))
    role = _open_role(request.branch)
    if role is not None:
        nodes.append(ir.RoleEnd(role))
    return Program(request.name or "step", ops=tuple(Op(0, node) for node in nodes))


def _nodes(branch: Branch | None) -> Iterator[ir.Node]:
    for segment in [] if branch is None else branch.segments():
        match segment:
            case Text(text, markup):
                yield ir.Text(text, markup)
            case Generated(text):
                yield ir.Text(text)
            case RoleBegin(role):
                yield ir.RoleBegin(role)
            case RoleEnd(role):
                yield ir.RoleEnd(role)
            case Image(data, media_type):
                yield ir.Image(data, media_type)
            case Tools(definitions):
                yield ir.Tools(definitions)
            case ForkMark():
                pass


def _asked(request: GenerateRequest | ScoreRequest) -> ir.Node:
    if isinstance(request, ScoreRequest):
        by = "unconditional_likelihood_normalized" if request.unconditional else "token_length_normalized"
        return ir.Select(_NAME, request.options, by)  # type: ignore[arg-type]
    sampling = replace(request.sampling, n=None)
    if sampling.seed is not None and request.sample_index:
        sampling = replace(sampling, seed=sampling.seed + request.sample_index)
    spec = request.constraint
    output = None if spec is None else Output(spec, "json" if isinstance(spec, ToolsSpec) else "text")
    return ir.Gen(_NAME, sampling, output, request.on_budget, request.heal)


def _open_role(branch: Branch | None) -> str | None:
    while branch is not None:
        match branch.segment:
            case RoleBegin(role):
                return role
            case RoleEnd():
                return None
        branch = branch.parent
    return None


def completion_of(request: GenerateRequest, run: StoredRun) -> Completion:
    """What the step generated. Raises BackendError: the server's answer holds no such variable."""
    kept, meta = _variable(run)
    value = None
    if isinstance(request.constraint, ToolsSpec) and "value" in kept:
        value = json.dumps(kept["value"], ensure_ascii=False)
    return Completion(
        segment=Generated(meta["text"]),
        finish_reason=meta["finish_reason"],
        is_complete=meta["is_complete"],
        stop=meta["stop"],
        value=value,
        reasoning=meta["reasoning"],
        usage=run.usage,
        logprobs=tuple(_logprob(entry["data"]) for entry in _items(meta["logprobs"])),
    )


def scores_of(request: ScoreRequest, run: StoredRun) -> ScoreResult:
    """What the step scored. Raises BackendError as `completion_of`."""
    _, meta = _variable(run)
    options = [entry["data"] for entry in _items(meta["options"])]
    return ScoreResult(tuple(_option(data, request.unconditional) for data in options), run.usage)


def _option(data: Mapping[str, Any], is_relative: bool) -> OptionScore:
    """The server keeps of an option without its prompt only the mean, which is what its score lacks."""
    logprobs = tuple(_items(data["token_logprobs"]))
    alone = None
    if is_relative:
        alone = (sum(logprobs) / len(logprobs) - data["score"],) if logprobs else ()
    return OptionScore((_NO_ID,) * len(logprobs), logprobs, alone)


def _variable(run: StoredRun) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    try:
        kept = json.loads(run.variables)[_NAME]
        return kept, kept["meta"]["data"]
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError(f"the server's answer to a step holds no value: {run.variables[:120]!r}") from error


def _items(stored: Any) -> list[Any]:
    """A tuple as a journal stores it."""
    return list(stored["$tuple"]) if isinstance(stored, dict) else list(stored)


def _logprob(data: Mapping[str, Any]) -> TokenLogprob:
    top = tuple((token, logprob) for token, logprob in map(_items, _items(data["top"])))
    return TokenLogprob(data["token"], data["text"], data["logprob"], top, tuple(_items(data.get("top_texts", []))))
