"""What a select makes the engine compute, and what any request would."""

from __future__ import annotations

from typing import NamedTuple

from forktree.backend.render import Options, Renderer
from forktree.backend.tokenizer import Tokenizer
from forktree.runtime.protocol import GenerateRequest, PlannedPrompt, ScoreRequest


class ScoreJob(NamedTuple):
    """Score `ids` from position `score_from` on."""

    ids: tuple[int, ...]
    score_from: int


class ScoreJobs(NamedTuple):
    """The distinct things to score: `jobs` is one for each of `wholes`, then one for each of `alone`.

    Attributes:
        wholes: prompt and option.
        alone: what is scored of each, behind nothing but the start of a text; empty if not asked for.
    """

    wholes: list[tuple[int, ...]]
    alone: list[tuple[int, ...]]
    jobs: list[ScoreJob]


def score_jobs(request: ScoreRequest, plan: Options, tokenizer: Tokenizer) -> ScoreJobs:
    """Equal options are computed once, an empty one not at all."""
    tails = {ids: ids[plan.score_from :] for ids, option in zip(plan.ids, request.options, strict=True) if option}
    wholes = [ids for ids, tail in tails.items() if tail]
    alone = list(dict.fromkeys(tails[ids] for ids in wholes)) if request.unconditional else []
    start = tokenizer.start_ids
    jobs = [ScoreJob(ids, plan.score_from) for ids in wholes]
    return ScoreJobs(wholes, alone, jobs + [ScoreJob((*start, *ids), len(start)) for ids in alone])


def plan_prompts(
    request: GenerateRequest | ScoreRequest, renderer: Renderer, tokenizer: Tokenizer
) -> list[PlannedPrompt]:
    """The prompts of a request. The engine computes the last token of each for its logits, and of a scored one
    every row from the one before the first that is scored."""
    if isinstance(request, GenerateRequest):
        ids = renderer.prompt(request.branch, heal=request.heal).ids
        return [PlannedPrompt(ids, len(ids) - 1)]
    jobs = score_jobs(request, renderer.options(request.branch, request.options), tokenizer).jobs
    return [PlannedPrompt(job.ids, job.score_from - 1) for job in jobs]
