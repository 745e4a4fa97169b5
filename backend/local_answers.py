"""From what the engine made to what a program appends."""

from __future__ import annotations

from collections.abc import Sequence

from forktree.backend.engine.messages import Finished, TokenInfo
from forktree.backend.local_forms import AnswerText
from forktree.backend.local_requests import Work
from forktree.backend.local_scores import ScoreJobs
from forktree.backend.render import Options
from forktree.backend.tokenizer import Place, Tokenizer
from forktree.runtime.protocol import (
    Completion,
    Generated,
    OptionScore,
    ScoreRequest,
    ScoreResult,
    TokenLogprob,
    Usage,
)


def completion_of(finished: Finished, answer: AnswerText, work: Work, tokenizer: Tokenizer) -> Completion:
    """The answer to one generation; `answer` has taken all its text, without what healing repeats."""
    is_complete = _is_complete(finished, answer.whole, work)
    return Completion(
        segment=_segment_of(finished, answer.text, work, tokenizer),
        finish_reason=finished.reason,
        is_complete=is_complete,
        stop=finished.stop,
        value=answer.value() if is_complete else None,
        reasoning=answer.reasoning,
        usage=usage_of(finished, work),
        logprobs=logprobs_of(finished.tokens, work, tokenizer),
    )


def usage_of(finished: Finished, work: Work) -> Usage:
    return Usage(finished.num_prompt, finished.num_cached, work.sink.num_tokens)


def logprobs_of(tokens: Sequence[TokenInfo], work: Work, tokenizer: Tokenizer) -> tuple[TokenLogprob, ...]:
    """One entry a kept token, if they were asked for."""
    if work.params.num_logprobs is None:
        return ()
    return tuple(
        TokenLogprob(info.token, tokenizer.decode([info.token], place=Place.INSIDE), info.logprob, info.top)
        for info in tokens
        if info.logprob is not None
    )


def _segment_of(finished: Finished, value: str, work: Work, tokenizer: Tokenizer) -> Generated:
    """The ids that spell exactly what is kept.

    A stop may cut a token in two; what is kept of it is spelled anew. Where not even the healed prefix was
    written again, its token stays as it was.
    """
    prompt = work.prompt
    num_bytes = sum(len(tokenizer.token_bytes[id]) for id in finished.ids)
    if num_bytes < len(prompt.prefix):
        return Generated(value, tuple(tokenizer.encode(value, place=Place.INSIDE)))
    tail = tokenizer.encode(finished.tail_text, place=Place.INSIDE) if finished.tail_text else []
    return Generated(value, (*finished.ids, *tail), prompt.num_withdrawn)


def _is_complete(finished: Finished, output: str, work: Work) -> bool:
    """Whether the whole output satisfies the constraint; a stop string may have cut what the matcher saw."""
    if work.constraint is None:
        return True
    if isinstance(finished.stop, str):
        return bool(work.constraint.accepts(output))
    return finished.is_complete


def scores_of(plan: Options, request: ScoreRequest, jobs: ScoreJobs, finished: Sequence[Finished]) -> ScoreResult:
    """Scores in the order of the options, from what the engine made of each job."""
    scores = []
    for ids, option in zip(plan.ids, request.options, strict=True):
        scored = ids[plan.score_from :] if option else ()
        conditional = jobs.logprobs(jobs.behind[scored], finished) if scored else ()
        unconditional = None
        if request.unconditional:
            unconditional = jobs.logprobs(jobs.alone[scored], finished) if scored else ()
        scores.append(OptionScore(scored, conditional, unconditional))
    used = {place.job for place in jobs.behind.values()}
    usage = Usage(
        prompt_tokens=plan.score_from,
        cached_tokens=min((finished[job].num_cached for job in used), default=0),
        completion_tokens=sum(len(score.ids) for score in scores),
    )
    return ScoreResult(tuple(scores), usage)
