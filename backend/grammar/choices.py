"""A list of texts as a term: a trie, so that a thousand options cost no more a step than two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from forktree.backend.grammar.terms import Kind, Term, Terms
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

    def written(run: str) -> Term:
        """Neighbours that have one spelling are one literal, so that a long text is few terms."""
        for one in run:
            if one not in memo:
                memo[one] = write(one)
        parts: list[Term] = []
        for is_text, found in groupby((memo[one] for one in run), key=_is_literal):
            if is_text:
                parts.append(terms.literal(b"".join(one.args[0][1] for one in found)))
            else:
                parts += found
        return terms.cats(parts)

    return _branches(terms, sorted(set(texts)), written)


def _is_literal(term: Term) -> bool:
    return term.kind is Kind.ATOM and term.args[0][0] == "text"


def _branches(terms: Terms, texts: Sequence[str], written: Callable[[str], Term]) -> Term:
    """Bottom-up over the sorted list: each step closes the branches that the next text does not share."""
    stack: list[tuple[int, list[Term]]] = [(0, [])]  # (length of the prefix, finished branches behind it)
    previous = ""

    def close(shared: int) -> None:
        while stack[-1][0] > shared:
            length, branches = stack.pop()
            start = max(shared, stack[-1][0])
            if stack[-1][0] < start:
                stack.append((start, []))
            stack[-1][1].append(terms.cat(written(previous[start:length]), terms.alt(branches)))

    for text in texts:
        close(_num_shared(previous, text))
        if text:
            stack.append((len(text), []))
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
