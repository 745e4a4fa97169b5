"""How far texts made of one kind of character lead into a vocabulary: the body of a JSON string, `.*`, `[a-z]{1,9}`.

Most of a dense mask is such a run, and it is the same whatever follows it and wherever it began between two
characters. So it is walked once for the kind of character and the vocabulary; a mask takes it from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from forktree.backend.grammar.characters import Node
from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.tables import DEAD, Table
from forktree.backend.grammar.terms import Terms
from forktree.backend.grammar.trie import Ints, Trie

MAX_RUNS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """
    Attributes:
        num_chars: [nodes] characters begun on the way to the node; -1 where its bytes are no such characters.
        is_whole: [nodes] the way ends between two characters.
        row_chars: [rows] `num_chars` where the token of the row ends.
    """

    num_chars: Ints
    is_whole: NDArray[np.bool_]
    row_chars: Ints


@lru_cache(maxsize=MAX_RUNS)
def runs_of(trie: Trie, char: Node) -> Runs:
    """The runs of a character's node, over a vocabulary; 900 kB for one of 50,000 tokens."""
    terms = Terms()
    start = terms.repeat(terms.atom(char), 0, None)
    table = Table(Derivatives(terms))
    border = table.number(start)
    num_chars = np.full(trie.num_nodes, -1, dtype=np.int32)
    is_whole = np.zeros(trie.num_nodes, dtype=np.bool_)
    nodes, states = np.zeros(1, dtype=np.int32), np.array([border], dtype=np.int32)
    num_chars[0] = 0
    while len(nodes):
        at_border = states == border
        is_whole[nodes] = at_border
        children = trie.children_of(nodes)
        begun = num_chars[nodes] + at_border
        states = table.after(np.repeat(states, trie.num_children[nodes]), trie.byte[children])
        kept = np.flatnonzero(states != DEAD)
        begun = np.repeat(begun, trie.num_children[nodes])[kept]
        nodes, states = children[kept], states[kept]
        num_chars[nodes] = begun
    return Runs(num_chars, is_whole, num_chars[trie.node_of])
