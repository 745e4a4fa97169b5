"""The raw door: prompts as they are, completions as they come, no program around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal

from forktree.backend.engine.loop import Engine
from forktree.backend.engine.messages import Emitted, EngineRequest, Event, Failed, Finished
from forktree.backend.local_answers import logprobs_of, usage_of
from forktree.backend.local_model import LocalModel
from forktree.backend.local_requests import Work, engine_request, plan
from forktree.backend.render import Prompt
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.constraints import ConstraintSpec, HasSpec
from forktree.lang.sampling import Sampling
from forktree.runtime.protocol import TokenLogprob, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCompletion:
    """What a model made of one raw prompt.

    Attributes:
        text: without the stop string or end token.
        tokens: the generated ids alone; with a stop string those that lie wholly before it.
        finish_reason: "stop" or "length" (cut by max_tokens or the context).
        is_complete: the constraint, if any, is satisfied by the whole text.
        stop: the stop string or token id that ended it.
    """

    text: str
    tokens: list[int]
    finish_reason: Literal["stop", "length"]
    usage: Usage
    is_complete: bool = True
    stop: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


def generate_raw(
    model: LocalModel,
    prompts: str | Sequence[str | Sequence[int]],
    sampling: Sampling,
    *,
    markup: bool,
    constraint: ConstraintSpec | HasSpec | None,
) -> list[RawCompletion]:
    """See `Local.generate`."""
    tokenizer = model.tokenizer()
    spec = constraint.spec if isinstance(constraint, HasSpec) else constraint
    works = [
        plan(Prompt(ids), sampling, tokenizer, spec=spec, sample_index=sample)
        for ids in prompt_ids(prompts, tokenizer, markup)
        for sample in range(sampling.n or 1)
    ]
    outcomes = run_all(model.engine(), [partial(engine_request, work) for work in works])
    return [_completion(work, text, end, tokenizer) for work, (text, end) in zip(works, outcomes, strict=True)]


def prompt_ids(prompts: Any, tokenizer: Tokenizer, markup: bool) -> list[tuple[int, ...]]:
    """The ids of one text, or of a list of texts and lists of ids. Raises TypeError, ValueError: one is no prompt."""
    if isinstance(prompts, str):
        prompts = [prompts]
    if not isinstance(prompts, Sequence):
        raise TypeError(f"prompts must be a list of texts or of lists of token ids, not {type(prompts).__name__}")
    return [_ids(index, prompt, tokenizer, markup) for index, prompt in enumerate(prompts)]


def _ids(index: int, prompt: Any, tokenizer: Tokenizer, markup: bool) -> tuple[int, ...]:
    if isinstance(prompt, str):
        ids = tuple(tokenizer.encode_prompt(prompt, markup=markup))
    elif isinstance(prompt, int):
        raise TypeError(f"prompt {index} is the number {prompt}: prompts is a list of prompts; wrap one as [[…ids]]")
    else:
        ids = tuple(prompt)
        for id in ids:
            if isinstance(id, bool) or not isinstance(id, int):
                raise TypeError(f"prompt {index} holds {id!r}, which is no token id")
            if not 0 <= id < tokenizer.size:
                raise ValueError(f"prompt {index} holds token id {id}; this model's are 0 to {tokenizer.size - 1}")
    if not ids:
        raise ValueError(f"prompt {index} is empty: give at least one token")
    return ids


def run_all(
    engine: Engine, requests: Sequence[Callable[[Callable[[Event], None]], EngineRequest]]
) -> list[tuple[str, Finished]]:
    """Text and end of each request; the first fault in order is raised when all have ended."""
    events: SimpleQueue[tuple[int, Event]] = SimpleQueue()
    texts = [""] * len(requests)
    ends: dict[int, Finished | BaseException] = {}
    live: dict[int, int] = {}
    try:
        for index, request in enumerate(requests):
            try:
                live[index] = engine.submit(request(lambda event, index=index: events.put((index, event))))
            except Exception as error:
                ends[index] = error
        while live:
            index, event = events.get()
            if isinstance(event, Failed):
                ends[index] = event.error
            else:
                texts[index] += event.text
                if isinstance(event, Emitted):
                    continue
                ends[index] = event
            del live[index]
    finally:  # an interrupt: nobody waits for the rest
        for id in live.values():
            engine.cancel(id)
    return [(text, _finished(ends[index])) for index, text in enumerate(texts)]


def _finished(end: Finished | BaseException) -> Finished:
    if isinstance(end, BaseException):
        raise end
    return end


def _completion(work: Work, text: str, end: Finished, tokenizer: Tokenizer) -> RawCompletion:
    return RawCompletion(
        text=text,
        tokens=list(end.ids),
        finish_reason=end.reason,
        usage=usage_of(end, work),
        is_complete=work.constraint is None or end.is_complete,
        stop=end.stop,
        logprobs=logprobs_of(end.tokens, work, tokenizer),
    )
