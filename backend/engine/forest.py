"""The forest of live requests: who shares which prefix with whom, before anything is computed.

One radix tree over prompts for each namespace, holding waiting and running sequences but no pages. The
scheduler reads three things off it: whether a running sequence is about to compute what a waiting one needs,
which running sequence holds the tail of a shared prefix, and a depth-first order of those that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from forktree.backend.cache.prefix import count_common

if TYPE_CHECKING:
    from forktree.backend.engine.request import Sequence


class ForestNode:
    """Prompt tokens at [start, end), shared by every sequence below. Only the forest changes a node."""

    __slots__ = ("children", "last_started", "num_members", "parent", "running", "start", "tokens")

    def __init__(self, parent: ForestNode | None, start: int, tokens: list[int]) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.children: dict[int, ForestNode] = {}
        self.num_members = 0
        self.last_started = 0  # logical time at which a sequence below it was admitted last
        self.running: dict[Sequence, None] = {}  # an ordered set

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class Forest:
    """Every live sequence, filed under its prompt."""

    def __init__(self) -> None:
        self._roots: dict[str, ForestNode] = {}
        self._clock = 0

    def add(self, seq: Sequence) -> None:
        """File a waiting sequence; O(prompt)."""
        root = self._roots.setdefault(seq.request.namespace, ForestNode(None, 0, []))
        seq.leaf = _descend(root, seq.ids[: seq.num_prompt])
        for node in _upwards(seq.leaf):
            node.num_members += 1

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out, running or not."""
        assert seq.leaf is not None
        for node in _upwards(seq.leaf):
            node.running.pop(seq, None)
            node.num_members -= 1
            if node.num_members == 0 and node.parent is not None:
                del node.parent.children[node.tokens[0]]
            root = node
        if root.num_members == 0:
            del self._roots[seq.request.namespace]
        seq.leaf = None

    def mark_running(self, seq: Sequence) -> None:
        self._clock += 1
        for node in _upwards(seq.leaf):
            node.running[seq] = None
            node.last_started = self._clock

    def mark_waiting(self, seq: Sequence) -> None:
        for node in _upwards(seq.leaf):
            del node.running[seq]

    def deepest_shared(self, seq: Sequence) -> ForestNode | None:
        """The longest prefix that a waiting sequence shares with any running one, or None."""
        for node in _upwards(seq.leaf):
            if node.running:
                return node if node.end else None
        return None

    def depth_first(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Order sequences, given oldest first, as a walk of their tree.

        A trunk comes before its branches. Among branches the walk goes on where a sequence was admitted last
        (its prefix is in use, or has been a moment ago), then where the oldest request is.
        """
        items: dict[ForestNode, tuple[list[Sequence], list[ForestNode]]] = {}
        roots: list[ForestNode] = []
        for seq in sequences:
            child: ForestNode | None = None
            for node in _upwards(seq.leaf):
                is_known = node in items
                here = items.setdefault(node, ([], []))
                if child is None:
                    here[0].append(seq)
                else:
                    here[1].append(child)
                if is_known:
                    break
                child = node
            else:
                roots.append(node)
        return list(_walk(roots, items))


def _walk(
    roots: list[ForestNode], items: dict[ForestNode, tuple[list[Sequence], list[ForestNode]]]
) -> Iterator[Sequence]:
    stack = sorted(roots, key=_recency)[::-1]
    while stack:
        sequences, children = items[stack.pop()]
        yield from sequences
        children.sort(key=_recency)  # stable: the oldest first where nothing was admitted yet
        stack.extend(reversed(children))


def _recency(node: ForestNode) -> int:
    return -node.last_started


def _upwards(node: ForestNode | None) -> Iterator[ForestNode]:
    while node is not None:
        yield node
        node = node.parent


def _descend(node: ForestNode, ids: list[int]) -> ForestNode:
    """The node that ends where `ids` end, made if need be."""
    depth = 0
    while depth < len(ids):
        child = node.children.get(ids[depth])
        if child is None:
            child = node.children[ids[depth]] = ForestNode(node, depth, ids[depth:])
            return child
        size = min(len(child.tokens), len(ids) - depth)
        num_common = count_common(child.tokens, 0, ids, depth, size)
        depth += num_common
        node = child if num_common == len(child.tokens) else _split(child, num_common)
    return node


def _split(node: ForestNode, cut: int) -> ForestNode:
    """Cut a node after `cut` tokens; it stays the lower part, so that leaves keep their node."""
    assert node.parent is not None
    upper = ForestNode(node.parent, node.start, node.tokens[:cut])
    upper.num_members, upper.last_started = node.num_members, node.last_started
    upper.running = dict(node.running)
    upper.children[node.tokens[cut]] = node
    node.parent.children[upper.tokens[0]] = upper
    node.parent, node.start, node.tokens = upper, node.start + cut, node.tokens[cut:]
    return upper
