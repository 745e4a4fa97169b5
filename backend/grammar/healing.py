"""Healing: first the bytes of withdrawn tokens again, then whatever the constraint says.

Where a prompt's last tokens were withdrawn, the model must write their bytes again, in whatever tokens it likes: a
token may be a piece of what remains of them, or go beyond them with bytes that are legal after.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forktree.backend.grammar.completions import NO_COSTS, Cell, Costs
from forktree.backend.grammar.forced import run_of
from forktree.backend.grammar.masks import Mask
from forktree.backend.grammar.matcher import IllegalTokenError, Matcher
from forktree.backend.grammar.trie import Ints, Trie, trie_of
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.errors import ConstraintError


def healed(prefix: bytes, matcher: Matcher | None, vocabulary: Vocabulary) -> HealedMatcher:
    """A matcher that demands `prefix` and goes on as `matcher`, or with no constraint where that is None.

    Raises:
        ConstraintError: no sequence of tokens spells the prefix.
    """
    trie = trie_of(vocabulary) if matcher is None else matcher.masks.trie
    if not _can_spell(trie, prefix):
        raise ConstraintError(f"no tokens of this vocabulary spell the text to heal, {prefix!r}")
    return HealedMatcher(trie, prefix, matcher)


def _can_spell(trie: Trie, data: bytes) -> bool:
    """Some tokens cover the data, the last one perhaps going beyond it."""
    reachable = {0}
    for start in range(len(data)):
        if start not in reachable:
            continue
        nodes = _path(trie, data[start:])
        reachable |= {start + depth for depth, node in enumerate(nodes, 1) if trie.num_tokens[node]}
        if len(nodes) == len(data) - start:
            return True
    return len(data) in reachable


def _path(trie: Trie, data: bytes) -> list[int]:
    """The nodes that the data leads through, as far as the trie goes."""
    nodes = []
    node: int | None = 0
    for byte in data:
        node = trie.child(node, byte)
        if node is None:
            break
        nodes.append(node)
    return nodes


class _Past(NamedTuple):
    """A step taken: the prefix that was left before it, and whether the inner matcher moved."""

    prefix: bytes
    moved: bool
    before: _Past | None


class HealedMatcher:
    """A matcher whose output begins with a fixed prefix, which stands outside the constraint."""

    __slots__ = ("_history", "_inner", "_prefix", "_trie")

    def __init__(self, trie: Trie, prefix: bytes, inner: Matcher | None) -> None:
        self._trie = trie
        self._prefix = prefix
        self._inner = inner
        self._history: _Past | None = None

    @property
    def remaining(self) -> bytes:
        """What is left of the prefix."""
        return self._prefix

    def mask(self) -> Mask:
        if not self._prefix:
            return self._everything() if self._inner is None else self._inner.mask()
        return self._packed(self._legal())

    def has_mask(self) -> bool:
        return not self._prefix and (self._inner is None or self._inner.has_mask())

    def _legal(self) -> Ints:
        nodes = _path(self._trie, self._prefix)
        pieces = self._trie.tokens_at(np.array(nodes, dtype=np.int32))
        if len(nodes) < len(self._prefix):
            return self._spelling(pieces)
        inner = self._inner
        if inner is None:
            beyond = self._below(nodes[-1])
        elif inner.state is None:
            beyond = np.empty(0, dtype=np.int32)
        else:
            beyond = inner.masks.tokens_below(inner.state, nodes[-1])
        return np.concatenate([self._spelling(pieces), beyond])

    def _spelling(self, pieces: Ints) -> Ints:
        """Pieces after which the rest can still be spelled."""
        token_bytes = self._trie.vocabulary.token_bytes
        kept = [token for token in pieces.tolist() if _can_spell(self._trie, self._after(token_bytes[token] or b""))]
        return np.array(kept, dtype=np.int32)

    def _after(self, data: bytes) -> bytes:
        return self._prefix[len(data) :]

    def _below(self, node: int) -> Ints:
        nodes = np.array([node], dtype=np.int32)
        found = []
        while len(nodes):
            nodes = self._trie.children_of(nodes)
            found.append(self._trie.tokens_at(nodes))
        return np.concatenate(found)

    def _packed(self, tokens: Ints) -> Mask:
        vocabulary = self._trie.vocabulary
        bits = np.zeros((vocabulary.size + 31) // 32 * 32, dtype=np.bool_)
        bits[tokens] = True
        bits[[token for token in vocabulary.eos_ids if token < vocabulary.size]] = False
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _everything(self) -> Mask:
        bits = np.zeros((self._trie.vocabulary.size + 31) // 32 * 32, dtype=np.bool_)
        bits[: self._trie.vocabulary.size] = True
        return np.packbits(bits, bitorder="little").view(np.int32)

    def advance(self, token: int) -> None:
        """Take one token.

        Raises:
            IllegalTokenError: it neither continues the prefix nor goes on legally; nothing changes.
        """
        before = self._prefix
        if before:
            moved = self._advance_prefix(token)
        else:
            moved = self._inner is not None
            if self._inner is not None:
                self._inner.advance(token)
        self._history = _Past(before, moved, self._history)

    def _advance_prefix(self, token: int) -> bool:
        """Whether the inner matcher took a step."""
        vocabulary = self._trie.vocabulary
        data = vocabulary.token_bytes[token] if 0 <= token < vocabulary.size else None
        if not data or token in vocabulary.eos_ids:
            raise IllegalTokenError(f"token {token} is no text, and {self._prefix!r} must come first")
        if self._prefix.startswith(data):
            self._prefix = self._after(data)
            return False
        if not data.startswith(self._prefix):
            raise IllegalTokenError(f"token {token} ({data!r}) does not continue {self._prefix!r}")
        if self._inner is not None:
            self._inner.advance_bytes(data[len(self._prefix) :])
        self._prefix = b""
        return self._inner is not None

    def is_complete(self) -> bool:
        return not self._prefix and (self._inner is None or self._inner.is_complete())

    def must_end(self) -> bool:
        return not self._prefix and self._inner is not None and self._inner.must_end()

    def is_free(self) -> bool:
        """The prefix is written and nothing constrains what follows."""
        return not self._prefix and self._inner is None

    def forced(self) -> tuple[int, ...]:
        if self._inner is not None:
            return self._inner.forced_behind(self._prefix)
        return run_of(self._trie, self._prefix, b"", self._goes_on) if self._prefix else ()

    def _goes_on(self, node: int) -> bool:
        return bool(self._trie.num_children[node])

    def completion(self) -> Cell:
        """The prefix and a legal ending in few tokens; its `cost` is how many."""
        if self._inner is None:
            raise ValueError("an output without a constraint has no legal ending")
        return self._inner.masks.completions.cell(self._inner.state, self._prefix)

    def costs(self) -> Costs:
        """Every legal token that is text, and how many more tokens an output needs after it."""
        inner = self._inner
        if inner is None or inner.state is None:
            return NO_COSTS
        completions = inner.masks.completions
        if not self._prefix:
            return completions.costs(inner.state)
        nodes = _path(self._trie, self._prefix)
        tokens = self._spelling(self._trie.tokens_at(np.array(nodes, dtype=np.int32)))
        token_bytes = self._trie.vocabulary.token_bytes
        left = [completions.cell(inner.state, self._after(token_bytes[one] or b"")).cost for one in tokens.tolist()]
        pieces = Costs(tokens, np.array(left, dtype=np.int32))
        if len(nodes) < len(self._prefix):
            return pieces
        beyond = completions.costs(inner.state, nodes[-1])
        return Costs(np.concatenate([pieces.tokens, beyond.tokens]), np.concatenate([pieces.left, beyond.left]))

    def need(self) -> int:
        """A number of tokens within which an output can be ended whichever legal token comes next, that one counted."""
        if self._inner is not None and not self._prefix:
            return self._inner.need()
        return 1 + int(self.costs().left.max(initial=0))

    def copy(self) -> HealedMatcher:
        twin = HealedMatcher(self._trie, self._prefix, None if self._inner is None else self._inner.copy())
        twin._history = self._history
        return twin

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens.

        Raises:
            ValueError: fewer were taken.
        """
        past = self._history
        steps: list[_Past] = []
        while past is not None and len(steps) < count:
            steps.append(past)
            past = past.before
        if len(steps) != count:
            raise ValueError(f"cannot roll back {count} tokens: {len(steps)} were taken")
        if self._inner is not None:
            self._inner.rollback(sum(step.moved for step in steps))
        if steps:
            self._prefix = steps[-1].prefix
        self._history = past
