"""One output, token by token: what may be drawn, and what a drawn token does to its sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from forktree.backend.engine.messages import Emission, Emitted, Finished, SampleRow, TokenInfo
from forktree.backend.engine.request import Sequence

_NOTHING: frozenset[int] = frozenset()
_SILENCE = Emitted("", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why an output ends, and what is kept of it.

    Attributes:
        text: text to show that was not shown yet.
        num_kept: generated tokens that are kept; None keeps all.
        tail_text: kept text behind them.
    """

    reason: Literal["stop", "length"]
    stop: str | int | None = None
    text: str = ""
    num_kept: int | None = None
    tail_text: str = ""


def sample_row(seq: Sequence) -> SampleRow | None:
    """What may be drawn next, or None where the constraint is complete and lets nothing follow.

    A matcher that forbids nothing from here on is dropped.
    """
    request, matcher = seq.request, seq.matcher
    if matcher is not None and matcher.is_free():
        seq.matcher = matcher = None
    if matcher is not None and matcher.must_end():
        return None
    is_early = len(seq.output_ids) < request.min_tokens
    may_end = matcher is not None and not is_early and matcher.is_complete()
    return SampleRow(
        params=request.params,
        position=len(seq.output_ids),
        prompt_ids=request.ids,
        output_ids=seq.output_ids,
        mask=None if matcher is None else matcher.mask(),
        end_ids=request.stop_token_ids if may_end else _NOTHING,
        banned_ids=request.stop_token_ids if is_early else _NOTHING,
    )


def take_token(seq: Sequence, info: TokenInfo) -> Emitted | Ending:
    """Append a drawn token to its sequence, unless it ends the output, and those that it leaves no choice about.

    Raises whatever the request's matcher or sink raises.
    """
    if info.token in seq.request.stop_token_ids:  # never drawn before `min_tokens`
        return Ending(reason="stop", stop=info.token, text=_flush(seq))
    outcome = _append(seq, info)
    return outcome if isinstance(outcome, Ending) else take_forced(seq, outcome)


def take_forced(seq: Sequence, shown: Emitted = _SILENCE) -> Emitted | Ending:
    """Append the tokens that the constraint forces; `shown` is what the listener is to be told anyway.

    They are not drawn, so what they are does not depend on the model, and their log-probability is 0. A token that
    the request has wishes about, an end or a bias, is left to a draw.
    """
    if seq.matcher is None:
        return shown
    logprob = None if seq.request.params.num_logprobs is None else 0.0
    text, infos = [shown.text], list(shown.tokens)
    for token in seq.matcher.forced():
        if seq.num_left <= 0 or token in seq.request.stop_token_ids or _is_biased(seq, token):
            break
        outcome = _append(seq, TokenInfo(token, logprob))
        text.append(outcome.text)
        if isinstance(outcome, Ending):
            return replace(outcome, text="".join(text))
        infos += outcome.tokens
    return Emitted("".join(text), tuple(infos))


def _is_biased(seq: Sequence, token: int) -> bool:
    return any(token == other for other, _ in seq.request.params.logit_bias)


def _append(seq: Sequence, info: TokenInfo) -> Emitted | Ending:
    seq.ids.append(info.token)
    seq.output_ids.append(info.token)
    seq.tokens.append(info)
    if seq.matcher is not None:
        seq.matcher.advance(info.token)
    sink = seq.request.sink
    emission = sink.feed(info.token) if sink is not None else Emission("")
    ending = _ending_after(seq, emission)
    return Emitted(emission.text, (info,)) if ending is None else ending


def end_of_constraint(seq: Sequence) -> Ending:
    """The ending of an output to which its constraint lets nothing be added."""
    return Ending(reason="stop", text=_flush(seq))


def finish(seq: Sequence, ending: Ending, embedding: tuple[float, ...] = ()) -> Finished:
    """The last event of a sequence."""
    num_kept = len(seq.output_ids) if ending.num_kept is None else ending.num_kept
    return Finished(
        ids=tuple(seq.output_ids[:num_kept]),
        text=ending.text,
        reason=ending.reason,
        stop=ending.stop,
        is_complete=seq.matcher is None or seq.matcher.is_complete(),
        tail_text=ending.tail_text,
        prompt_logprobs=tuple(seq.prompt_logprobs),
        continuation_logprobs=tuple(seq.continuation_logprobs),
        embedding=embedding,
        num_prompt=seq.num_prompt,
        num_cached=seq.num_cached or 0,
        tokens=tuple(seq.tokens[:num_kept]),
    )


def _ending_after(seq: Sequence, emission: Emission) -> Ending | None:
    if emission.stop is not None:
        return Ending(
            reason="stop",
            stop=emission.stop,
            text=emission.text,
            num_kept=emission.num_kept,
            tail_text=emission.tail_text,
        )
    if seq.matcher is not None and seq.matcher.must_end():
        return Ending(reason="stop", text=emission.text + _flush(seq))
    if seq.num_left <= 0:
        return Ending(reason="length", text=emission.text + _flush(seq))
    return None


def _flush(seq: Sequence) -> str:
    return seq.request.sink.flush() if seq.request.sink is not None else ""
