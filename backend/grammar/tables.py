"""An automaton's transitions as a dense table, a row a state, filled when a walk first needs it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.terms import Term

Ints = NDArray[np.int32]

DEAD = 0
MAX_ROWS = 50_000


class Table:
    """States by number. A captured key is not remembered (`loose_arcs`). Used under the automaton's lock."""

    def __init__(self, derivatives: Derivatives) -> None:
        self._derivatives = derivatives
        self.clear()

    def clear(self) -> None:
        """Forget every number."""
        self._numbers: dict[Term, int] = {}
        self._states: list[Term | None] = [None]
        self._rows = np.zeros((64, 256), dtype=np.int32)
        self._is_filled = np.zeros(64, dtype=np.bool_)
        self._is_filled[DEAD] = True

    def __len__(self) -> int:
        return len(self._states)

    def number(self, state: Term) -> int:
        number = self._numbers.get(state)
        if number is None:
            number = len(self._states)
            self._numbers[state] = number
            self._states.append(state)
            if number == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
                self._is_filled = np.concatenate([self._is_filled, np.zeros_like(self._is_filled)])
        return number

    def state(self, number: int) -> Term:
        state = self._states[number]
        assert state is not None, "the dead state has no term"
        return state

    def after(self, states: Ints, byte: NDArray[np.uint8]) -> Ints:
        """Where each of the states is after its byte; `DEAD` where the byte is illegal."""
        self._fill(states)
        return self._rows[states, byte]

    def row(self, state: int) -> NDArray[np.int32]:
        """Where a state is after each of the 256 bytes."""
        if not self._is_filled[state]:
            self._fill(np.array([state], dtype=np.int32))
        return self._rows[state]

    def _fill(self, states: Ints) -> None:
        missing = states[~self._is_filled[states]]
        if not len(missing):
            return
        for number in present(missing).tolist():
            for mask, target in self._derivatives.loose_arcs(self.state(number)):
                reached = self.number(target)
                if mask & (mask - 1):
                    bits = np.frombuffer(mask.to_bytes(32, "little"), dtype=np.uint8)
                    self._rows[number, np.unpackbits(bits, bitorder="little").view(np.bool_)] = reached
                else:
                    self._rows[number, mask.bit_length() - 1] = reached
            self._is_filled[number] = True


def present(numbers: Ints) -> Ints:
    """The different numbers of an array, rising; faster than a sort where they are small."""
    return np.flatnonzero(np.bincount(numbers)).astype(np.int32)
