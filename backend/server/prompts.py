"""Prompts as requests spell them, texts or token ids, alone or several, as ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forktree.backend.server.errors import ApiError
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.errors import BackendError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Attributes:
        param: the field that says it.
        text: what its ids spell.
    """

    param: str
    text: str
    ids: tuple[int, ...]


def prompts_of(field: str, given: Any, tokenizer: Tokenizer, *, markup: bool = False) -> list[Prompt]:
    """A text, a list of texts, a list of token ids, or a list of those; None is the start of a text.

    Raises ApiError: one has an id that is none, or text that is not Unicode.
    """
    if given is None or isinstance(given, str) or isinstance(given[0], int):
        return [_prompt(field, given or "", tokenizer, markup=markup)]
    return [_prompt(f"{field}[{index}]", one, tokenizer, markup=markup) for index, one in enumerate(given)]


def _prompt(param: str, given: str | list[int], tokenizer: Tokenizer, *, markup: bool) -> Prompt:
    if isinstance(given, str):
        try:
            ids = tokenizer.encode_prompt(given, markup=markup)
        except BackendError as error:
            raise ApiError(400, f"{param}: {error}", param=param) from None
        return Prompt(param, given, tuple(ids) or tokenizer.start_ids)
    check_ids(param, given, tokenizer)
    return Prompt(param, tokenizer.decode(given), tuple(given))


def check_ids(param: str, ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """Raises ApiError: one is outside the vocabulary."""
    for place, id in enumerate(ids):
        if not 0 <= id < tokenizer.size:
            where = f"{param}[{place}]"
            message = f"{where} is {id}, and this model's token ids are 0 to {tokenizer.size - 1}"
            raise ApiError(400, message, param=where, code="invalid_value")
