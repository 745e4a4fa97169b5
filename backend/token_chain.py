"""A sequence of token ids that shares its beginning with the sequence that it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True, slots=True, eq=False)
class TokenChain:
    """The first `num_kept` ids of `parent`, and `tail` behind them.

    Appending and dropping cost what is appended, whatever the length; the ids themselves are made on demand.
    """

    parent: TokenChain | None = None
    num_kept: int = 0
    tail: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.num_kept + len(self.tail)

    def extended(self, ids: Sequence[int]) -> TokenChain:
        return TokenChain(self, len(self), tuple(ids)) if ids else self

    def without_last(self, count: int) -> TokenChain:
        """Raises ValueError: there are not so many."""
        if not 0 <= count <= len(self):
            raise ValueError(f"cannot take {count} of {len(self)} tokens away")
        if count == 0:
            return self
        if count <= len(self.tail):
            return TokenChain(self.parent, self.num_kept, self.tail[: len(self.tail) - count])
        return TokenChain(self, len(self) - count)

    def to_tuple(self) -> tuple[int, ...]:
        return self.last(len(self))

    def last(self, count: int) -> tuple[int, ...]:
        """The last `count` ids, or all if there are fewer."""
        blocks: list[tuple[int, ...]] = []
        node: TokenChain | None = self
        end, start = len(self), max(0, len(self) - count)
        while node is not None and end > start:
            if node.num_kept < end:
                blocks.append(node.tail[max(0, start - node.num_kept) : end - node.num_kept])
                end = node.num_kept
            node = node.parent
        return tuple(chain.from_iterable(reversed(blocks)))
