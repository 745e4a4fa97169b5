"""How `select` compares options of different length.

    token_length_normalized              the mean log-probability of the option's tokens
    greedy_token_selection               token by token: the options whose next token is likeliest stay; an option
                                         that has ended goes on with the mean of its tokens
    unconditional_likelihood_normalized  the mean log-probability, less the mean that the tokens have without the
                                         prompt

The definitions are those of SGLang's choices methods of the same names; see also "Surface Form Competition"
(Holtzman et al., 2021) for the third. Ties go to the option that comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from forktree.lang.ir import SelectMethod
from forktree.runtime.protocol import OptionScore, ScoreResult
from forktree.runtime.record import Meta, OptionMeta

# Options that share their first tokens get equal log-probabilities there, up to rounding.
_TIE = 1e-6


def choose(options: Sequence[str], result: ScoreResult, method: SelectMethod) -> tuple[int, Meta]:
    """The winner's index in `options`, and the meta of the selection.

    Args:
        options: as the program gave them, duplicates included.
        result: scores of the distinct options, in their order.
    """
    distinct = list(dict.fromkeys(options))
    scores = _METHODS[method](result.options)
    best = max(range(len(distinct)), key=scores.__getitem__)
    logprobs = [_sum(score) for score in result.options]
    probabilities = _normalise(logprobs)
    metas = {
        text: OptionMeta(text, logprobs[i], probabilities[i], scores[i], result.options[i].logprobs)
        for i, text in enumerate(distinct)
    }
    meta = Meta(
        text=distinct[best],
        finish_reason="select",
        prompt_tokens=result.usage.prompt_tokens,
        cached_tokens=result.usage.cached_tokens,
        completion_tokens=result.usage.completion_tokens,
        options=tuple(metas[text] for text in options),
        outside=_mass_outside(distinct, logprobs),
    )
    return options.index(distinct[best]), meta


def _sum(score: OptionScore) -> float:
    return math.fsum(score.logprobs) if score.logprobs else -math.inf


def _mean(logprobs: Sequence[float]) -> float:
    return math.fsum(logprobs) / len(logprobs) if logprobs else -math.inf


def _normalise(logprobs: Sequence[float]) -> list[float]:
    top = max(logprobs)
    if top == -math.inf:
        return [1 / len(logprobs)] * len(logprobs)
    weights = [math.exp(logprob - top) for logprob in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _mass_outside(texts: Sequence[str], logprobs: Sequence[float]) -> float:
    """Probability of continuing with none of the options. One that begins with another is part of it."""
    covered = [
        math.exp(logprob)
        for text, logprob in zip(texts, logprobs, strict=True)
        if text and not any(other and other != text and text.startswith(other) for other in texts)
    ]
    return max(0.0, 1.0 - math.fsum(covered))


def _by_mean(options: Sequence[OptionScore]) -> list[float]:
    return [_mean(option.logprobs) for option in options]


def _by_unconditional(options: Sequence[OptionScore]) -> list[float]:
    scores = []
    for option in options:
        unconditional = option.unconditional_logprobs or ()
        base = _mean(unconditional) if unconditional else 0.0
        scores.append(_mean(option.logprobs) - base)
    return scores


def _by_greedy(options: Sequence[OptionScore]) -> list[float]:
    """Each option's score is how many tokens it survived, with its mean to tell nothing apart but real ties."""
    longest = max(len(option.logprobs) for option in options)
    survived = [0.0 if option.logprobs else -math.inf for option in options]
    alive = [i for i, option in enumerate(options) if option.logprobs]
    for position in range(longest):
        nexts = {i: _at(options[i].logprobs, position) for i in alive}
        top = max(nexts.values(), default=-math.inf)
        alive = [i for i in alive if nexts[i] >= top - _TIE]
        for i in alive:
            survived[i] += 1
        if len(alive) == 1:
            break
    return survived


def _at(logprobs: Sequence[float], position: int) -> float:
    return logprobs[position] if position < len(logprobs) else _mean(logprobs)


_METHODS: Mapping[SelectMethod, Callable[[Sequence[OptionScore]], list[float]]] = MappingProxyType(
    {
        "token_length_normalized": _by_mean,
        "greedy_token_selection": _by_greedy,
        "unconditional_likelihood_normalized": _by_unconditional,
    }
)
