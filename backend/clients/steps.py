"""One step of a program as a program of its own, for a forktree server.

The chat routes cannot say everything that a branch is: a turn that has begun, healing, options behind turns, tags,
reasoning. A program can, so such a step is sent as one, the one generation or choice, and the branch beside it, as a
journal stores it: with the ids of what the model made. What it makes comes back with its ids too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forktree.lang import ir
from forktree.lang.constraints import ToolsSpec
from forktree.lang.errors import BackendError, UnsupportedError
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
    Segment,
    StoredRun,
    Text,
    TokenLogprob,
    Tools,
)

_NAME = "value"
_NO_ID = -1


def program_of(request: GenerateRequest | ScoreRequest) -> Program:
    """The step alone, whose one variable is what it makes."""
    return Program(request.name or "step", ops=(Op(0, _asked(request)),))


def stored_branch(branch: Branch | None) -> list[list[Any]]:
    """The segments of a branch as a journal stores them: the kind of each, and its fields in order."""
    return [_stored(segment) for segment in ([] if branch is None else branch.segments())]


def has_ids(branch: Branch | None) -> bool:
    """Is there something that the model made and whose ids are known?"""
    return branch is not None and any(isinstance(one, Generated) and one.ids for one in branch.segments())


def _stored(segment: Segment) -> list[Any]:
    match segment:
        case Text(text, markup):
            return ["Text", text, markup]
        case Generated(text, ids, num_withdrawn):
            return ["Generated", text, {"$tuple": list(ids)}, num_withdrawn]
        case RoleBegin(role) | RoleEnd(role):
            return [type(segment).__name__, role]
        case Tools(definitions):
            return ["Tools", definitions]
        case ForkMark():
            return ["ForkMark"]
        case Image():
            raise UnsupportedError("a forktree server reads text only: leave the image out")


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


def completion_of(request: GenerateRequest, run: StoredRun) -> Completion:
    """What the step generated. Raises BackendError: the server's answer holds no such variable."""
    kept, meta = _variable(run)
    value = None
    if isinstance(request.constraint, ToolsSpec) and "value" in kept:
        value = json.dumps(kept["value"], ensure_ascii=False)
    return Completion(
        segment=_made(run, meta["text"]),
        finish_reason=meta["finish_reason"],
        is_complete=meta["is_complete"],
        stop=meta["stop"],
        value=value,
        reasoning=meta["reasoning"],
        usage=run.usage,
        logprobs=tuple(_logprob(entry["data"]) for entry in _items(meta["logprobs"])),
    )


def _made(run: StoredRun, text: str) -> Generated:
    """What the model made, with its ids where the server tells them: it is the last segment of the branch there."""
    match json.loads(run.branch)[-1:]:
        case [["Generated", made, ids, int(num_withdrawn)]] if made == text:
            return Generated(text, tuple(_items(ids)), num_withdrawn)
    return Generated(text)


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
