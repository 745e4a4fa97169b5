"""The nodes of the radix cache, and the way down to one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from forktree.backend.cache.prefix import count_common

DEAD = -1  # `last_used` of a node that has left the tree; no entry of the heap matches it


class Node:
    """A run of tokens at [start, end) and the pages it owns. Only the cache changes a node.

    Attributes:
        num_locks: users of this node and of those below it, who read its pages.
        num_holds: those who will ask for this node, or for one below it, again.
        last_used: logical time of the last use.
    """

    __slots__ = ("children", "last_used", "num_holds", "num_locks", "pages", "parent", "start", "tokens")

    def __init__(self, parent: Node | None, start: int, tokens: list[int], pages: list[int]) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.pages = pages
        self.children: dict[int, Node] = {}
        self.num_locks = 0
        self.num_holds = 0
        self.last_used = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def is_dead(self) -> bool:
        """It has left the tree."""
        return self.last_used == DEAD


class PartialPage(NamedTuple):
    """The first `num_tokens` slots of `page` continue a match. Nothing locks it: it is to be copied before
    anything is written to a page that is freed from now on, this one included."""

    page: int
    num_tokens: int


class Prefix(NamedTuple):
    """A locked match. `pages` are full; `node` holds the lock on them; `partial` goes on inside the next page."""

    node: Node
    pages: list[int]
    partial: PartialPage | None


def upwards(node: Node | None) -> Iterator[Node]:
    """A node and those above it, the root last."""
    while node is not None:
        yield node
        node = node.parent


def descend(node: Node, ids: list[int], limit: int) -> tuple[Node, int]:
    """The deepest node that the first `limit` tokens reach into, and how many of them were found."""
    depth = 0
    while depth < limit:
        child = node.children.get(ids[depth])
        if child is None:
            break
        node = child
        size = min(len(node.tokens), limit - depth)
        num_common = count_common(node.tokens, 0, ids, depth, size)
        depth += num_common
        if num_common < len(node.tokens):
            break
    return node, depth
