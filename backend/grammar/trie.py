"""A vocabulary as a byte trie in arrays, nodes numbered level by level, so that a walk is a few gathers a level."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from forktree.backend.vocabulary import Vocabulary

Ints = NDArray[np.int32]
_TWO_KEYS = re.compile(rb'".*:.*,.*"', re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class Trie:
    """Node 0 is the root; the children of a node are contiguous and in order of their byte.

    Attributes:
        vocabulary: whose tokens these are; tokens that are no text are not in the trie.
        byte: [nodes] the byte that leads to the node.
        first_child, num_children: [nodes]
        child_spans: the two of them as plain ints.
        first_token, num_tokens: [nodes] where in `tokens` the ids that end at the node begin, and how many.
        tokens: [text tokens] ids, grouped by node.
        two_keys: ids in which one JSON key may end and another begin.
        longest: length of the longest token, in bytes.
    """

    vocabulary: Vocabulary
    byte: NDArray[np.uint8]
    first_child: Ints
    num_children: Ints
    child_spans: list[tuple[int, int]]
    first_token: Ints
    num_tokens: Ints
    tokens: Ints
    two_keys: tuple[int, ...]
    longest: int

    def child(self, node: int, byte: int) -> int | None:
        start = int(self.first_child[node])
        for at in range(start, start + int(self.num_children[node])):
            if self.byte[at] == byte:
                return at
        return None

    def depth(self, node: int) -> int:
        """How many bytes lead to a node."""
        depth = 0
        while node:
            node = int(np.searchsorted(self.first_child, node, side="right")) - 1
            while not self.num_children[node]:
                node -= 1
            depth += 1
        return depth

    def tokens_at(self, nodes: Ints) -> Ints:
        """The ids that end at these nodes."""
        return self.tokens[_ranges(self.first_token[nodes], self.num_tokens[nodes])]

    def children_of(self, nodes: Ints) -> Ints:
        return _ranges(self.first_child[nodes], self.num_children[nodes])


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """The integers of [start, start + count) for every pair, laid end to end."""
    ends = np.cumsum(counts, dtype=np.int32)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int32) + np.repeat(starts - (ends - counts), counts)


@lru_cache(maxsize=8)
def trie_of(vocabulary: Vocabulary) -> Trie:
    """The trie of a vocabulary; built once for each."""
    levels = _Levels()
    for token, data in enumerate(vocabulary.token_bytes):
        if data:
            levels.add(token, data)
    return levels.packed(vocabulary)


class _Levels:
    """A trie of dicts while it is built."""

    def __init__(self) -> None:
        self._children: list[dict[int, int]] = [{}]
        self._tokens: list[list[int]] = [[]]
        self._longest = 0

    def add(self, token: int, data: bytes) -> None:
        node = 0
        for byte in data:
            children = self._children[node]
            node = children.get(byte, -1)
            if node < 0:
                node = len(self._children)
                children[byte] = node
                self._children.append({})
                self._tokens.append([])
        self._tokens[node].append(token)
        self._longest = max(self._longest, len(data))

    def packed(self, vocabulary: Vocabulary) -> Trie:
        order, bytes_ = [0], [0]
        first_child, num_children, first_token, num_tokens = [], [], [], []
        tokens: list[int] = []
        for node in order:  # grows while it is walked: breadth first
            children = self._children[node]
            first_child.append(len(order))
            num_children.append(len(children))
            for byte in sorted(children):
                order.append(children[byte])
                bytes_.append(byte)
            first_token.append(len(tokens))
            num_tokens.append(len(self._tokens[node]))
            tokens += self._tokens[node]
        return Trie(
            vocabulary,
            np.array(bytes_, dtype=np.uint8),
            np.array(first_child, dtype=np.int32),
            np.array(num_children, dtype=np.int32),
            list(zip(first_child, num_children, strict=True)),
            *(np.array(one, dtype=np.int32) for one in (first_token, num_tokens, tokens)),
            two_keys=tuple(t for t, data in enumerate(vocabulary.token_bytes) if data and _TWO_KEYS.search(data)),
            longest=self._longest,
        )
