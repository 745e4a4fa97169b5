"""Vocabularies without a token for each byte they use: which states some sequence of tokens can still finish.

There a token may lead into a text that no tokens complete. Such states are found by walking the automaton token by
token before the first mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.terms import Term
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.errors import ConstraintError

MAX_STATES = 5_000


def finishable(
    automaton: Automaton, vocabulary: Vocabulary, legal_tokens: Callable[[Term], Iterable[int]]
) -> frozenset[Term]:
    """The states in reach, token by token, from which tokens can spell a whole output.

    Raises:
        ConstraintError: the start is not among them, or there are more than `MAX_STATES`.
    """
    users: dict[Term, list[Term]] = {automaton.start: []}
    pending = [automaton.start]
    while pending:
        state = pending.pop()
        for token in legal_tokens(state):
            reached = automaton.run(state, vocabulary.token_bytes[token] or b"")
            if reached is None:
                continue
            if reached not in users:
                users[reached] = []
                pending.append(reached)
            users[reached].append(state)
        if len(users) > MAX_STATES:
            raise ConstraintError(
                "this tokenizer has no token for some single bytes, and the constraint has more than "
                f"{MAX_STATES} states to check against its tokens: use a byte-complete tokenizer"
            )
    alive = {state for state in users if state.nullable}
    pending = list(alive)
    while pending:
        for user in users[pending.pop()]:
            if user not in alive:
                alive.add(user)
                pending.append(user)
    if automaton.start not in alive:
        raise ConstraintError("no sequence of this tokenizer's tokens spells a legal output")
    return frozenset(alive)
