"""A compiled constraint: where its outputs start, and the transitions from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.terms import Term, Terms
from forktree.lang.errors import ConstraintError

if TYPE_CHECKING:
    from forktree.backend.grammar.alphabet import Alphabet
    from forktree.backend.vocabulary import Vocabulary

_TERM_BYTES = 1_000


class Automaton(Derivatives):
    """Shared by every matcher of a constraint, on any thread.

    Args:
        respelled: makes the automaton anew from the bytes of an alphabet; None where its terms can be cut.
        marked: makes it anew for a vocabulary whose special tokens its markup spells; None where it has no markup.

    Raises:
        ConstraintError: nothing is legal (then `refusal` is the reason), or deciding that would take too many states.
    """

    def __init__(
        self,
        terms: Terms,
        start: Term,
        *,
        refusal: str = "nothing can satisfy this constraint",
        respelled: Callable[[Alphabet], Automaton] | None = None,
        marked: Callable[[Vocabulary], Automaton] | None = None,
    ) -> None:
        super().__init__(terms)
        self.start = start
        self.respelled = respelled
        self.marked = marked
        if not self.is_live(start):
            raise ConstraintError(refusal)
        self.arcs(start)  # what explodes at once explodes here

    @property
    def num_states(self) -> int:
        return self.terms.num_terms

    @property
    def num_bytes(self) -> int:
        """What it takes, estimated from the number of its terms: 600 to 1,500 bytes each by `tracemalloc`."""
        return self.terms.num_terms * _TERM_BYTES
