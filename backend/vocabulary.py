"""A tokenizer's vocabulary as bytes: what grammars walk and detokenisers emit. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The bytes of every token.

    Attributes:
        token_bytes: [vocab] the bytes that a token stands for inside a text, or None for a token that is no
            text: special tokens, unused ids, padding of the output layer, and tokens of no bytes.
        eos_ids: every id that ends a sequence.
        markup: the spelling of each special token by id; they are tokens that are no text.
        spell: how the tokenizer writes a piece of text inside a sequence; None where there is no tokenizer.
        size: number of ids, the width of a mask; at least the width of the model's logits.
    """

    token_bytes: tuple[bytes | None, ...]
    eos_ids: frozenset[int]
    spell: Callable[[str], tuple[int, ...]] | None = None
    markup: Mapping[int, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.token_bytes)


MARK = b"\xff"
"""Stands around the spelling of a special token; no UTF-8 text has this byte."""


@lru_cache(maxsize=8)
def marked(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary with its special tokens in reach, as their marked spelling; ends of sequences stay out of it."""
    spelt = [None if data is None or MARK in data else data for data in vocabulary.token_bytes]
    for token, text in vocabulary.markup.items():
        if token not in vocabulary.eos_ids:
            spelt[token] = MARK + text.encode() + MARK
    return replace(vocabulary, token_bytes=tuple(spelt))
