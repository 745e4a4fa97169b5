"""A constraint that ends in time: tokens are legal only while what is left of the budget still ends the output.

    legal:   token t where (tokens that an output needs after t) < (tokens left), and the next one of the plan

The plan is a way to end that is known to fit; a shorter one takes its place as soon as there is one. So there is
always a token to take, although the number of tokens needed is not known exactly everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forktree.backend.grammar.completions import UNREACHABLE, Cell
from forktree.backend.grammar.healing import HealedMatcher
from forktree.backend.grammar.masks import Mask
from forktree.backend.grammar.matcher import Matcher
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.errors import ConstraintError


class _Place(NamedTuple):
    """What is left of the budget, a way to end within it, and the place before."""

    left: int
    plan: Cell
    before: _Place | None


def within(matcher: Matcher | HealedMatcher, vocabulary: Vocabulary, max_tokens: int) -> BudgetedMatcher:
    """The matcher, held to end its output within `max_tokens` tokens; an end token is not counted.

    Raises:
        ConstraintError: no output is sure to fit; the message says how many tokens are enough.
    """
    plan = matcher.completion()
    if plan.cost >= UNREACHABLE:
        raise ConstraintError("no sequence of this tokenizer's tokens spells a legal output")
    if plan.cost > max_tokens:
        raise ConstraintError(
            f"max_tokens is {max_tokens}, and the shortest legal output that is known takes {plan.cost} tokens: "
            f'raise max_tokens to {plan.cost} or more, or use on_budget="cut"'
        )
    return BudgetedMatcher(matcher, vocabulary, _Place(max_tokens, plan, None))


class BudgetedMatcher:
    """A matcher whose output ends within a number of tokens. Not shared between threads."""

    __slots__ = ("_inner", "_mask", "_place", "_vocabulary")

    def __init__(self, inner: Matcher | HealedMatcher, vocabulary: Vocabulary, place: _Place) -> None:
        self._inner = inner
        self._vocabulary = vocabulary
        self._place = place
        self._mask: Mask | None = None  # of the place

    @property
    def num_left(self) -> int:
        """Tokens that may still be taken."""
        return self._place.left

    def mask(self) -> Mask:
        """As a matcher's, without the tokens after which the budget would not do."""
        if self._mask is None:
            self._mask = self._made()
        return self._mask

    def has_mask(self) -> bool:
        return self._mask is not None

    def _made(self) -> Mask:
        left, plan, _ = self._place
        if left >= self._inner.need():
            return self._inner.mask()
        tokens, needed = self._inner.costs()
        size = self._vocabulary.size
        kept = np.zeros((size + 31) // 32 * 32, dtype=np.bool_)
        kept[tokens[needed < left]] = True
        kept[sorted(one for one in self._vocabulary.eos_ids if one < size)] = True
        if left > 0 and plan.token >= 0:
            kept[plan.token] = True
        return self._inner.mask() & np.packbits(kept, bitorder="little").view(np.int32)

    def advance(self, token: int) -> None:
        """Take one token.

        Raises:
            IllegalTokenError: it is not legal here; nothing changes.
            ConstraintError: no way to end in time is known after it; the mask did not have it.
        """
        left, plan, _ = self._place
        self._inner.advance(token)
        self._mask = None
        if token in self._vocabulary.eos_ids:
            self._place = _Place(left, plan, self._place)
            return
        shortest = self._inner.completion()
        if shortest.cost >= left:
            if plan.token != token or plan.after is None or left <= 0:
                self._inner.rollback(1)
                raise ConstraintError(
                    f"after token {token} a legal output takes {shortest.cost} more tokens, and {left - 1} are left"
                )
            shortest = plan.after
        self._place = _Place(left - 1, shortest, self._place)

    def is_complete(self) -> bool:
        return self._inner.is_complete()

    def must_end(self) -> bool:
        """Nothing can follow: by the constraint, or because the budget is used up."""
        return self._inner.must_end() or (self._place.left <= 0 and self._inner.is_complete())

    def is_free(self) -> bool:
        return False

    def forced(self) -> tuple[int, ...]:
        """As a matcher's, as far as the budget goes."""
        run = self._inner.forced()
        left = self._place.left
        twin = self._inner.copy()
        for index, token in enumerate(run):
            twin.advance(token)
            left -= 1
            if twin.completion().cost > left:
                return run[:index]
        return run

    def copy(self) -> BudgetedMatcher:
        """An independent matcher at the same place; costs the same for an output of any length."""
        return BudgetedMatcher(self._inner.copy(), self._vocabulary, self._place)

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens.

        Raises:
            ValueError: fewer were taken.
        """
        self._inner.rollback(count)
        self._mask = None
        for _ in range(count):
            assert self._place.before is not None, "the matchers took the same tokens"
            self._place = self._place.before
