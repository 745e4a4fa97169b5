"""How to draw tokens: one frozen record, the same for `gen`, `using`, `run` and every backend."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self, overload

from forktree.lang.keywords import unknown_keyword


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters. None means "not given": the next default applies, in the end the model's own.

    Attributes:
        max_tokens: most tokens to generate, at least 1.
        min_tokens: fewest tokens before an end is allowed.
        stop: strings that end the output; the match is not part of it. One string may be given bare.
        stop_token_ids: token ids that end the output.
        stop_regex: a pattern whose first match ends the output; the match is not part of it.
        temperature: 0 is greedy.
        top_p, min_p: in [0, 1]; `top_p` is the nucleus, `min_p` a floor relative to the likeliest token.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        frequency_penalty, presence_penalty: subtracted per occurrence, or once, for tokens already generated.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen (prompt and output).
        logit_bias: added to the logits of these token ids.
        seed: makes the draw a function of seed, prompt and position alone.
        n: number of samples.
        ignore_eos: go on past the model's end token.
        logprobs: 0 returns each chosen token's log-probability, k > 0 also the k likeliest alternatives.

    Raises:
        ValueError: a value is out of range; the message names the field, the value and the range.
        TypeError: an unknown name; the message says which was meant.
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    seed: int | None = None
    n: int | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        for name in kwargs:
            if name not in cls.__slots__:
                raise TypeError(unknown_keyword("Sampling", name, cls.__slots__))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        _set(self, "stop", _strings(self.stop))
        _check_pattern(self.stop_regex)
        _check_flag("ignore_eos", self.ignore_eos)
        _set(self, "stop_token_ids", _ids(self.stop_token_ids))
        _set(self, "logit_bias", _pairs(self.logit_bias))
        _set(self, "logprobs", _count_of_logprobs(self.logprobs))
        for name, low, high in _RANGES:
            _check_range(name, getattr(self, name), low, high)
        for name in _COUNTS:
            _check_whole(name, getattr(self, name))
        if self.max_tokens is not None and self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) is more than max_tokens ({self.max_tokens})")

    def over(self, defaults: Sampling) -> Sampling:
        """These parameters, with those not given taken from `defaults`."""
        return _over(self, defaults)


@functools.lru_cache(1024)  # the same few pairs come for every row of a batch
def _over(given: Sampling, defaults: Sampling) -> Sampling:
    missing = {f.name: getattr(defaults, f.name) for f in fields(given) if getattr(given, f.name) is None}
    return replace(given, **missing)


@overload
def seeded_for(sampling: Sampling, kind: str, index: int) -> Sampling: ...
@overload
def seeded_for(sampling: None, kind: str, index: int) -> None: ...
@overload
def seeded_for(sampling: Sampling | None, kind: str, index: int) -> Sampling | None: ...
def seeded_for(sampling: Sampling | None, kind: str, index: int) -> Sampling | None:
    """The same, with a seed of its own for the `index`-th branch or call; unchanged where there is no seed.

    A draw is a function of seed, prompt and position, so two that share a seed and a prompt draw the same.
    """
    if sampling is None or sampling.seed is None:
        return sampling
    digest = hashlib.blake2b(f"{sampling.seed}/{kind}/{index}".encode(), digest_size=8).digest()
    return replace(sampling, seed=int.from_bytes(digest, "big") >> 11)  # 53 bits: JSON carries it exactly


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 1, math.inf),
    ("min_tokens", 0, math.inf),
    ("temperature", 0, math.inf),
    ("top_p", 0, 1),
    ("top_k", -1, math.inf),
    ("min_p", 0, 1),
    ("frequency_penalty", -2, 2),
    ("presence_penalty", -2, 2),
    ("repetition_penalty", 1e-6, math.inf),
    ("n", 1, math.inf),
    ("logprobs", 0, math.inf),
)


_COUNTS = ("max_tokens", "min_tokens", "top_k", "n", "logprobs", "seed")


def _check_whole(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{name} must be a whole number, not {value!r}")


def _set(sampling: Sampling, name: str, value: object) -> None:
    object.__setattr__(sampling, name, value)


def _check_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number, not {value!r}")
    if not _is_finite(value) or not low <= value <= high:
        bound = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be {bound}, not {value!r:.40}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _strings(stop: object) -> tuple[str, ...] | None:
    if stop is None:
        return None
    if not isinstance(stop, Iterable):
        raise ValueError(f"stop must be text or a list of texts, not {stop!r}")
    items = (stop,) if isinstance(stop, str) else tuple(stop)
    for item in items:
        if not isinstance(item, str) or not item:
            raise ValueError(f"stop must be non-empty strings, not {item!r}")
    return items


def _pairs(bias: Mapping[int, float] | Iterable[tuple[int, float]] | None) -> tuple[tuple[int, float], ...] | None:
    if bias is None:
        return None
    try:
        items = bias.items() if isinstance(bias, Mapping) else bias
        return tuple(sorted((int(token), float(value)) for token, value in items))
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"logit_bias must be a dict from token id to a number, not {bias!r}") from None


def _ids(ids: object) -> tuple[int, ...] | None:
    if ids is None:
        return None
    items = tuple(ids) if isinstance(ids, Iterable) and not isinstance(ids, str | bytes) else (None,)
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        meant = f"; write [{ids}]" if isinstance(ids, int) else ""
        raise ValueError(f"stop_token_ids must be a list of token ids, not {ids!r}{meant}")
    return items


def _check_pattern(pattern: object) -> None:
    if pattern is None:
        return
    if not isinstance(pattern, str):
        raise ValueError(f"stop_regex must be a pattern as text, not {pattern!r}")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"stop_regex {pattern!r} is not a pattern: {error}") from None


def _check_flag(name: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")


def _count_of_logprobs(logprobs: int | bool | None) -> int | None:
    if logprobs is None or logprobs is False:
        return None
    return 0 if logprobs is True else logprobs
