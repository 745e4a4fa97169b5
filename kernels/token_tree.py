"""Where the tokens of a branching sequence lie in its page table. Plain ints, free of torch.

A place is an index into the page table's slots. Up to the root a token's place is its position. Behind it the
tokens of all branches are laid end to end, depth first, so that two of them may have the same position and never
the same place:

    position   0 1 2 3 4          place      0 1 2 3 4 5 6        root = 2
    tokens     a b c d e          tokens     a b c d e x y        parents = 1 2 3 2 5    (the token before)
                   └ x y          position   0 1 2 3 4 3 4
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class TokenTree(NamedTuple):
    """The branches behind the first `root` tokens of a sequence.

    Attributes:
        root: places below hold the tokens of their positions.
        parents: the place of the token before, for place `root + i`: `root - 1` or an earlier place of the tree.
            Depth first: it is the place before, or the parent of that, and so on.
    """

    root: int
    parents: Sequence[int]

    def path_to(self, place: int) -> list[int]:
        """The places in the tree from the root's end to `place`, itself the last; empty for `root - 1`."""
        path = []
        while place >= self.root:
            path.append(place)
            place = self.parents[place - self.root]
        path.reverse()
        return path
