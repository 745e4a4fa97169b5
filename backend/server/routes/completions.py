"""`POST /v1/completions`: prompts as they are, without a chat template."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from forktree.backend.local_generation import Ask, End, Piece
from forktree.backend.server import asked
from forktree.backend.server.choices import closing_all, merged, opened, usage_of
from forktree.backend.server.endpoints import Endpoint, post
from forktree.backend.server.errors import ApiError
from forktree.backend.server.flights import Watched
from forktree.backend.server.logprobs import CompletionLogprobs, joined
from forktree.backend.server.presence import unless_disconnected
from forktree.backend.server.prompts import Prompt, prompts_of
from forktree.backend.server.schemas.completions import CompletionRequest
from forktree.backend.server.served import Served
from forktree.backend.server.streams import EventStream
from forktree.backend.tokenizer import Place
from forktree.runtime.protocol import Completion, TokenLogprob

_DEFAULT_MAX_TOKENS = 16


def routes() -> list[Endpoint]:
    return [
        post(
            "/v1/completions",
            answer,
            CompletionRequest,
            "Continuations of prompts",
            gives=("id", "object", "created", "model", "choices", "usage"),
            streams=True,
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Job:
    """One request on its way; generation `p * num_samples + s` is sample `s` of prompt `p`."""

    served: Served
    body: CompletionRequest
    prompts: list[Prompt]
    num_samples: int
    head: dict[str, Any]

    @property
    def num_shown(self) -> int:
        """Choices of each prompt."""
        return self.body.n or 1


async def answer(served: Served, request: Request, body: CompletionRequest) -> Any:
    """See `Endpoint`."""
    model = served.model_of(body.model)
    _check(body)
    prompts, num_samples, asks = await asyncio.to_thread(_asks, served, body)
    generations = await opened(
        served,
        asks,
        lambda index: prompts[index // num_samples].param,
        priority=body.priority or 0,
        salt=body.cache_salt,
    )
    head = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": served.fingerprint,
    }
    job = _Job(served, body, prompts, num_samples, head)
    if body.stream:
        return EventStream(_chunks(job, generations), generations)
    with closing_all(generations):
        return JSONResponse(await unless_disconnected(request.receive, _whole(job, generations)))


def _check(body: CompletionRequest) -> None:
    """Raises ApiError: fields that contradict each other."""
    asked.check_stream(body)
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens: 0 goes with echo: true", param="max_tokens")
    if body.max_tokens == 0 and body.min_tokens:
        raise ApiError(400, "min_tokens is more than max_tokens", param="min_tokens")
    if body.best_of is not None and body.best_of < (body.n or 1):
        raise ApiError(400, f"best_of must be at least n ({body.n or 1}), not {body.best_of}", param="best_of")
    if body.stream and body.best_of is not None and body.best_of > (body.n or 1):
        raise ApiError(400, "the best of several cannot be streamed: leave best_of out", param="best_of")
    if body.stream and body.echo and body.logprobs is not None:
        raise ApiError(400, "a stream does not echo a prompt with log-probabilities: drop one", param="echo")


def _asks(served: Served, body: CompletionRequest) -> tuple[list[Prompt], int, list[Ask]]:
    """What the engine is to compute; takes a while, so not on the loop."""
    several = isinstance(body.prompt, list) and not isinstance(body.prompt[0], int)
    num_prompts = len(body.prompt or "") if several else 1
    num_samples = asked.num_samples(body, num_prompts, served.settings.max_choices, best_of=body.best_of)
    ranks = num_samples > (body.n or 1)
    logprobs = 0 if body.logprobs is None and ranks else body.logprobs
    max_tokens = _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens or None
    sampling = asked.sampling_of(body, max_tokens=max_tokens, logprobs=logprobs)
    constraint = asked.constraint_of(body)
    prompts = prompts_of("prompt", body.prompt, served.tokenizer, markup=bool(body.markup))
    asks = [
        Ask(
            ids=prompt.ids,
            sampling=sampling,
            constraint=constraint,
            sample_index=sample,
            on_budget=body.on_budget or "cut",
            scores_prompt=bool(body.echo) and body.logprobs is not None and sample == 0,
            only_prompt=body.max_tokens == 0,
        )
        for prompt in prompts
        for sample in range(num_samples)
    ]
    return prompts, num_samples, asks


# --- whole answers -----------------------------------------------------------------------------------------


async def _whole(job: _Job, generations: Sequence[Watched]) -> dict[str, Any]:
    ends: list[End | None] = [None] * len(generations)
    async for index, piece in merged(generations):
        if isinstance(piece, End):
            ends[index] = piece
    done = [end for end in ends if end is not None]
    choices = []
    for number, prompt in enumerate(job.prompts):
        samples = done[number * job.num_samples : (number + 1) * job.num_samples]
        scored = samples[0].prompt_logprobs
        if job.num_samples > job.num_shown:
            samples = sorted(samples, key=_badness)[: job.num_shown]
        choices += [_choice(job, prompt, end.completion, scored) for end in samples]
    return {
        **job.head,
        "choices": [{"index": index, **choice} for index, choice in enumerate(choices)],
        "usage": usage_of([end.completion for end in done], job.num_samples),
    }


def _badness(end: End) -> float:
    """The mean of what its tokens' log-probabilities lack."""
    tokens = end.completion.logprobs
    return -sum(token.logprob for token in tokens) / max(len(tokens), 1)


def _choice(job: _Job, prompt: Prompt, completion: Completion, scored: Sequence[float]) -> dict[str, Any]:
    text = completion.segment.text
    logprobs = None
    if job.body.logprobs is not None:
        logprobs = _logprobs(job, prompt, completion.logprobs, scored)
    return {
        "text": prompt.text + text if job.body.echo else text,
        "logprobs": logprobs,
        "finish_reason": completion.finish_reason,
    }


def _logprobs(job: _Job, prompt: Prompt, tokens: Sequence[TokenLogprob], scored: Sequence[float]) -> dict[str, Any]:
    tokenizer, num_top = job.served.tokenizer, job.body.logprobs or 0
    echoed = len(prompt.text) if job.body.echo else 0
    made = CompletionLogprobs(tokenizer, num_top=num_top, offset=echoed).add(tokens)
    if not job.body.echo:
        return made
    before = CompletionLogprobs(tokenizer, num_top=num_top, place=Place.START)
    return joined(before.add_prompt(prompt.ids, scored), made)


# --- streams -----------------------------------------------------------------------------------------------


async def _chunks(job: _Job, generations: Sequence[Watched]) -> AsyncGenerator[dict[str, Any], None]:
    num_top = job.body.logprobs
    logs = [CompletionLogprobs(job.served.tokenizer, num_top=num_top or 0) for _ in generations]
    ends: list[Completion | None] = [None] * len(generations)
    if job.body.echo:
        for index in range(len(generations)):
            yield _chunk(job, index, job.prompts[index // job.num_samples].text)
    async for index, piece in merged(generations):
        if isinstance(piece, Piece):
            logprobs = logs[index].add(piece.tokens) if num_top is not None and piece.tokens else None
            yield _chunk(job, index, piece.text, logprobs)
        else:
            ends[index] = piece.completion
            yield _chunk(job, index, "", reason=piece.completion.finish_reason)
    if job.body.stream_options is not None and job.body.stream_options.include_usage:
        usage = usage_of([end for end in ends if end], job.num_samples)
        yield {**job.head, "choices": [], "usage": usage}


def _chunk(
    job: _Job, index: int, text: str, logprobs: dict[str, Any] | None = None, reason: str | None = None
) -> dict[str, Any]:
    choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
    return {**job.head, "choices": [choice]}
