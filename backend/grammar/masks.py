"""Which tokens are legal in a state: the automaton walked through the vocabulary's trie, level by level.

A level is a few numpy gathers over the nodes still alive, so a sparse state costs little and a dense one about a
millisecond for 50,000 tokens. A mask depends on the state alone and is kept for the next visit, in a cache bounded
by bytes; states that differ only in counts larger than the longest token share one mask.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from forktree.backend.grammar.alphabet import alphabet_of
from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.counting import clipped
from forktree.backend.grammar.forced import ForcedRuns
from forktree.backend.grammar.reach import finishable
from forktree.backend.grammar.terms import Term
from forktree.backend.grammar.trie import Ints, Trie

Mask = NDArray[np.int32]

MAX_MASK_BYTES = 64 << 20
MAX_ROWS = 50_000
_DEAD = 0
_FEW = 64  # nodes; below that, single steps are cheaper than numpy's calls


class Masks:
    """Masks of one automaton over one vocabulary, shared by all matchers of both.

    `automaton` is the constraint's, without what the vocabulary cannot spell.

    Raises, when made:
        ConstraintError: the vocabulary cannot spell any legal output.
    """

    def __init__(self, automaton: Automaton, trie: Trie) -> None:
        alphabet = alphabet_of(trie.vocabulary)
        cut = automaton if alphabet.spells(automaton) else alphabet.cut(automaton)
        self.automaton = automaton = cut or automaton
        self.trie = trie
        self.forced = ForcedRuns(self)
        self._masks: OrderedDict[Term, Mask] = OrderedDict()
        self._capacity = max(16, MAX_MASK_BYTES // (4 * self.num_words))
        self._rows = _Rows(automaton)
        eos = np.array(sorted(trie.vocabulary.eos_ids), dtype=np.int32)
        self._eos = eos[eos < trie.vocabulary.size]
        self._end = self._packed(np.empty(0, dtype=np.int32), ends=True)
        self._nothing = self._packed(np.empty(0, dtype=np.int32), ends=False)
        self._finishable: frozenset[Term] | None = None
        if cut is None:
            self._finishable = finishable(automaton, trie.vocabulary, self._legal_tokens)

    @property
    def num_words(self) -> int:
        return (self.trie.vocabulary.size + 31) // 32

    @property
    def end(self) -> Mask:
        """Only the end tokens."""
        return self._end

    @property
    def nothing(self) -> Mask:
        """No token at all: what follows an end."""
        return self._nothing

    def can_finish(self, state: Term) -> bool:
        """Whether tokens of this vocabulary can spell an output from here."""
        return self._finishable is None or state in self._finishable

    def of(self, state: Term) -> Mask:
        """Packed int32 [ceil(vocab / 32)]; read-only. End tokens are in it exactly when the state is complete."""
        mask = self._masks.get(state)
        if mask is None:
            with self.automaton.lock:
                mask = self._made(state)
        return mask

    def _legal_tokens(self, state: Term) -> list[int]:
        found: list[int] = self.trie.tokens_at(self._rows.walk(self.trie, state, 0)).tolist()
        return found

    def _finishing(self, state: Term) -> Mask:
        token_bytes, alive = self.trie.vocabulary.token_bytes, self._finishable or frozenset()
        legal = [
            token
            for token in self._legal_tokens(state)
            if self.automaton.run(state, token_bytes[token] or b"") in alive
        ]
        mask = self._packed(np.array(legal, dtype=np.int32), ends=state.nullable)
        self._keep(state, mask)
        return mask

    def _made(self, state: Term) -> Mask:
        if self._finishable is not None:
            return self._finishing(state)
        key = clipped(self.automaton.terms, state, self.trie.longest)
        mask = self._masks.get(key)
        if mask is None:
            nodes = self._rows.walk(self.trie, key, 0)
            mask = self._packed(self.trie.tokens_at(nodes), ends=key.nullable)
            self._keep(key, mask)
        if state.captures:
            mask = self._checked(state, mask)
        if key is not state:
            self._keep(state, mask)
        return mask

    def _checked(self, state: Term, mask: Mask) -> Mask:
        """The mask without the few tokens that write a key twice: the walk did not remember what it wrote."""
        token_bytes = self.trie.vocabulary.token_bytes
        illegal = [
            token
            for token in self.trie.two_keys
            if mask[token // 32] >> (token % 32) & 1 and self.automaton.run(state, token_bytes[token] or b"") is None
        ]
        if not illegal:
            return mask
        checked = mask.copy()
        for token in illegal:
            checked[token // 32] ^= np.int32(np.uint32(1 << (token % 32)).view(np.int32))
        checked.flags.writeable = False
        return checked

    def _keep(self, state: Term, mask: Mask) -> None:
        self._masks[state] = mask
        while len(self._masks) > self._capacity:
            self._masks.popitem(last=False)

    def tokens_below(self, state: Term, node: int) -> Ints:
        """Tokens in the subtree of `node`, itself excluded, whose bytes after it are legal from `state`."""
        with self.automaton.lock:
            found = self.trie.tokens_at(self._rows.walk(self.trie, state, node))
        if not state.captures:
            return found
        token_bytes, depth = self.trie.vocabulary.token_bytes, self.trie.depth(node)
        legal = [t for t in found.tolist() if self.automaton.run(state, (token_bytes[t] or b"")[depth:]) is not None]
        return np.array(legal, dtype=np.int32)

    def _packed(self, tokens: Ints, *, ends: bool) -> Mask:
        bits = np.zeros(self.num_words * 32, dtype=np.bool_)
        bits[tokens] = True
        bits[self._eos] = ends
        mask = np.packbits(bits, bitorder="little").view(np.int32)
        mask.flags.writeable = False
        return mask


class _Rows:
    """The automaton's transitions as a dense table, a row a state, filled when a walk first needs it."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[Term, int] = {}
        self._states: list[Term | None] = [None]
        self._table = np.zeros((64, 256), dtype=np.int32)
        self._is_filled = np.zeros(64, dtype=np.bool_)
        self._is_filled[_DEAD] = True

    def walk(self, trie: Trie, state: Term, node: int) -> Ints:
        """The nodes below `node` that are alive."""
        if len(self._states) > MAX_ROWS:
            self._clear()
        alive: list[Ints] = [np.empty(0, dtype=np.int32)]
        self._collect(trie, np.array([node], dtype=np.int32), np.array([self._number(state)], dtype=np.int32), alive)
        return np.concatenate(alive)

    def _collect(self, trie: Trie, nodes: Ints, states: Ints, alive: list[Ints]) -> None:
        """Level by level while levels are wide, node by node where they are narrow: the long tokens are few."""
        while int(trie.num_children[nodes].sum()) > _FEW:
            self._fill(states)
            children = trie.children_of(nodes)
            states = self._table[np.repeat(states, trie.num_children[nodes]), trie.byte[children]]
            kept = np.flatnonzero(states)
            nodes, states = children[kept], states[kept]
            alive.append(nodes)
        self._collect_few(trie, list(zip(nodes.tolist(), states.tolist(), strict=True)), alive)

    def _collect_few(self, trie: Trie, pending: list[tuple[int, int]], alive: list[Ints]) -> None:
        found: list[int] = []
        firsts, counts = trie.child_spans
        while pending:
            node, state = pending.pop()
            first, count = firsts[node], counts[node]
            if count > _FEW:
                self._collect(trie, np.array([node], dtype=np.int32), np.array([state], dtype=np.int32), alive)
            elif count:
                if not self._is_filled[state]:
                    self._fill(np.array([state], dtype=np.int32))
                row = self._table[state]
                for child in range(first, first + count):
                    reached = int(row[trie.byte[child]])
                    if reached != _DEAD:
                        found.append(child)
                        pending.append((child, reached))
        alive.append(np.array(found, dtype=np.int32))

    def _number(self, state: Term) -> int:
        number = self._numbers.get(state)
        if number is None:
            number = len(self._states)
            self._numbers[state] = number
            self._states.append(state)
            if number == len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
                self._is_filled = np.concatenate([self._is_filled, np.zeros_like(self._is_filled)])
        return number

    def _fill(self, states: Ints) -> None:
        missing = states[~self._is_filled[states]]
        if not len(missing):
            return
        for number in np.unique(missing).tolist():
            state = self._states[number]
            assert state is not None
            for mask, target in self._automaton.loose_arcs(state):
                bits = np.frombuffer(mask.to_bytes(32, "little"), dtype=np.uint8)
                reached = self._number(target)
                self._table[number, np.unpackbits(bits, bitorder="little").view(np.bool_)] = reached
            self._is_filled[number] = True
