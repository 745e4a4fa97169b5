"""Where every legal token of a state leads: the automaton walked through the trie, states kept beside nodes.

A mask needs no more than which nodes are alive; a budget needs to know what is still to be written after each token.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.terms import Term
from forktree.backend.grammar.trie import Ints, Trie

MAX_ROWS = 20_000
_DEAD = 0
_FEW = 24  # nodes of a level; below that, single steps are cheaper than numpy's calls


class Reached(NamedTuple):
    """Legal tokens, and for each the number of its state in `states`; keys of objects are not remembered."""

    tokens: Ints
    numbers: Ints
    states: list[Term]


class TokenWalk:
    """Walks of one automaton over one trie. Its owner holds the automaton's lock."""

    def __init__(self, automaton: Automaton, trie: Trie) -> None:
        self._automaton = automaton
        self._trie = trie
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[Term, int] = {}
        self._states: list[Term] = [self._automaton.start]  # number 0 is no state
        self._table = np.zeros((64, 256), dtype=np.int32)
        self._is_filled = np.zeros(64, dtype=np.bool_)

    def reached(self, state: Term, node: int = 0) -> Reached:
        """The tokens below a node whose bytes after it are legal from a state."""
        if len(self._states) > MAX_ROWS:
            self._clear()
        levels = self._levels(np.array([node], dtype=np.int32), np.array([self._number(state)], dtype=np.int32))
        nodes = np.concatenate([level[0] for level in levels])
        numbers = np.concatenate([level[1] for level in levels])
        counts = self._trie.num_tokens[nodes]
        return Reached(self._trie.tokens_at(nodes), np.repeat(numbers, counts), self._states)

    def _levels(self, nodes: Ints, numbers: Ints) -> list[tuple[Ints, Ints]]:
        trie = self._trie
        levels: list[tuple[Ints, Ints]] = [(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32))]
        while len(nodes) > _FEW or (len(nodes) and not levels[1:]):
            self._fill(numbers)
            children = trie.children_of(nodes)
            numbers = self._table[np.repeat(numbers, trie.num_children[nodes]), trie.byte[children]]
            kept: NDArray[np.intp] = np.flatnonzero(numbers)
            nodes, numbers = children[kept], numbers[kept]
            levels.append((nodes, numbers))
        if len(nodes):
            levels.append(self._few(list(zip(nodes.tolist(), numbers.tolist(), strict=True))))
        return levels

    def _few(self, pending: list[tuple[int, int]]) -> tuple[Ints, Ints]:
        firsts, counts = self._trie.child_spans
        byte = self._trie.byte
        nodes: list[int] = []
        numbers: list[int] = []
        for node, number in pending:  # grows while it is walked
            if not counts[node]:
                continue
            if not self._is_filled[number]:
                self._fill(np.array([number], dtype=np.int32))
            row = self._table[number]
            for child in range(firsts[node], firsts[node] + counts[node]):
                following = int(row[byte[child]])
                if following != _DEAD:
                    nodes.append(child)
                    numbers.append(following)
                    pending.append((child, following))
        return np.array(nodes, dtype=np.int32), np.array(numbers, dtype=np.int32)

    def _number(self, state: Term) -> int:
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self._states)
            self._states.append(state)
            if number == len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
                self._is_filled = np.concatenate([self._is_filled, np.zeros_like(self._is_filled)])
        return number

    def _fill(self, numbers: Ints) -> None:
        for number in np.unique(numbers[~self._is_filled[numbers]]).tolist():
            for mask, target in self._automaton.loose_arcs(self._states[number]):
                bits = np.frombuffer(mask.to_bytes(32, "little"), dtype=np.uint8)
                reached = self._number(target)
                self._table[number, np.unpackbits(bits, bitorder="little").view(np.bool_)] = reached
            self._is_filled[number] = True
