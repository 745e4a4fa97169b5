"""Context-free rules as terms, left recursion solved.

A reference must never lead back to itself before a byte is read, and never stand for the empty text. So

- a rule's reference is its language without the empty text; where the rule may be empty, uses of it are optional;
- a rule is split by how its texts begin: with a byte, or with another rule. The rules that may begin with each other
  form a system of equations `X = B ∪ X A ∪ Y C …`, solved as Arden (1961) solves those of an automaton:
  `X = B ∪ X A` is `X = B A*`. The loops become repeats, and repeats of one body collapse, so that an ambiguous
  `expr: expr "+" expr` keeps no stack at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, assert_never

from forktree.backend.grammar.components import components
from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.rules import (
    Choice,
    Expression,
    Leaf,
    Produces,
    Repetition,
    Rules,
    Sequence,
    Use,
    productions,
)
from forktree.backend.grammar.terms import Kind, Term, Terms
from forktree.lang.errors import ConstraintError

MAX_MUTUAL = 24


class _Beginnings(NamedTuple):
    """The texts of a rule that are not empty: those that begin with a byte, and for each rule what follows it."""

    guarded: list[Term]
    led: dict[str, list[Term]]


class RuleTerms:
    """The terms of all rules, over an arena in which it resolves references of its own.

    Raises:
        ConstraintError: more than `MAX_MUTUAL` rules begin with each other.
    """

    def __init__(self, arena: Terms) -> None:
        self.terms = arena.scoped(lambda key: self._solved[str(key)])
        self._solved: dict[str, Term] = {}
        self._known: Mapping[str, Produces] = {}

    def add(self, rules: Rules) -> None:
        """Solves all rules; once an arena."""
        self._known = productions(rules)
        beginnings = {
            name: self._beginnings(self._term(expression))
            for name, expression in rules.items()
            if self._known[name].solid
        }
        derivatives = Derivatives(self.terms)
        for group in components({name: list(found.led) for name, found in beginnings.items()}):
            self._solve(group, beginnings)
            for name in group:  # callees first: no chain of rules is ever followed by recursion
                derivatives.arcs(self.terms.ref(name))

    def start(self, rule: str) -> Term:
        """The term of a rule's whole language; the empty language where it produces nothing."""
        return self._use(rule)

    # -- expressions ----------------------------------------------------------------------------------

    def _use(self, rule: str) -> Term:
        produces = self._known[rule]
        if not produces.solid:
            return self.terms.epsilon if produces.empty else self.terms.empty
        reference = self.terms.ref(rule)
        return self.terms.optional(reference) if produces.empty else reference

    def _term(self, expression: Expression) -> Term:
        match expression:
            case Leaf(term, is_solid):
                return term if is_solid or term.nullable else self.terms.empty
            case Use(rule):
                return self._use(rule)
            case Sequence(parts):
                return self.terms.cats(map(self._term, parts))
            case Choice(options):
                return self.terms.alt(map(self._term, options))
            case Repetition(body, low, high):
                return self.terms.repeat(self._term(body), low, high)
        assert_never(expression)

    def _beginnings(self, term: Term) -> _Beginnings:
        found = _Beginnings([], {})
        for head, rest in self._split(term):
            if head.kind is Kind.REF:
                found.led.setdefault(head.args[0], []).append(rest)
            else:
                found.guarded.append(self.terms.cat(head, rest))
        return found

    def _split(self, term: Term) -> list[tuple[Term, Term]]:
        """Pairs whose product is the term without the empty text; each first is a reference or begins with a byte."""
        terms = self.terms
        match term.kind:
            case Kind.EMPTY | Kind.EPSILON:
                return []
            case Kind.ALT:
                return [pair for one in term.args for pair in self._split(one)]
            case Kind.REPEAT:
                body, low, high = term.args
                rest = terms.repeat(body, max(low - 1, 0), None if high is None else high - 1)
                return [(head, terms.cat(after, rest)) for head, after in self._split(body)]
            case Kind.CAT:
                pairs = []
                while term.kind is Kind.CAT:
                    first, tail = term.args
                    pairs += [(head, terms.cat(after, tail)) for head, after in self._split(first)]
                    if not first.nullable:
                        return pairs
                    term = tail
                return pairs + self._split(term)
        return [(self._solid(term), terms.epsilon)]

    def _solid(self, term: Term) -> Term:
        """A part of a terminal, without the empty text."""
        if not term.nullable:
            return term
        return self.terms.both((term, self.terms.repeat(self.terms.byte((1 << 256) - 1), 1, None)))

    # -- equations ------------------------------------------------------------------------------------

    def _solve(self, group: list[str], beginnings: Mapping[str, _Beginnings]) -> None:
        if len(group) > MAX_MUTUAL:
            raise ConstraintError(
                f"{len(group)} rules may begin with each other, the limit is {MAX_MUTUAL}: "
                f"give some of them a first token of their own, {group[0]!r} for example",
                pointer=f"rule {group[0]}",
            )
        for target in group:
            self._solved[target] = self._solution(target, group, beginnings)

    def _solution(self, target: str, group: list[str], beginnings: Mapping[str, _Beginnings]) -> Term:
        """Eliminates every rule of the group but one, which is then `base loop*`."""
        terms = self.terms
        members = set(group)
        base = {name: self._base(beginnings[name], members) for name in group}
        after = {
            name: {led: terms.alt(rest) for led, rest in beginnings[name].led.items() if led in members}
            for name in group
        }
        for gone in group:
            if gone == target:
                continue
            loop = terms.repeat(after[gone].pop(gone, terms.empty), 0, None)
            gone_base = terms.cat(base.pop(gone), loop)
            gone_after = {led: terms.cat(rest, loop) for led, rest in after.pop(gone).items()}
            for name in base:
                then = after[name].pop(gone, None)
                if then is None:
                    continue
                base[name] = terms.alt((base[name], terms.cat(gone_base, then)))
                for led, rest in gone_after.items():
                    known = after[name].get(led, terms.empty)
                    after[name][led] = terms.alt((known, terms.cat(rest, then)))
        return terms.cat(base[target], terms.repeat(after[target].get(target, terms.empty), 0, None))

    def _base(self, found: _Beginnings, members: Iterable[str]) -> Term:
        """What of a rule begins with a byte, or with a rule that is solved already."""
        terms = self.terms
        lower = [
            terms.cat(terms.ref(led), one) for led, rest in found.led.items() if led not in members for one in rest
        ]
        return terms.alt([*found.guarded, *lower])
