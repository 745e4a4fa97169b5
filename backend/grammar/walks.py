"""An automaton walked through a vocabulary's trie: which tokens are legal in a state.

The walk goes level by level, a few numpy gathers for all nodes that are still alive. It leaps where it can: a state is
taken apart (`apart`), a word is followed byte by byte, and the tokens of a run of one kind of character are taken from
`runs` as a whole, the walk going on only where the run may end: at the nodes below whose byte what follows can begin
with. Parts that overlap are walked twice, which changes nothing; a walk that so meets too many nodes is done again
without leaps.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forktree.backend.grammar.apart import Run, Word, taken_apart
from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.piece_walk import piece_head, walk_piece
from forktree.backend.grammar.runs import Runs, runs_of
from forktree.backend.grammar.tables import DEAD, MAX_ROWS, Table, present
from forktree.backend.grammar.terms import Kind, Term
from forktree.backend.grammar.trie import Ints, Trie

Rows = NDArray[np.bool_]

_FEW = 256  # tokens; fewer are walked node by node, which is then faster than numpy's calls
_MAX_EXITS = 8_192
_MAX_STEPS = 4_096  # words followed from all entries of a state


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A run and what follows it.

    Attributes:
        exits: nodes that the run may have left by their byte; `exit_states` is where that leads, `exit_chars` how
            many characters the run had.
        holes: numbers of what the run must not be where it ends.
    """

    runs: Runs
    holes: tuple[int, ...]
    low: int
    high: int | None
    exits: Ints
    exit_states: Ints
    exit_chars: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Split:
    """A state taken apart; `rest` is the number of what is neither run nor word, `DEAD` for none."""

    parts: tuple[_Part, ...]
    words: tuple[Word, ...]
    rest: int


@dataclass(slots=True, eq=False)
class _Found:
    """What a walk has found so far."""

    nodes: NDArray[np.bool_]
    rows: Rows
    num_visited: int = 0


class Walks:
    """The walks of one automaton over one vocabulary; its lock must be held."""

    def __init__(self, automaton: Automaton, trie: Trie) -> None:
        self._automaton = automaton
        self._trie = trie
        self._table = Table(automaton)
        self._splits: dict[int, _Split | None] = {}

    def rows(self, state: Term, node: int = 0) -> Rows:
        """[rows] the tokens below a node, itself excluded, whose bytes after it are legal in the state."""
        if len(self._table) > MAX_ROWS:
            self._table.clear()
            self._splits.clear()
        trie = self._trie
        found = self._walk(state, node, leaps=True)
        if found is None:
            found = self._walk(state, node, leaps=False)
            assert found is not None, "a walk without leaps meets every node once"
        rows = found.nodes[trie.node_of] | found.rows
        first = trie.first_token[node]
        rows[first : first + trie.num_tokens[node]] = False
        return rows

    def _walk(self, state: Term, node: int, *, leaps: bool) -> _Found | None:
        trie = self._trie
        found = _Found(np.zeros(trie.num_nodes, dtype=np.bool_), np.zeros(len(trie.tokens), dtype=np.bool_))
        nodes = np.array([node], dtype=np.int32)
        head = piece_head(state, self._automaton.terms)
        if head is not None:
            inside, nodes = walk_piece(trie, head.machine, head.state, node)
            found.nodes[inside] = True
            state = head.tail
        pending = [(nodes, np.full(len(nodes), self._table.number(state), dtype=np.int32))]
        while pending:
            nodes, states = pending.pop()
            if leaps:
                nodes, states = self._leap(nodes, states, found, pending)
            num_below = int(self._trie.num_below[nodes].sum())
            if num_below > _FEW:
                pending.append(self._level(nodes, states, found))
            elif num_below:
                self._creep(list(zip(nodes.tolist(), states.tolist(), strict=True)), found)
            if found.num_visited > 2 * trie.num_nodes and leaps:
                return None
        return found

    def _level(self, nodes: Ints, states: Ints, found: _Found) -> tuple[Ints, Ints]:
        """The children that are alive."""
        trie = self._trie
        children = trie.children_of(nodes)
        states = self._table.after(np.repeat(states, trie.num_children[nodes]), trie.byte[children])
        kept = np.flatnonzero(states)
        children, states = children[kept], states[kept]
        found.nodes[children] = True
        found.num_visited += len(children)
        more = np.flatnonzero(self._trie.num_below[children])
        return children[more], states[more]

    def _creep(self, pending: list[tuple[int, int]], found: _Found) -> None:
        """Node by node."""
        firsts, counts = self._trie.child_spans
        byte, table = self._trie.byte, self._table
        alive = []
        while pending:
            node, state = pending.pop()
            count = counts[node]
            if count:
                first = firsts[node]
                reached = table.row(state)[byte[first : first + count]].tolist()
                for child, after in enumerate(reached, first):
                    if after != DEAD:
                        alive.append(child)
                        pending.append((child, after))
        found.nodes[alive] = True
        found.num_visited += len(alive)

    # -- runs -----------------------------------------------------------------------------------------

    def _leap(self, nodes: Ints, states: Ints, found: _Found, pending: list[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
        """Takes the runs that begin at these nodes as a whole. The nodes that are left, with the states that are."""
        weights = np.bincount(states, weights=self._trie.num_below[nodes])
        for number in np.flatnonzero(weights > _FEW).tolist():
            split = self._split(number)
            if split is None:
                continue
            at = np.flatnonzero(states == number)
            if len(at) * len(split.words) > _MAX_STEPS:
                continue
            whole = np.ones(len(at), dtype=np.bool_)
            for part in split.parts:
                whole &= part.runs.is_whole[nodes[at]]
            taken, entries = at[whole], nodes[at[whole]]
            if int(self._trie.num_below[entries].sum()) <= _FEW:
                continue
            for part in split.parts:
                pending += self._taken(part, entries, found)
            pending += self._spelled(split.words, entries, found)
            if split.rest != DEAD:
                pending.append((entries, np.full(len(entries), split.rest, dtype=np.int32)))
            nodes, states = np.delete(nodes, taken), np.delete(states, taken)
        return nodes, states

    def _taken(self, part: _Part, entries: Ints, found: _Found) -> list[tuple[Ints, Ints]]:
        """Marks the tokens of a run from each entry; where the walk goes on behind it."""
        on, trie = [], self._trie
        for had in present(part.runs.num_chars[entries]).tolist():
            group = entries[part.runs.num_chars[entries] == had]  # no two of them on one path: a path adds characters
            self._mark(part, group, had, found)
            exits = self._exits(part, group, had)
            for hole in part.holes:
                exits = exits[~np.isin(trie.parent[part.exits[exits]], self._ends(hole, group))]
            if len(exits):
                nodes, states = part.exits[exits], part.exit_states[exits]
                found.nodes[nodes] = True
                found.num_visited += len(nodes)
                on.append((nodes, states))
        return on

    def _mark(self, part: _Part, entries: Ints, had: int, found: _Found) -> None:
        trie, chars = self._trie, part.runs.row_chars
        most = np.iinfo(np.int32).max if part.high is None else had + part.high
        if len(entries) == 1:
            below = slice(int(trie.first_token[entries[0]]), int(trie.end_token[entries[0]]))
            found.rows[below] |= (chars[below] >= had) & (chars[below] <= most)
            return
        covered = _covered(trie.first_token[entries], trie.end_token[entries], len(chars))
        found.rows |= covered & (chars >= had) & (chars <= most)

    def _exits(self, part: _Part, entries: Ints, had: int) -> Ints:
        """Which of the part's exits lie below the entries, after a legal number of characters."""
        trie, chars = self._trie, part.exit_chars
        legal = chars >= had + part.low
        if part.high is not None:
            legal &= chars <= had + part.high
        if entries[0] != 0:
            entries = entries[np.argsort(trie.first_token[entries])]
            at = np.searchsorted(trie.first_token[entries], trie.first_token[part.exits], side="right") - 1
            entry = entries[at]
            legal &= (at >= 0) & (trie.end_token[part.exits] <= trie.end_token[entry])
            legal &= trie.level[part.exits] > trie.level[entry]
        return np.flatnonzero(legal).astype(np.int32)

    def _ends(self, state: int, entries: Ints) -> list[int]:
        """The nodes below the entries at which a finite language has a whole text."""
        firsts, counts = self._trie.child_spans
        table = self._table
        ends = []
        pending = [(node, state) for node in entries.tolist()]
        while pending:
            node, state = pending.pop()
            if table.state(state).nullable:
                ends.append(node)
            first, count = firsts[node], counts[node]
            row = table.row(state)
            for at in np.flatnonzero(row[self._trie.byte[first : first + count]]).tolist():
                pending.append((first + at, int(row[self._trie.path_bytes[first + at]])))
        return ends

    def _spelled(self, words: tuple[Word, ...], entries: Ints, found: _Found) -> list[tuple[Ints, Ints]]:
        """Marks the nodes on the way of each word from each entry; where the walk goes on behind them."""
        firsts, counts = self._trie.child_spans
        data, alive, nodes, states = self._trie.path_bytes, [], [], []
        for entry in entries.tolist():
            for word, tail in words:
                node = entry
                for byte in word:
                    first = firsts[node]
                    end = first + counts[node]
                    node = bisect_left(data, byte, first, end)
                    if node == end or data[node] != byte:
                        break
                    alive.append(node)
                else:
                    nodes.append(node)
                    states.append(self._table.number(tail))
        found.nodes[alive] = True
        found.num_visited += len(alive)
        return [(np.array(nodes, dtype=np.int32), np.array(states, dtype=np.int32))] if nodes else []

    def _split(self, number: int) -> _Split | None:
        """How a state is taken apart; None where nothing is gained."""
        if number not in self._splits:
            runs, words, rest = taken_apart(self._automaton, self._table.state(number))
            parts = [self._part(run) for run in runs]
            found = None
            if (runs or words) and None not in parts:
                rest_number = DEAD if rest.kind is Kind.EMPTY else self._table.number(rest)
                found = _Split(tuple(part for part in parts if part is not None), tuple(words), rest_number)
            self._splits[number] = found
        return self._splits[number]

    def _part(self, run: Run) -> _Part | None:
        """None where the run may end at too many places for a leap to pay."""
        trie = self._trie
        body, low, high = run.repeat.args
        runs = runs_of(trie, body.args[0])
        exits, states = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int32)]
        for mask, target in self._automaton.loose_arcs(run.tail):
            for byte in _bytes_of(mask):
                nodes = trie.by_byte[byte]
                exits.append(nodes[runs.is_whole[trie.parent[nodes]]])
                states.append(np.full(len(exits[-1]), self._table.number(target), dtype=np.int32))
        nodes = np.concatenate(exits)
        if len(nodes) > _MAX_EXITS:
            return None
        holes = tuple(map(self._table.number, run.holes))
        return _Part(runs, holes, low, high, nodes, np.concatenate(states), runs.num_chars[trie.parent[nodes]])


def _bytes_of(mask: int) -> list[int]:
    return [byte for byte in range(256) if mask >> byte & 1]


def _covered(starts: Ints, ends: Ints, size: int) -> Rows:
    """[size] whether a place lies in one of the half-open ranges, which share no place."""
    change = np.zeros(size + 1, dtype=np.int32)
    change[starts] += 1
    change[ends] -= 1
    return np.cumsum(change[:-1]) > 0
