"""What ran: the meta of each variable, and the recorder of the program's operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

from forktree.lang import ir
from forktree.lang.program import Op
from forktree.runtime.protocol import Backend, Completion, GenerateRequest, ScoreRequest, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class OptionMeta:
    """One option of a select.

    Attributes:
        logprob: sum of the log-probabilities (natural log) of its tokens; -inf for an empty option.
        probability: exp(logprob), normalised over the distinct options.
        score: what the select method compared; the largest won (for greedy selection, the one kept longest).
        token_logprobs: per token that was scored.
    """

    text: str
    logprob: float
    probability: float
    score: float
    token_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Meta:
    """How a variable was made.

    Attributes:
        text: the text that the model wrote, before it became a typed value.
        finish_reason: "stop", "length", or "select"; None for a value that the program set or joined.
        is_complete: the constraint, if there was one, is satisfied.
        stop: the stop string or token id that ended it.
        reasoning: what the model thought before its answer, with `gen(reasoning=…)`.
        prompt_tokens, cached_tokens, completion_tokens: counts; cached ones are part of the prompt's.
        logprobs: one entry a generated token, if asked for.
        options: every option of a select, in order.
        outside: the probability that was left to anything but the options.
        saved_tokens: prompt tokens, at least, that no call of its own had to send, since one call asked for this
            and others (API speculation); the first of them has the counts of the whole call.
        samples: with n > 1, or after a join of several branches, one meta each.
    """

    text: str = ""
    finish_reason: str | None = None
    is_complete: bool = True
    stop: str | int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    options: tuple[OptionMeta, ...] = ()
    outside: float | None = None
    samples: tuple[Meta, ...] = ()
    saved_tokens: int = 0
    reasoning: str = ""

    @property
    def probabilities(self) -> dict[str, float]:
        """Option text to normalised probability."""
        return {option.text: option.probability for option in self.options}

    @property
    def option_logprobs(self) -> dict[str, float]:
        """Option text to log-probability."""
        return {option.text: option.logprob for option in self.options}

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def meta_of(completion: Completion, samples: tuple[Meta, ...] = ()) -> Meta:
    """The meta of a generation."""
    usage = completion.usage
    return Meta(
        completion.segment.text,
        completion.finish_reason,
        completion.is_complete,
        completion.stop,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        completion.logprobs,
        samples=samples,
        reasoning=completion.reasoning,
    )


class Answered(NamedTuple):
    """A request that a backend has answered, what it counted, and the prompt tokens that speculation saved."""

    backend: Backend
    request: GenerateRequest | ScoreRequest
    usage: Usage
    saved_tokens: int = 0


@dataclass(slots=True)
class Recorder:
    """The operations of one run in program order, with those of the programs that it called.

    Every write is atomic, so that branches and nested programs of several threads may write.

    Attributes:
        answers: what backends have answered, in the order of the answers.
    """

    name: str
    ops: list[Op] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)
    _branches: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    def new_branch(self) -> int:
        """The next number of a branch; the trunk is 0."""
        return next(self._branches)

    def add(self, branch: int, node: ir.Node) -> None:
        self.ops.append(Op(branch, node))
