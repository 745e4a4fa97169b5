"""Forced runs: where one continuation alone is legal, its tokens need not be drawn.

The bytes of a run are what the automaton forces. Its tokens are what the tokenizer makes of those bytes behind the
last token, which is what a model has seen in training; a mask alone would also allow every other way to cut them.

At the end of a run the next bytes are open, and with them the cut: no token is given that some legal token, begun
inside the run and going beyond it, could take the place of. (llguidance found that giving all of them leaves nearly
every run cut as no tokenizer would cut it.) So a run is followed by the same tokens that the tokenizer writes for
the whole text, whatever comes next, as far as its merges look no further than its tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.terms import Term
from forktree.backend.grammar.trie import Trie

if TYPE_CHECKING:
    from forktree.backend.grammar.masks import Masks

MAX_RUN = 4096  # bytes
_MAX_KNOWN = 4096  # runs remembered

CanExtend = Callable[[int], bool]  # whether some legal token goes on below a node of the trie


class ForcedRuns:
    """The runs of one automaton over one vocabulary, each found once."""

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._known: OrderedDict[tuple[Term, bytes, bytes], tuple[int, ...]] = OrderedDict()

    def after(self, state: Term, *, prefix: bytes = b"", context: bytes = b"") -> tuple[int, ...]:
        """The ids that must come next in a state.

        Args:
            prefix: bytes that must be written before the state's own.
            context: the bytes of the token before.
        """
        data, reached = forced_bytes(self._masks.automaton, state)
        if not prefix and not data:
            return ()
        key = (state, prefix, context)
        run = self._known.get(key)
        if run is None:
            run = self._found(prefix + data, len(prefix), reached, state, context)
            self._known[key] = run
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return run

    def _found(self, data: bytes, start: int, reached: Term, state: Term, context: bytes) -> tuple[int, ...]:
        masks = self._masks

        def can_extend(node: int) -> bool:
            return bool(masks.automaton.arcs(reached)) and len(masks.tokens_below(reached, node)) > 0

        run = run_of(masks.trie, data, context, can_extend)
        at = 0
        for index, token in enumerate(run):  # a vocabulary that lacks bytes may have no way on from here
            at += len(masks.trie.vocabulary.token_bytes[token] or b"")
            here = masks.automaton.run(state, data[start:at])
            if here is None or not masks.can_finish(here):
                return run[:index]
        return run


def forced_bytes(automaton: Automaton, state: Term) -> tuple[bytes, Term]:
    """The bytes that every output goes on with from a state, at most `MAX_RUN`, and the state after them."""
    data = bytearray()
    while not state.nullable and len(data) < MAX_RUN:
        arcs = automaton.loose_arcs(state)  # may have more than `arcs`, never less
        mask = arcs[0][0] if len(arcs) == 1 else 0
        if mask == 0 or mask & (mask - 1):
            break
        byte = mask.bit_length() - 1
        following = automaton.step(state, byte)
        assert following is not None, "a live state has a live arc"
        data.append(byte)
        state = following
    return bytes(data), state


def run_of(trie: Trie, data: bytes, context: bytes, can_extend: CanExtend) -> tuple[int, ...]:
    """The tokens of forced bytes, without those at the end that what follows may still change."""
    ids = _cut(trie, data, context)
    end = _first_extended(trie, data, can_extend)
    at = 0
    for index, token in enumerate(ids):
        at += len(trie.vocabulary.token_bytes[token] or b"")
        if at > end:
            return ids[:index]
    return ids


def _first_extended(trie: Trie, data: bytes, can_extend: CanExtend) -> int:
    """The first offset from which a legal token covers the rest of the data and more; their length if none does."""
    for start in range(max(0, len(data) - trie.longest + 1), len(data)):
        node: int | None = 0
        for byte in data[start:]:
            node = trie.child(node, byte)
            if node is None:
                break
        if node is not None and can_extend(node):
            return start
    return len(data)


def _cut(trie: Trie, data: bytes, context: bytes) -> tuple[int, ...]:
    """Data as the tokenizer cuts them behind the context; () where it would merge the two, or is no text."""
    if trie.vocabulary.spell is None:
        return _longest_first(trie, data)
    text = _whole(data)
    for before in (context, b"") if context else (b"",):
        ids = _spelled(trie, before, text)
        if ids is not None:
            return ids
    return ()


def _spelled(trie: Trie, context: bytes, text: bytes) -> tuple[int, ...] | None:
    spell, token_bytes = trie.vocabulary.spell, trie.vocabulary.token_bytes
    assert spell is not None
    try:
        ids = spell((context + text).decode())
    except UnicodeDecodeError:
        return None
    spelt = b"".join(token_bytes[token] or b"" for token in ids)
    if spelt != context + text:
        return None  # a tokenizer that rewrites text
    at = index = 0
    while at < len(context):
        at += len(token_bytes[ids[index]] or b"")
        index += 1
    return ids[index:] if at == len(context) else None


def _whole(data: bytes) -> bytes:
    """Data without a last character that is not whole."""
    for size in range(1, min(4, len(data) + 1)):
        if data[-size] >= 0xC0:
            return data[:-size] if len(data[-size:].decode(errors="ignore")) == 0 else data
        if data[-size] < 0x80:
            break
    return data


def _longest_first(trie: Trie, data: bytes) -> tuple[int, ...]:
    """As far as tokens go."""
    ids = []
    at = 0
    while at < len(data):
        found = None
        node: int | None = 0
        for end in range(at, len(data)):
            node = trie.child(node, data[end])
            if node is None:
                break
            if trie.num_tokens[node]:
                found = (int(trie.tokens[trie.first_token[node]]), end + 1)
        if found is None:
            break
        ids.append(found[0])
        at = found[1]
    return tuple(ids)
