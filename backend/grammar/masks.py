"""Which tokens are legal in a state, packed into a mask.

A mask depends on the state alone and is kept for the next visit, in a cache bounded by bytes; states that differ
only in counts larger than the longest token share one mask. `walks` finds the tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forktree.backend.grammar.alphabet import alphabet_of
from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.collector import PAUSED_COLLECTOR
from forktree.backend.grammar.counting import clipped
from forktree.backend.grammar.forced import ForcedRuns
from forktree.backend.grammar.reach import finishable
from forktree.backend.grammar.terms import ITEMS, KEYS, Term
from forktree.backend.grammar.trie import Ints, Trie
from forktree.backend.grammar.walks import Walks
from forktree.backend.grammar.work import COMPILE_STEPS, MASK_STEPS

if TYPE_CHECKING:
    from forktree.backend.grammar.completions import Completions

Mask = NDArray[np.int32]

MAX_MASK_BYTES = 64 << 20


class Masks:
    """Masks of one automaton over one vocabulary, shared by all matchers of both.

    `automaton` is the constraint's, without what the vocabulary cannot spell.

    Raises, when made:
        ConstraintError: the vocabulary cannot spell any legal output, or the first mask takes too much work.
    """

    def __init__(self, automaton: Automaton, trie: Trie) -> None:
        alphabet = alphabet_of(trie.vocabulary)
        cut = automaton if alphabet.spells(automaton) else alphabet.cut(automaton)
        self.automaton = automaton = cut or automaton
        self.trie = trie
        self.forced = ForcedRuns(self)
        self._completions: Completions | None = None
        self._masks: OrderedDict[Term, Mask] = OrderedDict()
        self._capacity = max(16, MAX_MASK_BYTES // (4 * self.num_words))
        self._walks = Walks(automaton, trie)
        eos = np.array(sorted(trie.vocabulary.eos_ids), dtype=np.int32)
        self._eos = eos[eos < trie.vocabulary.size]
        self._end = self._packed(np.empty(0, dtype=np.int32), ends=True)
        self._nothing = self._packed(np.empty(0, dtype=np.int32), ends=False)
        self._finishable: frozenset[Term] | None = None
        if cut is None:
            with automaton.terms.work.limited(COMPILE_STEPS):
                self._finishable = finishable(automaton, trie.vocabulary, self._legal_tokens)
        with automaton.lock, automaton.terms.work.limited(MASK_STEPS), PAUSED_COLLECTOR:
            self._made(automaton.start)  # what explodes at the first token is refused before an output begins

    @property
    def num_words(self) -> int:
        return (self.trie.vocabulary.size + 31) // 32

    @property
    def num_bytes(self) -> int:
        """What the masks and walks take, without the automaton: an estimate."""
        completions = 0 if self._completions is None else self._completions.num_bytes
        return len(self._masks) * 4 * self.num_words + self.trie.num_nodes * 4 + completions

    @property
    def end(self) -> Mask:
        """Only the end tokens."""
        return self._end

    @property
    def nothing(self) -> Mask:
        """No token at all: what follows an end."""
        return self._nothing

    @property
    def is_restricted(self) -> bool:
        """The vocabulary lacks bytes, so that some states that the automaton could finish tokens cannot."""
        return self._finishable is not None

    @property
    def completions(self) -> Completions:
        """How few tokens end an output; made when first asked for."""
        with self.automaton.lock:
            if self._completions is None:
                from forktree.backend.grammar.completions import Completions

                self._completions = Completions(self)
        return self._completions

    def can_finish(self, state: Term) -> bool:
        """Whether tokens of this vocabulary can spell an output from here."""
        return self._finishable is None or state in self._finishable

    def has(self, state: Term) -> bool:
        """The mask of a state was made before."""
        return state in self._masks

    def of(self, state: Term) -> Mask:
        """Packed int32 [ceil(vocab / 32)]; read-only. End tokens are in it exactly when the state is complete.

        Raises:
            ConstraintError: it takes more than `MASK_STEPS` of work.
        """
        mask = self._masks.get(state)
        if mask is None:
            with self.automaton.lock, self.automaton.terms.work.limited(MASK_STEPS), PAUSED_COLLECTOR:
                mask = self._made(state)
        return mask

    def _legal_tokens(self, state: Term) -> list[int]:
        found: list[int] = self.trie.tokens[self._walks.rows(state)].tolist()
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
            mask = self._packed(self.trie.tokens[self._walks.rows(key)], ends=key.nullable)
            self._keep(key, mask)
        if state.captures:
            mask = self._checked(state, mask)
        if key is not state:
            self._keep(state, mask)
        return mask

    def _checked(self, state: Term, mask: Mask) -> Mask:
        """The mask without the few tokens that write a key or an item twice: the walk did not remember any."""
        token_bytes = self.trie.vocabulary.token_bytes
        suspects = self.trie.two_keys if state.captures & KEYS else ()
        if state.captures & ITEMS:
            is_inside_string = self.automaton.step(state, ord("x")) is not None  # no other JSON begins or goes on so
            suspects = (*suspects, *(self.trie.quoted_commas if is_inside_string else self.trie.commas))
        illegal = [
            token
            for token in dict.fromkeys(suspects)
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
        with self.automaton.lock, self.automaton.terms.work.limited(MASK_STEPS):
            found = self.trie.tokens[self._walks.rows(state, node)]
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
