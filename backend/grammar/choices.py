"""A list of texts as a term: a trie, so that a thousand options cost no more a step than two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from forktree.backend.grammar.terms import Term, Terms
from forktree.lang.errors import ConstraintError


def checked_options(options: Iterable[str]) -> tuple[str, ...]:
    """The options without duplicates, in order of first appearance; an empty option is the empty output.

    Raises:
        ConstraintError: there is none, or one is not a text.
    """
    if isinstance(options, str):
        raise ConstraintError(f"choices must be a list of texts, not one text: {options!r}")
    unique = tuple(dict.fromkeys(options))
    if not unique:
        raise ConstraintError("choices must not be empty: nothing would be legal")
    for option in unique:
        if not isinstance(option, str):
            raise ConstraintError(f"every choice must be a text, and {option!r} is not")
        if any("\ud800" <= char <= "\udfff" for char in option):
            raise ConstraintError(f"the choice {option!r} has a lone surrogate, which no text can have")
    return unique


def any_of(terms: Terms, texts: Iterable[str], char: Callable[[str], Term] | None = None) -> Term:
    """One of the texts; `char` says how one character is written, as itself if not given."""
    write = char or terms.literal
    memo: dict[str, Term] = {}

    def written(one: str) -> Term:
        if one not in memo:
            memo[one] = write(one)
        return memo[one]

    return _branches(terms, sorted(set(texts)), written)


def _branches(terms: Terms, texts: Sequence[str], char: Callable[[str], Term]) -> Term:
    """Bottom-up over the sorted list: each step closes the branches that the next text does not share."""
    stack: list[tuple[str, list[Term]]] = [("", [])]  # (character that leads here, finished branches)

    def close(depth: int) -> None:
        while len(stack) - 1 > depth:
            lead, branches = stack.pop()
            stack[-1][1].append(terms.cat(char(lead), terms.alt(branches)))

    previous = ""
    for text in texts:
        shared = _num_shared(previous, text)
        close(shared)
        stack.extend((one, []) for one in text[shared:])
        stack[-1][1].append(terms.epsilon)
        previous = text
    close(0)
    return terms.alt(stack[0][1])


def _num_shared(left: str, right: str) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count
