"""A tokenizer's vocabulary as bytes: what grammars walk and detokenisers emit. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The bytes of every token.

    Attributes:
        token_bytes: [vocab] the bytes that a token stands for inside a text, or None for a token that is no
            text: special tokens, unused ids, padding of the output layer, and tokens of no bytes.
        eos_ids: every id that ends a sequence.
        size: number of ids, the width of a mask; at least the width of the model's logits.
    """

    token_bytes: tuple[bytes | None, ...]
    eos_ids: frozenset[int]

    @property
    def size(self) -> int:
        return len(self.token_bytes)
