"""How many tokens a text has on a service: by the real tokenizer where there is one, else an estimate by length."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from forktree.lang.errors import BackendError

_BYTES_PER_TOKEN = 3.5
TURN_TOKENS = 4
"""What a template writes around a turn, about."""


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts tokens of text.

    Attributes:
        is_exact: by the model's own tokenizer.
    """

    count: Callable[[str], int]
    is_exact: bool


def estimate(text: str) -> int:
    """About as many tokens as vocabularies of 100,000 and more make of prose; rather more than less."""
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / _BYTES_PER_TOKEN)


def counter_of(tokenizer: Any, model: str = "") -> Counter:
    """The counter that a backend's `tokenizer=` asks for.

    Args:
        tokenizer: None, a model's folder, something with `encode`, a function from text to ids, or "tiktoken", which
            fetches OpenAI's tables when it has them not.
        model: OpenAI's name of it, for tiktoken.
    Raises:
        BackendError: it is none of these.
    """
    if tokenizer is None:
        return Counter(estimate, False)
    if tokenizer == "tiktoken":
        return Counter(_by_tiktoken(model), True)
    if isinstance(tokenizer, str | Path):
        return Counter(_by_folder(Path(tokenizer)), True)
    encode = getattr(tokenizer, "encode", tokenizer)
    if not callable(encode):
        raise BackendError(
            f"tokenizer= takes a model's folder, something with encode(text), or a function from text to ids, "
            f"not {tokenizer!r}"
        )
    return Counter(lambda text: len(encode(text)), True)


@lru_cache(8)
def _by_folder(folder: Path) -> Callable[[str], int]:
    from forktree.backend.tokenizer import Tokenizer

    if not folder.is_dir():
        raise BackendError(f"tokenizer={str(folder)!r} is no folder; give one with tokenizer.json in it")
    tokenizer = Tokenizer.load(folder)
    return lambda text: len(tokenizer.encode(text))


@lru_cache(8)
def _by_tiktoken(model: str) -> Callable[[str], int]:
    try:
        import tiktoken
    except ImportError as error:
        raise BackendError('tokenizer="tiktoken" needs it: pip install tiktoken') from error
    try:
        encoding = tiktoken.encoding_for_model(model)
    except Exception as error:  # it knows no such model, or could not fetch the table
        raise BackendError(f"tiktoken has no table for {model!r}: {error}; give another tokenizer=") from error
    return lambda text: len(encoding.encode(text, disallowed_special=()))
