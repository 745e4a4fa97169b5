"""What every network backend takes besides its model and its address, and what that makes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypedDict, get_args

from forktree.backend.clients.account import Account
from forktree.backend.clients.client import Settings
from forktree.backend.clients.counting import counter_of
from forktree.backend.clients.dialects import Dialect
from forktree.backend.clients.faults import Place
from forktree.backend.clients.governor import Governor
from forktree.backend.clients.http import Timeouts, Transport
from forktree.backend.clients.retry import Retry
from forktree.backend.clients.truncation import Truncate, checked_truncate
from forktree.backend.clients.turns import Begun, Loose
from forktree.lang.errors import AuthenticationError, BackendError
from forktree.lang.keywords import unknown_keyword

_KEY = re.compile(r"[!-~]+")


class Options(TypedDict, total=False):
    """Options of a network backend.

    Keys:
        timeout: seconds of silence before an answer is given up (600); connect_timeout: to connect (10).
        retries: how often a request that failed before its answer began is made again (4).
        requests_per_minute, tokens_per_minute: limits to stay under; None is none.
        max_connections: most connections at once (64).
        truncate: "error", "oldest" or "middle": what becomes of a prompt that is too long.
        context_limit: tokens of a prompt and its answer; where it is not given, what the service says.
        tokenizer: counts tokens: a model's folder, something with encode(text), a function from text to ids, or
            "tiktoken"; an estimate by length without one.
        prices: of a million tokens, {"input": …, "output": …, "cached_input": …} or `ft.Prices`; or a table of them
            by model, of which the longest name that the model's begins with counts.
        reasks: how often an answer that breaks its constraint is asked for again (2).
        text_outside_turns: "refuse", or "user": the user says it, and what the model made there is its own turn.
        begun_turns: "refuse", or "tell": a turn that the program has begun, at a service that cannot go on with one,
            is told to it in words.
        headers, extra: further headers of every request, and further fields of every body.
    """

    timeout: float
    connect_timeout: float
    retries: int
    requests_per_minute: int | None
    tokens_per_minute: int | None
    max_connections: int
    truncate: Truncate
    context_limit: int | None
    tokenizer: Any
    prices: Any
    reasks: int
    text_outside_turns: Loose
    begun_turns: Begun
    headers: Mapping[str, str]
    extra: Mapping[str, Any]


def checked_options(name: str, options: Mapping[str, Any]) -> Options:
    """
    Raises:
        TypeError: an unknown one; the message says which was meant.
        ValueError: one out of range.
    """
    for key in options:
        if key not in Options.__annotations__:
            raise TypeError(unknown_keyword(name, key, list(Options.__annotations__)))
    for key in ("timeout", "connect_timeout", "max_connections"):
        value = options.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ValueError(f"{name}: {key} must be a number above 0, not {value!r}")
    for key in ("retries", "reasks"):
        value = options.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name}: {key} must be a whole number of at least 0, not {value!r}")
    for key, values in (("text_outside_turns", get_args(Loose)), ("begun_turns", get_args(Begun))):
        if options.get(key, "refuse") not in values:
            raise ValueError(f"{name}: {key} is one of {list(values)}, not {options[key]!r}")
    checked_truncate(options.get("truncate", "error"))
    return options  # type: ignore[return-value]


def settings_of(model: str, dialect: Dialect, options: Options) -> Settings:
    """How the backend speaks."""
    return Settings(
        model=model,
        dialect=dialect,
        counter=counter_of(options.get("tokenizer"), model),
        loose=options.get("text_outside_turns", "refuse"),
        begun=options.get("begun_turns", "refuse"),
        truncate=options.get("truncate", "error"),
        context_limit=options.get("context_limit"),
        reasks=options.get("reasks", 2),
        extra=dict(options.get("extra", {})),
    )


def transport_of(place: Place, headers: Mapping[str, str], options: Options, account: Account) -> Transport:
    """Its connections, unopened."""
    return Transport(
        place,
        {**headers, **options.get("headers", {})},
        timeouts=Timeouts(options.get("connect_timeout", 10.0), options.get("timeout", 600.0)),
        retry=Retry(options.get("retries", 4)),
        governor=Governor(options.get("requests_per_minute"), options.get("tokens_per_minute")),
        account=account,
        max_connections=int(options.get("max_connections", 64)),
    )


def found_key(dialect: Dialect, api_key: str | None, written: str) -> str | None:
    """The key: given, or from the service's usual environment variables.

    Raises:
        AuthenticationError: there is none, and the service answers nobody without.
    """
    if api_key is not None:
        if not isinstance(api_key, str) or not _KEY.fullmatch(api_key.strip()):
            raise AuthenticationError(f"{written}: the api_key= given is no key; it is one word of ASCII characters")
        return api_key.strip()
    for name in dialect.key_variables:
        if value := os.environ.get(name, "").strip():
            return value
    if dialect.needs_key:
        names = " or ".join(dialect.key_variables)
        raise AuthenticationError(f"{written}: {dialect.service} needs a key; give api_key=, or set {names}")
    return None


def checked_url(url: object, written: str) -> str:
    """The address without a slash at its end. Raises BackendError: it is none."""
    if not isinstance(url, str) or not url.strip().startswith(("http://", "https://")):
        raise BackendError(f"{written}: an address begins with http:// or https://, not {url!r}")
    return url.strip().rstrip("/")


def prices_of(prices: Any, model: str) -> Mapping[str, float] | None:
    """The prices of this model: those given, or those of the longest name in a table that its name begins with.

    Raises:
        ValueError: they are neither.
    """
    if prices is None:
        return None
    if is_dataclass(prices) and not isinstance(prices, type):
        given = {item.name: getattr(prices, item.name) for item in fields(prices)}
        return _checked_prices({name: value for name, value in given.items() if value is not None})
    if not isinstance(prices, Mapping):
        raise ValueError(
            f'prices= is a dict with "input" and "output", a table of them by model, or Prices, not {prices!r}'
        )
    if "input" in prices:
        return _checked_prices(prices)
    named = [name for name in prices if model.startswith(name)]
    return prices_of(prices[max(named, key=len)], model) if named else None


def _checked_prices(prices: Mapping[str, Any]) -> Mapping[str, float]:
    known = {"input", "output", "cached_input"}
    numbers = all(isinstance(value, int | float) and value >= 0 for value in prices.values())
    if not {"input", "output"} <= set(prices) <= known or not numbers:
        raise ValueError(f'prices are numbers for "input", "output" and "cached_input", not {dict(prices)!r}')
    return dict(prices)
