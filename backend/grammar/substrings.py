"""Literal pieces of a document, by its suffix automaton (Blumer et al. 1985): at most two states a character.

The automaton reads characters; on top of it a state keeps the bytes of a character that is not yet whole. Every
state can end at the next character border, so there are no dead ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from forktree.lang.errors import ConstraintError

MAX_DOCUMENT = 2_000_000


class _State(NamedTuple):
    node: int
    partial: bytes = b""


@dataclass(slots=True, eq=False)
class SuffixMachine:
    """All pieces of one text, the empty one among them.

    Raises:
        ConstraintError: the text is longer than `MAX_DOCUMENT` characters, or holds a lone surrogate.
    """

    text: str
    _next: list[dict[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        if len(self.text) > MAX_DOCUMENT:
            raise ConstraintError(f"the document has {len(self.text)} characters, the limit is {MAX_DOCUMENT}")
        if any("\ud800" <= char <= "\udfff" for char in self.text):
            raise ConstraintError("the document holds a lone surrogate, which no text can have")
        self._next = _suffix_automaton(self.text)

    @property
    def start(self) -> _State:
        return _State(0)

    def is_final(self, state: _State) -> bool:
        return not state.partial

    def arcs(self, state: _State) -> list[tuple[int, _State]]:
        depth = len(state.partial)
        reached: dict[int, _State] = {}
        for char, node in self._next[state.node].items():
            data = char.encode()
            if data.startswith(state.partial):
                is_whole = len(data) == depth + 1
                reached[data[depth]] = _State(node) if is_whole else _State(state.node, data[: depth + 1])
        return [(1 << byte, after) for byte, after in reached.items()]


def _suffix_automaton(text: str) -> list[dict[str, int]]:
    """Transitions of each state; state 0 is the start."""
    transitions: list[dict[str, int]] = [{}]
    link, length = [-1], [0]
    last = 0
    for char in text:
        current = len(transitions)
        transitions.append({})
        link.append(0)
        length.append(length[last] + 1)
        at = last
        while at >= 0 and char not in transitions[at]:
            transitions[at][char] = current
            at = link[at]
        if at >= 0:
            link[current] = _shared(transitions, link, length, at, char)
        last = current
    return transitions


def _shared(transitions: list[dict[str, int]], link: list[int], length: list[int], at: int, char: str) -> int:
    """The state of the longest proper suffix that occurs elsewhere; split off where its state holds longer ones."""
    target = transitions[at][char]
    if length[at] + 1 == length[target]:
        return target
    clone = len(transitions)
    transitions.append(dict(transitions[target]))
    link.append(link[target])
    length.append(length[at] + 1)
    while at >= 0 and transitions[at].get(char) == target:
        transitions[at][char] = clone
        at = link[at]
    link[target] = clone
    return clone
