"""A tokenizer's vocabulary as bytes: what grammars walk and detokenisers emit. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The bytes of every token.

    Attributes:
        token_bytes: [vocab] the bytes that a token stands for inside a text, or None for a token that is no
            text: special tokens, unused ids, padding of the output layer, and tokens of no bytes.
        eos_ids: every id that ends a sequence.
        spell: how the tokenizer writes a piece of text inside a sequence; None where there is no tokenizer.
        size: number of ids, the width of a mask; at least the width of the model's logits.
    """

    token_bytes: tuple[bytes | None, ...]
    eos_ids: frozenset[int]
    spell: Callable[[str], tuple[int, ...]] | None = None

    @property
    def size(self) -> int:
        return len(self.token_bytes)
