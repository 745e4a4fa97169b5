"""What the engine shows of itself: its last steps, and the tree that it caches. Frozen values, for viewers."""

from __future__ import annotations

from dataclasses import dataclass

from forktree.backend.cache.radix import Node, RadixCache


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One forward pass.

    Attributes:
        index: of the step, from 1 on.
        prefill_tokens, decode_tokens: rows that it computed as prompt, and tokens that it drew.
        num_sequences: sequences in the batch.
        num_running, num_waiting: live requests after it.
        seconds: from schedule to delivery.
    """

    index: int
    prefill_tokens: int
    decode_tokens: int
    num_sequences: int
    num_running: int
    num_waiting: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CachedNode:
    """A run of cached tokens, and what goes on from it.

    Attributes:
        tokens: ids of the run.
        num_pages: pages that the node owns.
        num_locks: running sequences that read it.
    """

    tokens: tuple[int, ...]
    num_pages: int
    num_locks: int
    children: tuple[CachedNode, ...]


def cached_tree(tree: RadixCache) -> dict[str, tuple[CachedNode, ...]]:
    """The children of each namespace's root."""
    return {namespace: _freeze(root).children for namespace, root in tree.namespaces.items()}


def _freeze(root: Node) -> CachedNode:
    """Bottom up, without recursion: a tree may be as deep as a context is long."""
    order = [root]
    for node in order:
        order.extend(node.children.values())
    frozen: dict[int, CachedNode] = {}
    for node in reversed(order):
        children = tuple(frozen.pop(id(child)) for child in node.children.values())
        frozen[id(node)] = CachedNode(tuple(node.tokens), len(node.pages), node.num_locks, children)
    return frozen[id(root)]
