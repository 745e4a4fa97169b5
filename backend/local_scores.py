"""What a select makes the engine compute, and what any request would.

All options of a select are one request: a prompt that ends where they begin to differ, and the trie of the rest.
Options with very many tokens are cut into several requests, so that none holds much of the pool at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from forktree.backend.engine.continuations import Continuations, lay_out, merge_runs
from forktree.backend.engine.messages import EngineRequest, Event, Finished
from forktree.backend.render import Options, Renderer
from forktree.backend.tokenizer import Tokenizer
from forktree.runtime.protocol import GenerateRequest, PlannedPrompt, ScoreRequest

MAX_NODES = 1024
"""Most tokens in the trie of one request: twice what a step computes, so that larger ones would gain nothing."""

Ids = tuple[int, ...]


class ScoreJob(NamedTuple):
    """One request: score `ids` from `score_from` on, and continuations behind them."""

    ids: Ids
    score_from: int
    continuations: Continuations

    def request(self, on_event: Callable[[Event], None]) -> EngineRequest:
        """What the engine is given."""
        return EngineRequest(
            ids=self.ids, score_from=self.score_from, continuations=self.continuations, on_event=on_event
        )


class Place(NamedTuple):
    """Where the score of an option ends: a node of a job's continuations."""

    job: int
    node: int


class ScoreJobs(NamedTuple):
    """What is to be scored for one select.

    Attributes:
        behind: the tokens of each option that are scored, and where they are behind the prompt.
        alone: the same behind nothing but the start of a text; empty if not asked for.
    """

    jobs: list[ScoreJob]
    behind: dict[Ids, Place]
    alone: dict[Ids, Place]

    def logprobs(self, place: Place, finished: Sequence[Finished]) -> tuple[float, ...]:
        """Of the scored tokens up to a place, from what the engine made of each job."""
        job, done = self.jobs[place.job], finished[place.job]
        path = job.continuations.path_to(place.node)
        return (*done.prompt_logprobs, *(done.continuation_logprobs[node] for node in path))


def score_jobs(request: ScoreRequest, plan: Options, tokenizer: Tokenizer, max_tokens: int) -> ScoreJobs:
    """Equal options are computed once, an empty one not at all.

    `max_tokens`: most tokens of one request.
    """
    tails = {ids[plan.score_from :] for ids, option in zip(plan.ids, request.options, strict=True) if option} - {()}
    jobs: list[ScoreJob] = []
    prompt = plan.ids[0][: plan.score_from] if tails else ()
    behind = _add(jobs, prompt, tails, max_tokens)
    return ScoreJobs(jobs, behind, _add(jobs, tokenizer.start_ids, tails, max_tokens) if request.unconditional else {})


def _add(jobs: list[ScoreJob], prompt: Ids, tails: Iterable[Ids], max_tokens: int) -> dict[Ids, Place]:
    """Jobs that score these tails behind a prompt."""
    places = {}
    for group in _cut(sorted(tails), min(MAX_NODES, max_tokens - len(prompt))):
        # Every tail keeps a token for the trie: what they share is prompt, and its last token foretells the next.
        num_shared = min(_num_common(group[0], group[-1]), min(map(len, group)) - 1)
        continuations, ends = merge_runs(tail[num_shared:] for tail in group)
        places.update({tail: Place(len(jobs), node) for tail, node in zip(group, ends, strict=True)})
        jobs.append(ScoreJob((*prompt, *group[0][:num_shared]), len(prompt), continuations))
    return places


def _cut(ordered: Sequence[Ids], max_nodes: int) -> Iterator[Sequence[Ids]]:
    """Groups of neighbours whose tries have at most `max_nodes` tokens, or one member."""
    start = num_nodes = 0
    for index, (before, tail) in enumerate(pairwise([(), *ordered])):
        num_nodes += len(tail) - _num_common(before, tail)
        if index > start and num_nodes > max_nodes:
            yield ordered[start:index]
            start, num_nodes = index, len(tail)
    if ordered:
        yield ordered[start:]


def _num_common(one: Ids, two: Ids) -> int:
    for index, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return index
    return min(len(one), len(two))


def plan_prompts(
    request: GenerateRequest | ScoreRequest, renderer: Renderer, tokenizer: Tokenizer, max_tokens: int
) -> list[PlannedPrompt]:
    """The prompts of a request. The engine computes the last token of each for its logits, and of a scored one
    every row from the one before the first that is scored."""
    if isinstance(request, GenerateRequest):
        ids = renderer.prompt(request.branch, heal=request.heal).ids
        return [PlannedPrompt(ids, len(ids) - 1)]
    plan = renderer.options(request.branch, request.options)
    return [_planned(job) for job in score_jobs(request, plan, tokenizer, max_tokens).jobs]


def _planned(job: ScoreJob) -> PlannedPrompt:
    rows = lay_out(job.continuations, len(job.ids))
    return PlannedPrompt(job.ids, job.score_from - 1, num_scratch=len(rows.tokens), num_behind=rows.height)
