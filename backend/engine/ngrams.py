"""Looking for the last few tokens of a text elsewhere: what followed them there may follow them here.

Four bytes a token, so that the search itself runs in C: a few microseconds in a prompt of a thousand tokens, and no
index to build. (Drafts from the prompt instead of from a small model: Yang et al., "Inference with Reference", 2023,
arXiv 2304.04487.)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

_TOKEN_BYTES = array("i").itemsize
_GRAM = 2  # the shortest match: one token alone says little
_LONGEST = 16  # a match is not followed further back
_NUM_TRIED = 6  # the last occurrences that are compared


class Match(NamedTuple):
    """Where a text's end stands elsewhere.

    Attributes:
        length: how many of the last tokens are equal, at most 16.
        end: index behind them.
    """

    length: int
    end: int


class TokenText:
    """A list of ids that somebody else lets grow, as bytes to search."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self._data = bytearray()

    def find(self, tail: Sequence[int]) -> Match | None:
        """The best place at which the end of `tail` stands and something follows: the longest, of equals the last."""
        if len(tail) < _GRAM:
            return None
        self._catch_up()
        best: Match | None = None
        for end in islice(self._occurrences(tail[-_GRAM:]), _NUM_TRIED):
            length = self._count_equal(tail, end)
            if best is None or length > best.length:
                best = Match(length, end)
            if length == _LONGEST:
                break
        return best

    def read(self, start: int, count: int) -> list[int]:
        """The `count` ids from `start` on, as if the text went on in the way in which it repeats itself."""
        found = self.ids[start : start + count]
        period = len(found)
        while len(found) < count:
            found.append(found[-period])
        return found

    def _catch_up(self) -> None:
        known = len(self._data) // _TOKEN_BYTES
        if known < len(self.ids):
            self._data += array("i", self.ids[known:]).tobytes()

    def _occurrences(self, gram: Sequence[int]) -> Iterator[int]:
        """Indices behind each occurrence that something follows, the last first."""
        data, wanted = self._data, array("i", gram).tobytes()
        end = len(data) - _TOKEN_BYTES  # at least one token has to follow
        while (at := data.rfind(wanted, 0, end)) >= 0:
            if at % _TOKEN_BYTES == 0:
                yield (at + len(wanted)) // _TOKEN_BYTES
            end = at + len(wanted) - 1

    def _count_equal(self, tail: Sequence[int], end: int) -> int:
        most = min(_LONGEST, end, len(tail))
        for length in range(_GRAM, most):
            if self.ids[end - 1 - length] != tail[-1 - length]:
                return length
        return most
