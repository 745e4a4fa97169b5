"""A constraint on its way through one output."""

from __future__ import annotations

from typing import NamedTuple

from forktree.backend.grammar.completions import NO_COSTS, Cell, Costs
from forktree.backend.grammar.masks import Mask, Masks
from forktree.backend.grammar.terms import Term
from forktree.lang.errors import ConstraintError


class IllegalTokenError(ConstraintError):
    """`advance` was given a token that the mask excludes; the message names it and what was legal."""


class _Step(NamedTuple):
    """A state, the bytes that led to it and the step before: copies share their past, and a rollback walks it.

    A state of None is after the end.
    """

    state: Term | None
    data: bytes
    before: _Step | None


class Matcher:
    """Where one output stands. Made by a constraint's `compile`; not shared between threads."""

    __slots__ = ("_masks", "_step")

    def __init__(self, masks: Masks, step: _Step | None = None) -> None:
        self._masks = masks
        self._step = step or _Step(masks.automaton.start, b"", None)

    @property
    def masks(self) -> Masks:
        return self._masks

    @property
    def state(self) -> Term | None:
        """The automaton's state; None once an end token was taken."""
        return self._step.state

    def mask(self) -> Mask:
        """Legal tokens, packed int32 [ceil(vocab / 32)]: bit t % 32 of word t // 32 is token t. Read-only.

        End tokens are legal exactly when the output is complete; after one of them nothing is.
        """
        state = self._step.state
        return self._masks.nothing if state is None else self._masks.of(state)

    def has_mask(self) -> bool:
        """The mask was made before, by this matcher or another of the constraint."""
        state = self._step.state
        return state is None or self._masks.has(state)

    def advance(self, token: int) -> None:
        """Take one token.

        Raises:
            IllegalTokenError: it is not legal here; the matcher stays where it was.
        """
        state = self._step.state
        vocabulary = self._masks.trie.vocabulary
        if state is not None and token in vocabulary.eos_ids and state.nullable:
            self._step = _Step(None, b"", self._step)
            return
        data = vocabulary.token_bytes[token] if 0 <= token < vocabulary.size else None
        is_end = token in vocabulary.eos_ids
        reached = None if state is None or not data or is_end else self._masks.automaton.run(state, data)
        if reached is None or not self._masks.can_finish(reached):
            raise IllegalTokenError(self._refusal(token, data))
        self._step = _Step(reached, data or b"", self._step)

    def advance_bytes(self, data: bytes) -> None:
        """Take text that is part of a token; one step for `rollback`.

        Raises:
            IllegalTokenError: the text is not legal here; the matcher stays where it was.
        """
        state = self._step.state
        reached = None if state is None else self._masks.automaton.run(state, data)
        if reached is None:
            raise IllegalTokenError(f"{data!r} is not legal here; legal are {legal_tokens(self)}")
        self._step = _Step(reached, data, self._step)

    def is_complete(self) -> bool:
        """The text so far is one whole legal output."""
        state = self._step.state
        return state is None or state.nullable

    def must_end(self) -> bool:
        """The text so far is complete and nothing can follow it."""
        state = self._step.state
        return state is None or (state.nullable and not self._masks.automaton.arcs(state))

    def is_free(self) -> bool:
        """Everything is legal from here on; a constraint never becomes free."""
        return False

    def forced(self) -> tuple[int, ...]:
        """The ids that must come next, as the tokenizer would write them; () where more than one thing is legal.

        The mask allows every other way to cut the same bytes as well. Tokens at the end of what is forced that may
        merge with what follows are not among them.
        """
        return self.forced_behind(b"")

    def forced_behind(self, prefix: bytes) -> tuple[int, ...]:
        """The same where some bytes have to be written first."""
        state, data, _ = self._step
        return () if state is None else self._masks.forced.after(state, prefix=prefix, context=data)

    def completion(self) -> Cell:
        """A legal ending in few tokens; its `cost` is how many."""
        return self._masks.completions.cell(self._step.state)

    def costs(self) -> Costs:
        """Every legal token that is text, and how many more tokens an output needs after it."""
        state = self._step.state
        return NO_COSTS if state is None else self._masks.completions.costs(state)

    def need(self) -> int:
        """A number of tokens within which an output can be ended whichever legal token comes next, that one counted."""
        state = self._step.state
        return 0 if state is None else self._masks.completions.need(state)

    def copy(self) -> Matcher:
        """An independent matcher at the same place; costs the same for an output of any length."""
        return Matcher(self._masks, self._step)

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens.

        Raises:
            ValueError: fewer were taken.
        """
        step: _Step | None = self._step
        for _ in range(count):
            step = step.before if step is not None else None
        if step is None or count < 0:
            raise ValueError(f"cannot roll back {count} tokens: fewer were taken")
        self._step = step

    def _refusal(self, token: int, data: bytes | None) -> str:
        if self._step.state is None:
            return f"token {token} follows the end of the output"
        what = f"token {token}" + (f" ({data!r})" if data else " (no text)")
        return f"{what} is not legal here; legal are {legal_tokens(self)}"


def legal_tokens(matcher: Matcher, most: int = 8) -> str:
    """The first legal tokens of a matcher, for a message."""
    import numpy as np

    vocabulary = matcher.masks.trie.vocabulary
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    legal = np.flatnonzero(bits).tolist()
    shown = ", ".join(f"{token} ({vocabulary.token_bytes[token]!r})" for token in legal[:most])
    return shown + (f" and {len(legal) - most} more" if len(legal) > most else "")
