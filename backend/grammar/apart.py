"""A state taken apart for a walk: words, runs of one kind of character, and whatever is neither."""

from __future__ import annotations

from typing import NamedTuple

from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.terms import Kind, Term, Terms

_MIN_CODES = 16  # characters in the set of a run; a walk over fewer meets few nodes anyway
_MAX_DEPTH = 6
_MAX_WORD = 256


class Run(NamedTuple):
    """Texts of one repeated character, and what follows. `holes` are finite languages that are not among them."""

    repeat: Term
    holes: tuple[Term, ...]
    tail: Term


class Word(NamedTuple):
    """Bytes, and what follows."""

    data: bytes
    tail: Term


class Apart(NamedTuple):
    """The parts, whose languages together are the state's."""

    runs: list[Run]
    words: list[Word]
    rest: Term


def taken_apart(derivatives: Derivatives, state: Term) -> Apart:
    """The parts of a state after which some legal output remains. A captured key is not remembered."""
    runs, words, rest = _Taker(derivatives.terms).of(state, 0)
    is_live = derivatives.is_live
    return Apart([run for run in runs if is_live(run.tail)], [word for word in words if is_live(word.tail)], rest)


class _Taker:
    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def of(self, state: Term, depth: int) -> Apart:
        whole = Apart([], [], state)
        if depth > _MAX_DEPTH:
            return whole
        match state.kind:
            case Kind.REPEAT if _is_run(state):
                return Apart([Run(state, (), self._terms.epsilon)], [], self._terms.empty)
            case Kind.ATOM if state.args[0][0] == "text":
                return Apart([], [Word(state.args[0][1], self._terms.epsilon)], self._terms.empty)
            case Kind.CAT:
                return self._cat(state, depth)
            case Kind.ALT:
                return self._alt(state, depth)
            case Kind.REF:
                return self.of(self._terms.resolved(state), depth + 1)
            case Kind.CAPTURE:
                return self._capture(state)
        return whole

    def _cat(self, state: Term, depth: int) -> Apart:
        cat = self._terms.cat
        head, tail = state.args
        if head.kind is Kind.ATOM and head.args[0][0] == "text":
            return Apart([], [_long_word(head.args[0][1], tail)], self._terms.empty)
        if head.nullable and not _is_run(head):
            return Apart([], [], state)
        runs, words, rest = self.of(head, depth + 1)
        if not runs and not words:
            return Apart([], [], state)
        runs = [Run(run.repeat, run.holes, cat(run.tail, tail)) for run in runs]
        return Apart(runs, [Word(word.data, cat(word.tail, tail)) for word in words], cat(rest, tail))

    def _alt(self, state: Term, depth: int) -> Apart:
        parts = [self.of(one, depth + 1) for one in state.args]
        runs = [run for part in parts for run in part.runs]
        words = [word for part in parts for word in part.words]
        return Apart(runs, words, self._terms.alt(part.rest for part in parts) if runs or words else state)

    def _capture(self, state: Term) -> Apart:
        """A key is its language, a quote, and what follows a key of its class."""
        terms = self._terms
        classes, _, context = state.args
        runs = []
        others = []
        for language, tag in classes:
            found = _run_with_holes(language)
            if found is None:
                others.append((language, tag))
            else:
                following = terms.cat(terms.literal('"'), terms.ref(("key", context, tag, None)))
                runs.append(Run(*found, following))
        return Apart(runs, [], terms.capture(others, None, context) if others else terms.empty)


def _long_word(data: bytes, tail: Term) -> Word:
    while tail.kind is Kind.CAT and len(data) < _MAX_WORD:
        head, rest = tail.args
        if head.kind is not Kind.ATOM or head.args[0][0] != "text":
            break
        data, tail = data + head.args[0][1], rest
    return Word(data, tail)


def _is_run(term: Term) -> bool:
    """A repeat of one kind of character that has many members."""
    if term.kind is not Kind.REPEAT or term.args[0].kind is not Kind.ATOM:
        return False
    node = term.args[0].args[0]
    return node[0] == "start" and sum(high - low for low, high in node[2]) >= _MIN_CODES


def _run_with_holes(language: Term) -> tuple[Term, tuple[Term, ...]] | None:
    """A run, or an endless one without finitely many texts: then whatever begins like the run can go on like it."""
    if _is_run(language):
        return language, ()
    if language.kind is not Kind.AND:
        return None
    runs = [one for one in language.args if _is_run(one)]
    others = [one for one in language.args if not _is_run(one)]
    if len(runs) != 1 or runs[0].args[2] is not None:
        return None
    if not all(one.kind is Kind.NOT and _is_finite(one.args[0]) for one in others):
        return None
    return runs[0], tuple(one.args[0] for one in others)


def _is_finite(term: Term) -> bool:
    pending, seen = [term], {term}
    while pending:
        one = pending.pop()
        match one.kind:
            case Kind.ALT | Kind.CAT:
                parts = one.args
            case Kind.REPEAT if one.args[2] is not None:
                parts = one.args[:1]
            case Kind.EMPTY | Kind.EPSILON | Kind.ATOM:
                parts = ()
            case _:
                return False
        for part in parts:
            if part not in seen:
                seen.add(part)
                pending.append(part)
    return True
