"""`POST /generate`: SGLang's native form. Each event of a stream says all of the text so far."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.grammar.gbnf import lark_from_gbnf
from forktree.backend.grammar.markup import Spec
from forktree.backend.local_generation import Ask, End, Piece
from forktree.backend.server.asked import checked_constraint
from forktree.backend.server.choices import closing_all, merged, opened
from forktree.backend.server.endpoints import Endpoint
from forktree.backend.server.errors import ApiError, api_error
from forktree.backend.server.flights import Watched
from forktree.backend.server.presence import unless_disconnected
from forktree.backend.server.schemas.generate import GenerateRequest, Parameters
from forktree.backend.server.served import Served
from forktree.backend.server.streams import EventStream
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.constraints import GrammarSpec, RegexSpec, SchemaSpec
from forktree.lang.errors import BackendError, ConstraintError
from forktree.lang.sampling import Sampling
from forktree.runtime.protocol import TokenLogprob

_DEFAULT_MAX_TOKENS = 128


def routes() -> list[Endpoint]:
    return [
        Endpoint(
            method="POST",
            path="/generate",
            answer=answer,
            summary="Continuations of prompts, in SGLang's native form",
            body=GenerateRequest,
            gives={"type": ["object", "array"]},
            streams=True,
        )
    ]


@dataclass(slots=True)
class _Output:
    """One sequence as it grows."""

    id: str
    ids: tuple[int, ...]
    text: str = ""
    tokens: list[TokenLogprob] = field(default_factory=list)
    end: End | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """One request on its way."""

    body: GenerateRequest
    tokenizer: Tokenizer
    outputs: list[_Output]
    is_list: bool


async def answer(served: Served, request: Request, body: GenerateRequest) -> Any:
    """See `Endpoint`."""
    asks = await asyncio.to_thread(_asks, served, body)
    count = body.sampling_params.n or 1
    is_many = isinstance(body.text, list) or (body.input_ids is not None and isinstance(body.input_ids[0], list))
    name = "text" if body.text is not None else "input_ids"
    generations = await opened(served, asks, lambda index: f"{name}[{index // count}]" if is_many else name)
    root = body.rid or uuid.uuid4().hex
    outputs = [_Output(root if len(asks) == 1 else f"{root}_{at}", ask.ids) for at, ask in enumerate(asks)]
    job = _Job(body, served.tokenizer, outputs, is_list=is_many or count > 1)
    if body.stream:
        return EventStream(_events(job, generations), generations)
    with closing_all(generations):
        await unless_disconnected(request.receive, _finish(job, generations))
    told = [_told(job, output) for output in outputs]
    return JSONResponse(told if job.is_list else told[0])


def _asks(served: Served, body: GenerateRequest) -> list[Ask]:
    """What the engine is to compute; takes a while, so not on the loop."""
    parameters = body.sampling_params
    prompts = _prompts(served.tokenizer, body)
    count = parameters.n or 1
    if count * len(prompts) > served.settings.max_choices:
        message = f"n times prompts is {count * len(prompts)}, above the {served.settings.max_choices} allowed"
        raise ApiError(400, message, param="sampling_params.n")
    sampling, constraint = _sampling(body), _constraint(parameters)
    scores_prompt = _scores(body)
    only_prompt = parameters.max_new_tokens == 0
    return [
        Ask(
            ids=ids,
            sampling=sampling,
            constraint=constraint,
            sample_index=sample,
            scores_prompt=scores_prompt,
            only_prompt=only_prompt,
        )
        for ids in prompts
        for sample in range(count)
    ]


def _scores(body: GenerateRequest) -> bool:
    return bool(body.return_logprob) and body.logprob_start_len is not None and body.logprob_start_len >= 0


def _prompts(tokenizer: Tokenizer, body: GenerateRequest) -> list[tuple[int, ...]]:
    if body.text is not None:
        texts = [body.text] if isinstance(body.text, str) else body.text
        try:
            return [tuple(tokenizer.encode_prompt(text)) or tokenizer.start_ids for text in texts]
        except BackendError as error:
            raise ApiError(400, f"text: {error}", param="text") from None
    given: Any = body.input_ids
    lists = given if isinstance(given[0], list) else [given]
    for ids in lists:
        wrong = next((id for id in ids if not 0 <= id < tokenizer.size), None)
        if wrong is not None or not ids:
            message = f"input_ids has {'no ids' if wrong is None else wrong}; there are ids 0 to {tokenizer.size - 1}"
            raise ApiError(400, message, param="input_ids", code="invalid_value")
    return [tuple(ids) for ids in lists]


def _sampling(body: GenerateRequest) -> Sampling:
    given = body.sampling_params
    most = _DEFAULT_MAX_TOKENS if given.max_new_tokens is None else given.max_new_tokens or None
    stop = [given.stop] if isinstance(given.stop, str) else given.stop
    try:
        return Sampling(
            max_tokens=most,
            min_tokens=given.min_new_tokens,
            stop=tuple(stop) if stop else None,
            stop_token_ids=tuple(given.stop_token_ids) if given.stop_token_ids else None,
            stop_regex=given.stop_regex,
            temperature=1.0 if given.temperature is None else given.temperature,
            top_p=given.top_p,
            top_k=given.top_k,
            min_p=given.min_p,
            frequency_penalty=given.frequency_penalty,
            presence_penalty=given.presence_penalty,
            repetition_penalty=given.repetition_penalty,
            seed=given.sampling_seed,
            ignore_eos=given.ignore_eos,
            logprobs=(body.top_logprobs_num or 0) if body.return_logprob else None,
        )
    except ValueError as error:
        raise ApiError(400, f"sampling_params: {error}", param="sampling_params") from None


def _constraint(given: Parameters) -> Spec | None:
    if given.json_schema is not None:
        try:
            json.loads(given.json_schema)
        except (ValueError, RecursionError) as error:
            where = "sampling_params.json_schema"
            raise ApiError(400, f"{where} is not JSON: {error}", param=where) from None
        return checked_constraint(SchemaSpec(given.json_schema), "sampling_params.json_schema")
    if given.regex is not None:
        return checked_constraint(RegexSpec(given.regex), "sampling_params.regex")
    if given.ebnf is not None:
        return checked_constraint(_grammar(given.ebnf), "sampling_params.ebnf")
    return None


def _grammar(text: str) -> GrammarSpec:
    """A rule of GBNF is written with `::=`, which lark's language has not."""
    try:
        return GrammarSpec(*lark_from_gbnf(text)) if "::=" in text else GrammarSpec(text)
    except ConstraintError as error:
        raise api_error(error, param="sampling_params.ebnf") from None


async def _finish(job: _Job, generations: Sequence[Watched]) -> None:
    async for index, piece in merged(generations):
        _take(job.outputs[index], piece)


async def _events(job: _Job, generations: Sequence[Watched]) -> AsyncGenerator[dict[str, Any], None]:
    async for index, piece in merged(generations):
        _take(job.outputs[index], piece)
        yield {**_told(job, job.outputs[index]), **({"index": index} if job.is_list else {})}


def _take(output: _Output, piece: Piece | End) -> None:
    if isinstance(piece, End):
        output.end = piece
    else:
        output.text += piece.text
        output.tokens += piece.tokens


def _told(job: _Job, output: _Output) -> dict[str, Any]:
    end = output.end
    about: dict[str, Any] = {"id": output.id, "finish_reason": None, "prompt_tokens": len(output.ids)}
    told = {"text": output.text, "meta_info": about}
    if end is not None:
        done = end.completion
        told["output_ids"] = list(done.segment.ids)
        about |= {
            "finish_reason": _reason(job, end),
            "completion_tokens": done.usage.completion_tokens,
            "cached_tokens": done.usage.cached_tokens,
        }
    if job.body.return_logprob:
        about |= _logprobs(job, output)
    return told


def _reason(job: _Job, end: End) -> dict[str, Any]:
    if end.completion.finish_reason == "length":
        most = job.body.sampling_params.max_new_tokens
        return {"type": "length", "length": _DEFAULT_MAX_TOKENS if most is None else most}
    stop = end.completion.stop
    return {"type": "stop"} if stop is None else {"type": "stop", "matched": stop}


def _logprobs(job: _Job, output: _Output) -> dict[str, Any]:
    """Each entry is [log-probability, id, text or null]."""
    shows_text, tokenizer = bool(job.body.return_text_in_logprobs), job.tokenizer

    def entry(logprob: float | None, id: int) -> list[Any]:
        return [logprob, id, tokenizer.decode([id]) if shows_text else None]

    told: dict[str, Any] = {"output_token_logprobs": [entry(one.logprob, one.token) for one in output.tokens]}
    if job.body.top_logprobs_num:
        told["output_top_logprobs"] = [[entry(logprob, id) for id, logprob in one.top] for one in output.tokens]
    if output.end is not None and _scores(job.body):
        scores: list[float | None] = [None, *output.end.prompt_logprobs]
        start = job.body.logprob_start_len or 0
        told["input_token_logprobs"] = [
            entry(score, id) for score, id in list(zip(scores, output.ids, strict=False))[start:]
        ]
    return told
