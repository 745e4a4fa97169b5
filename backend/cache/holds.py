"""What live programs will ask for again: it stays in the tree while there is anything else to evict.

Between two calls of a program (a tool runs, a branch waits for its sibling) nothing of it runs, and nothing locks
what it computed. Each request says which run it belongs to (`owner`); what it leaves in the tree is held for that run
until the run ends. A hold is a wish: where only held pages are left, the least recently used of them go.
"""

from __future__ import annotations

from collections import OrderedDict

from forktree.backend.cache.nodes import Node, upwards
from forktree.backend.cache.radix import RadixCache

_MOST_OWNERS = 4096  # live runs whose prompts are held; of more, the oldest lose theirs
_MOST_ENDED = 4096  # remembered, so that a request that ends after its run holds nothing
_SWEEP = 64


class Holds:
    """The held nodes of every owner. Not thread-safe: the engine's thread owns it."""

    def __init__(self, tree: RadixCache) -> None:
        self._tree = tree
        self._held: OrderedDict[int, dict[Node, None]] = OrderedDict()
        self._ended: OrderedDict[int, None] = OrderedDict()

    @property
    def num_owners(self) -> int:
        return len(self._held)

    def add(self, owner: int, namespace: str, ids: list[int], num_tokens: int) -> None:
        """Hold what the tree has of the first `num_tokens` tokens, and what earlier holds of the owner hold."""
        if owner in self._ended:
            return
        node = self._tree.hold(namespace, ids, num_tokens)
        if node is None:
            return
        held = self._held.setdefault(owner, {})
        self._held.move_to_end(owner)
        for covered in upwards(node):
            if covered in held:
                del held[covered]
                self._tree.unhold(covered)
        held[node] = None
        if len(held) % _SWEEP == 0:
            self._sweep(held)
        if len(self._held) > _MOST_OWNERS:
            self._release_all(self._held.popitem(last=False)[1])

    def release(self, owner: int) -> None:
        """A run has ended, for good. Harmless for one that is not known."""
        self._ended[owner] = None
        if len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)
        self._release_all(self._held.pop(owner, {}))

    def _sweep(self, held: dict[Node, None]) -> None:
        """Let go of what was evicted all the same."""
        for node in [node for node in held if node.is_dead]:
            del held[node]
            self._tree.unhold(node)

    def _release_all(self, held: dict[Node, None]) -> None:
        for node in held:
            self._tree.unhold(node)
