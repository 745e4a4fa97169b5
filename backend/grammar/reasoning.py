"""A bound on reasoning: when its tokens are used up, its end is written, and the answer follows.

Behind any whole character the end of reasoning is legal, so closing it needs no other automaton: of the legal tokens
those stay that write the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from forktree.backend.grammar.markup import Spelling, bytes_of
from forktree.backend.grammar.masks import Mask
from forktree.backend.grammar.trie import Ints, Trie, trie_of
from forktree.backend.vocabulary import Vocabulary, marked


def bounded_reasoning(matcher: Any, vocabulary: Vocabulary, begin: str, end: str, max_tokens: int) -> ReasoningMatcher:
    """The matcher of an output that begins with reasoning: at most `max_tokens` tokens between `begin`, which is empty
    where the prompt has it, and `end`; more only to finish a character."""
    trie = trie_of(marked(vocabulary) if vocabulary.markup else vocabulary)
    spelling = Spelling.of(vocabulary)
    edges = bytes_of(spelling.symbols(begin)), bytes_of(spelling.symbols(end))
    return ReasoningMatcher(matcher, trie, edges, max_tokens)


class _Place(NamedTuple):
    """
    Attributes:
        is_begun: its begin is written.
        left: tokens that it may still have.
        tail: its last bytes.
        closing: what is left to write of its end; empty before it is closed.
        is_over: its end is written.
    """

    is_begun: bool
    left: int
    tail: bytes
    closing: bytes
    is_over: bool
    before: _Place | None


class ReasoningMatcher:
    """A matcher whose reasoning is closed in time. Not shared between threads.

    `matcher` is that of the whole output (any `TokenMatcher` with `forced`, `copy` and `rollback`).
    """

    __slots__ = ("_begin", "_end", "_matcher", "_place", "_trie")

    def __init__(
        self, matcher: Any, trie: Trie, edges: tuple[bytes, bytes], max_tokens: int, place: _Place | None = None
    ) -> None:
        self._matcher = matcher
        self._trie = trie
        self._begin, self._end = edges
        is_closed = not self._begin and max_tokens == 0
        self._place = place or _Place(not self._begin, max_tokens, b"", self._end if is_closed else b"", False, None)

    def mask(self) -> Mask:
        legal: Mask = self._matcher.mask()
        if not self._place.closing or self._place.is_over:
            return legal
        bits = np.zeros(len(legal) * 32, dtype=np.bool_)
        bits[self._writing(self._place.closing)] = True
        closing: Mask = legal & np.packbits(bits, bitorder="little").view(np.int32)
        return closing if closing.any() else legal  # a healed prefix comes first

    def has_mask(self) -> bool:
        return bool(self._matcher.has_mask())

    def _writing(self, data: bytes) -> Ints:
        """The tokens that are a piece of the data, or begin with all of it."""
        trie = self._trie
        nodes: list[int] = []
        node: int | None = 0
        for byte in data:
            node = trie.child(node, byte)
            if node is None:
                return trie.tokens_at(np.array(nodes, dtype=np.int32))
            nodes.append(node)
        below = trie.tokens[trie.first_token[nodes[-1]] : trie.end_token[nodes[-1]]]
        return np.concatenate([trie.tokens_at(np.array(nodes, dtype=np.int32)), below])

    def advance(self, token: int) -> None:
        """Take one token.

        Raises:
            IllegalTokenError: it is not legal here; nothing changes.
        """
        place = self._place
        self._matcher.advance(token)
        data = self._trie.vocabulary.token_bytes[token] or b""
        text = place.tail + data
        is_begun = place.is_begun or self._begin in text
        if not place.is_begun:
            text = text.partition(self._begin)[2] if is_begun else text
        is_over = place.is_over or (is_begun and self._end in text)
        left = place.left - (place.is_begun and not is_over)
        closing = place.closing
        if closing and (closing.startswith(data) or data.startswith(closing)):
            closing = closing[len(data) :]
        elif is_begun and not is_over and left <= 0 and _is_whole(text):
            closing = self._end
        keep = max(len(self._begin), len(self._end)) + 3
        self._place = _Place(is_begun, left, text[-keep:], closing, is_over, place)

    def is_complete(self) -> bool:
        return bool(self._matcher.is_complete())

    def must_end(self) -> bool:
        return bool(self._matcher.must_end())

    def is_free(self) -> bool:
        return False

    def forced(self) -> tuple[int, ...]:
        """As the matcher's; how reasoning is closed is left to the model."""
        run: tuple[int, ...] = () if self._place.closing and not self._place.is_over else self._matcher.forced()
        return run

    def copy(self) -> ReasoningMatcher:
        """An independent matcher at the same place."""
        return ReasoningMatcher(self._matcher.copy(), self._trie, (self._begin, self._end), 0, self._place)

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens.

        Raises:
            ValueError: fewer were taken.
        """
        self._matcher.rollback(count)
        for _ in range(count):
            assert self._place.before is not None, "the matchers took the same tokens"
            self._place = self._place.before


def _is_whole(data: bytes) -> bool:
    """Whether no character is cut at the end."""
    for size in range(1, min(4, len(data) + 1)):
        byte = data[-size]
        if byte < 0x80 or byte >= 0xF8:
            return True
        if byte >= 0xC0:
            return size == (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return True
