"""Several continuations of one prompt, scored in one pass: the trie of their tokens, and the rows it is computed in.

    prompt ─┬─ yes ─── , ─── please      nodes, depth first   yes  ,  please  ye  ah
            └─ ye ──── ah                rows                 yes  ,          ye

A node's log-probability stands in the logits of the token before it, so a node that nothing stands behind is
foretold and never computed. Rows are laid behind the prompt in the sequence's page table, one place each; their
keys and values are scratch. Only the prompt goes to the tree of what is cached: which continuation the program
goes on with is not known here, and all but one of them would be dead weight there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from forktree.kernels.token_tree import TokenTree

NO_PARENT = -1


@dataclass(frozen=True, slots=True)
class Continuations:
    """Tokens that may follow a prompt, as a trie.

    Attributes:
        tokens: of the nodes, depth first.
        parents: the node before each; -1 is the prompt.

    Raises:
        ValueError: not a trie in depth-first order.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"continuations have {len(self.tokens)} tokens, but {len(self.parents)} parents")
        way = [NO_PARENT]
        for node, parent in enumerate(self.parents):
            while way and way[-1] != parent:
                way.pop()
            if not way:
                raise ValueError(f"node {node} of the continuations stands behind {parent}: that is not depth first")
            way.append(node)

    def path_to(self, node: int) -> list[int]:
        """The nodes from the prompt to `node`, itself the last; empty for -1."""
        path = []
        while node != NO_PARENT:
            path.append(node)
            node = self.parents[node]
        path.reverse()
        return path


def merge_runs(runs: Iterable[Sequence[int]]) -> tuple[Continuations, list[int]]:
    """The trie of some runs of tokens, and the node at which each run ends (-1 for an empty one)."""
    roots: dict[int, _Node] = {}
    ends: list[_Node | None] = []
    for run in runs:
        children, node = roots, None
        for token in run:
            node = children.setdefault(token, _Node())
            children = node.children
        ends.append(node)
    tokens, parents = _number(roots)
    return Continuations(tuple(tokens), tuple(parents)), [NO_PARENT if end is None else end.index for end in ends]


class _Node:
    __slots__ = ("children", "index")

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}
        self.index = NO_PARENT


def _number(roots: dict[int, _Node]) -> tuple[list[int], list[int]]:
    """Tokens and parents, depth first; children in the order in which they came."""
    tokens: list[int] = []
    parents: list[int] = []
    stack = [(token, node, NO_PARENT) for token, node in reversed(roots.items())]
    while stack:
        token, node, parent = stack.pop()
        node.index = len(tokens)
        tokens.append(token)
        parents.append(parent)
        stack.extend((below, child, node.index) for below, child in reversed(node.children.items()))
    return tokens, parents


class BranchRows(NamedTuple):
    """What is computed of continuations, row by row in depth-first order.

    Attributes:
        tokens: of the rows: the nodes that another one stands behind.
        offsets: of the rows' positions from the prompt's end.
        tree: where they lie, behind `num_prompt` tokens.
        foretold: nodes behind the prompt's last token, then behind each row.
        height: tokens of the longest continuation.
    """

    tokens: tuple[int, ...]
    offsets: tuple[int, ...]
    tree: TokenTree
    foretold: tuple[tuple[int, ...], ...]
    height: int


def lay_out(continuations: Continuations, num_prompt: int) -> BranchRows:
    """The rows of continuations behind a prompt."""
    nodes, parents = len(continuations.tokens), continuations.parents
    depths = [0] * nodes
    children: dict[int, list[int]] = {NO_PARENT: []}
    for node, parent in enumerate(parents):
        depths[node] = 0 if parent == NO_PARENT else depths[parent] + 1
        children.setdefault(parent, []).append(node)
    rows = [node for node in range(nodes) if node in children]
    place = {NO_PARENT: num_prompt - 1, **{node: num_prompt + row for row, node in enumerate(rows)}}
    return BranchRows(
        tokens=tuple(continuations.tokens[node] for node in rows),
        offsets=tuple(depths[node] for node in rows),
        tree=TokenTree(num_prompt, tuple(place[parents[node]] for node in rows)),
        foretold=tuple(tuple(children[node]) for node in (NO_PARENT, *rows)),
        height=1 + max(depths, default=-1),
    )
