"""The vocabulary's trie against a document: the tokens that go on with a literal piece, all positions at once.

A state of `SuffixMachine` stands for positions in the document. Walking each of them down the trie beside the
document's own bytes takes a few numpy calls a level, however many states the automaton would have.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forktree.backend.grammar.substrings import PieceState, SuffixMachine, spellings
from forktree.backend.grammar.terms import Kind, Term, Terms
from forktree.backend.grammar.trie import Ints, Trie

Longs = NDArray[np.int64]


class PieceHead(NamedTuple):
    """A state that begins with the rest of a literal piece; `tail` follows it."""

    machine: SuffixMachine
    state: PieceState
    tail: Term


class PieceNodes(NamedTuple):
    """`alive`: nodes of the trie below the start that are inside the piece. `ends`: nodes, perhaps the start, at
    which the piece may end."""

    alive: Ints
    ends: Ints


def piece_head(state: Term, terms: Terms) -> PieceHead | None:
    """The piece that a state begins with; None where it begins otherwise, or amid a character."""
    head, tail = (state.args[0], state.args[1]) if state.kind is Kind.CAT else (state, terms.epsilon)
    if head.kind is not Kind.MACHINE or not isinstance(head.args[0], SuffixMachine):
        return None
    machine, place = head.args
    is_walkable = (machine.writing == "raw" or machine.is_canonical) and not place.partial
    return PieceHead(machine, place, tail) if is_walkable else None


@lru_cache(maxsize=512)
def walk_piece(trie: Trie, machine: SuffixMachine, state: PieceState, node: int) -> PieceNodes:
    """The nodes below `node` that some continuation of the piece leads through."""
    return _Walk(trie, machine, state).run(node)


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """A document as bytes, each character in its likeliest spelling.

    Attributes:
        data: [bytes + 1], the last one a byte that no text has.
        offsets: [characters + 1] where each character begins.
        position: [bytes + 1] the character that begins at a byte, -1 inside one.
        ends: as `SuffixIndex.ends`.
        has_other: [characters + 1] the character has another spelling, which begins with a backslash.
    """

    data: NDArray[np.uint8]
    offsets: Longs
    position: Longs
    ends: Longs
    has_other: NDArray[np.bool_]


def _written(machine: SuffixMachine) -> _Written:
    if machine.written is None:
        machine.written = _write(machine)
    written: _Written = machine.written
    return written


def _write(machine: SuffixMachine) -> _Written:
    text = machine.index.text
    spelled = {char: spellings(char, machine.writing, machine.is_canonical) for char in set(text)}
    pieces = [spelled[char][0] for char in text]
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    position = np.full(offsets[-1] + 1, -1, dtype=np.int64)
    position[offsets] = np.arange(len(offsets))
    others = np.array([*(len(spelled[char]) > 1 for char in text), False], dtype=np.bool_)
    data = np.frombuffer(b"".join(pieces) + b"\xff", dtype=np.uint8)
    return _Written(data, offsets, position, np.array(machine.index.ends, dtype=np.int64), others)


@lru_cache(maxsize=8)
def _edges(trie: Trie) -> Longs:
    """[nodes - 1] parent * 256 + byte of every node but the root, ascending, since nodes are numbered by level."""
    return trie.parent[1:].astype(np.int64) * 256 + trie.byte[1:]


class _Walk:
    """One walk: `run` goes level by level; characters with another spelling are followed one by one."""

    def __init__(self, trie: Trie, machine: SuffixMachine, state: PieceState) -> None:
        self._machine = machine
        self._state = state
        self._edges = _edges(trie)
        self._written = _written(machine)
        self._alive: list[Longs] = [np.empty(0, dtype=np.int64)]
        self._ends: list[Longs] = [np.empty(0, dtype=np.int64)]

    def run(self, node: int) -> PieceNodes:
        low, high, depth = self._state.place
        if high < 0:
            positions = np.array([low], dtype=np.int64)
        else:
            positions = np.array(self._machine.index.suffixes[low:high], dtype=np.int64) + depth
        if self._machine.is_final(self._state):
            self._ends.append(np.array([node], dtype=np.int64))
        self._follow(np.full(len(positions), node, dtype=np.int64), positions, positions)
        return PieceNodes(*(np.unique(np.concatenate(part)).astype(np.int32) for part in (self._alive, self._ends)))

    def _follow(self, nodes: Longs, bases: Longs, positions: Longs) -> None:
        """From nodes that stand at the beginning of a character; `bases` is where their pieces stood at the start."""
        written = self._written
        offsets = written.offsets[positions]
        while len(nodes):
            here = written.position[offsets]
            live = (here < 0) | self._can_end(bases, here + 1)
            nodes, bases, offsets, here = nodes[live], bases[live], offsets[live], here[live]
            self._follow_others(nodes, bases, here)
            nodes, kept = self._children(nodes, written.data[offsets])
            bases, offsets = bases[kept], offsets[kept] + 1
            here = written.position[offsets]
            self._alive.append(nodes)
            self._ends.append(nodes[(here >= 0) & self._may_end(bases, here)])

    def _children(self, nodes: Longs, data: NDArray[np.uint8]) -> tuple[Longs, Longs]:
        """The children by these bytes, and which of the nodes have one."""
        keys = nodes * 256 + data
        at = np.minimum(np.searchsorted(self._edges, keys), len(self._edges) - 1)
        kept = np.flatnonzero(self._edges[at] == keys) if len(self._edges) else np.empty(0, dtype=np.int64)
        return at[kept] + 1, kept

    def _can_end(self, bases: Longs, here: Longs) -> NDArray[np.bool_]:
        """Whether pieces that went from `bases` to `here` still come to an end within their bounds."""
        size = len(self._written.offsets) - 1
        least = np.maximum(here, bases + self._state.least)
        most = size if self._state.most is None else bases + self._state.most
        fits = (least <= size) & (here <= most)
        result: NDArray[np.bool_] = fits & (self._written.ends[np.where(fits, least, 0)] <= np.minimum(most, size))
        return result

    def _may_end(self, bases: Longs, here: Longs) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = (self._written.ends[here] == here) & (here - bases >= self._state.least)
        return result

    def _follow_others(self, nodes: Longs, bases: Longs, here: Longs) -> None:
        """The other spellings of the characters that begin here, for nodes from which one can begin."""
        at = np.flatnonzero((here >= 0) & self._written.has_other[here])
        if not len(at):
            return
        starts, kept = self._children(nodes[at], np.full(len(at), ord("\\"), dtype=np.uint8))
        at = at[kept]
        text, machine = self._machine.index.text, self._machine
        for node, base, position in zip(starts.tolist(), bases[at].tolist(), here[at].tolist(), strict=True):
            for spelling in spellings(text[position], machine.writing, machine.is_canonical)[1:]:
                self._spell(node, base, position, spelling)

    def _spell(self, node: int, base: int, position: int, spelling: bytes) -> None:
        """One character in one spelling, whose first byte led to `node`; its digits in either case."""
        nodes = np.array([node], dtype=np.int64)
        self._alive.append(nodes)
        for byte in spelling[1:]:
            both = np.array(sorted({byte, ord(chr(byte).upper())} if byte != ord("u") else {byte}), dtype=np.uint8)
            nodes, _ = self._children(np.repeat(nodes, len(both)), np.tile(both, len(nodes)))
            self._alive.append(nodes)
        count = len(nodes)
        after, bases = np.full(count, position + 1, dtype=np.int64), np.full(count, base, dtype=np.int64)
        self._ends.append(nodes[self._may_end(bases, after)])
        self._follow(nodes, bases, after)
