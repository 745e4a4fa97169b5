"""From a pattern's syntax to a term of the algebra.

A piece of a pattern becomes a set of items `(before, term, after)`: the texts of `term`, provided that what lies
before and after them is as an assertion inside demanded. Joining two pieces settles each one's demands on the
other: the neighbour is cut down to the texts that meet them, and a demand passes on where the neighbour is empty.
What is still demanded at the pattern's own edges is settled by the mode: a whole match has nothing beyond them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from forktree.backend.grammar.characters import Writing
from forktree.backend.grammar.codepoints import ANY, contains, intersect
from forktree.backend.grammar.regex_tree import After, Assertion, Before, Chars, Concat, Repeat, Syntax, Union
from forktree.backend.grammar.terms import Kind, Term, Terms
from forktree.lang.errors import ConstraintError

_NEWLINE = ((10, 11),)
_FREE_BEFORE = Before()
_FREE_AFTER = After()
_MAX_ITEMS = 500


class Item(NamedTuple):
    before: Before
    term: Term
    after: After


def whole_match(terms: Terms, syntax: Syntax, writing: Writing = "raw") -> Term:
    """The texts that match from end to end."""
    items = _Builder(terms, writing).items(syntax)
    return terms.alt(item.term for item in items if item.before.empty and item.after.empty)


def free_match(terms: Terms, syntax: Syntax, writing: Writing = "raw") -> Term:
    """The texts that match, whatever stands around them.

    Raises:
        ConstraintError: an assertion at an edge asks what stands there.
    """
    items = _Builder(terms, writing).items(syntax)
    if any(item.before != _FREE_BEFORE or item.after != _FREE_AFTER for item in items):
        raise ConstraintError("an assertion (^, $, \\b …) at its edge looks at the text around it")
    return terms.alt(item.term for item in items)


def search(terms: Terms, syntax: Syntax, writing: Writing = "raw") -> Term:
    """The texts with a match somewhere."""
    builder = _Builder(terms, writing)
    around = [Item(_FREE_BEFORE, terms.any_chars(writing), _FREE_AFTER)]
    items = builder.joined(builder.joined(around, builder.items(syntax)), around)
    return terms.alt(item.term for item in items if item.before.empty and item.after.empty)


@dataclass(frozen=True, slots=True)
class _Builder:
    terms: Terms
    writing: Writing

    def items(self, syntax: Syntax) -> list[Item]:
        if not _has_assertion(syntax):
            return self._free(self._plain(syntax))
        match syntax:
            case Chars(codes):
                return self._free(self.terms.char(codes, self.writing))
            case Concat(parts):
                return self._concat(parts)
            case Union(options):
                return self._merged([item for option in options for item in self.items(option)])
            case Repeat(body, low, high, position):
                return self._repeat(self.items(body), low, high, position)
            case Assertion(alternatives):
                return [Item(before, self.terms.epsilon, after) for before, after in alternatives]

    def _plain(self, syntax: Syntax) -> Term:
        """The term of a piece without assertions."""
        match syntax:
            case Chars(codes):
                return self.terms.char(codes, self.writing)
            case Concat(parts):
                return self.terms.cats(map(self._plain, parts))
            case Union(options):
                return self.terms.alt(map(self._plain, options))
            case Repeat(body, low, high):
                return self.terms.repeat(self._plain(body), low, high)
        raise AssertionError(f"{syntax!r} asserts")

    def _free(self, term: Term) -> list[Item]:
        return [] if term.kind is Kind.EMPTY else [Item(_FREE_BEFORE, term, _FREE_AFTER)]

    def _concat(self, parts: tuple[Syntax, ...]) -> list[Item]:
        """Right to left, so that long plain runs become one right-nested term."""
        items = self._free(self.terms.epsilon)
        for part in reversed(parts):
            items = self.joined(self.items(part), items)
        return items

    def joined(self, left: list[Item], right: list[Item]) -> list[Item]:
        out = []
        for first in left:
            for second in right:
                out += self._join(first, second)
        return self._merged(out)

    def _join(self, first: Item, second: Item) -> list[Item]:
        out = []
        for before, left in self._meeting_before(first, second.before):
            for after, right in self._meeting_after(second, first.after):
                # each demand was checked against its neighbour's own texts; an empty neighbour passes it on
                term = self.terms.cat(left, right)
                if term.kind is not Kind.EMPTY:
                    out.append(Item(before, term, after))
        return out

    def _meeting_before(self, item: Item, demand: Before) -> list[tuple[Before, Term]]:
        """The texts of `item` that may stand before the demand, with what is then demanded before them."""
        if demand == _FREE_BEFORE:
            return [(item.before, item.term)]
        out = []
        if item.term.nullable:
            both = Before(item.before.empty and demand.empty, intersect(item.before.codes, demand.codes))
            out.append((both, self.terms.epsilon))
        ending = self.terms.cat(self.terms.any_chars(self.writing), self.terms.char(demand.codes, self.writing))
        out.append((item.before, self._restricted(item.term, ending)))
        return out

    def _meeting_after(self, item: Item, demand: After) -> list[tuple[After, Term]]:
        if demand == _FREE_AFTER:
            return [(item.after, item.term)]
        out = []
        if item.term.nullable:
            out.append((_both_after(item.after, demand), self.terms.epsilon))
        beginning = self.terms.cat(self.terms.char(demand.codes, self.writing), self.terms.any_chars(self.writing))
        out.append((item.after, self._restricted(item.term, beginning)))
        if demand.newline_end and (item.after.empty or item.after.newline_end):
            newline = self._restricted(item.term, self.terms.char(_NEWLINE, self.writing))
            out.append((_both_after(item.after, After(codes=())), newline))
        return out

    def _restricted(self, term: Term, to: Term) -> Term:
        if term.kind is Kind.EPSILON or to.kind is Kind.EMPTY:
            return self.terms.empty
        return self.terms.both((term, to))

    def _repeat(self, items: list[Item], low: int, high: int | None, position: int) -> list[Item]:
        plain = self.terms.alt(item.term for item in items if item.before == _FREE_BEFORE and item.after == _FREE_AFTER)
        if all(item.before == _FREE_BEFORE and item.after == _FREE_AFTER for item in items):
            return self._free(self.terms.repeat(plain, low, high))
        if high is not None and high <= 3:
            return self._unrolled(items, low, high)
        if not all(_is_edge(item) for item in items):
            raise ConstraintError(
                "a word boundary or line anchor inside an unbounded repeat is not supported",
                pointer=f"position {position}",
            )
        # an anchor at the very edge can only hold in the first round or the last one
        nullable = any(item.term.nullable for item in items)
        least = 0 if nullable else low
        out = self._free(self.terms.epsilon) if low == 0 else []
        if least <= 1:
            out += items
        between = self.terms.repeat(plain, max(least - 2, 0), None if high is None else high - 2)
        return self._merged(out + self.joined(items, self.joined(self._free(between), items)))

    def _unrolled(self, items: list[Item], low: int, high: int) -> list[Item]:
        power = self._free(self.terms.epsilon)
        out = list(power) if low == 0 else []
        for count in range(1, high + 1):
            power = self.joined(power, items)
            if count >= low:
                out += power
        return self._merged(out)

    def _merged(self, items: list[Item]) -> list[Item]:
        groups: dict[tuple[Before, After], list[Term]] = {}
        for item in items:
            groups.setdefault((item.before, item.after), []).append(item.term)
        if len(groups) > _MAX_ITEMS:
            raise ConstraintError(f"the pattern's assertions combine in more than {_MAX_ITEMS} ways: simplify it")
        merged = [Item(before, self.terms.alt(group), after) for (before, after), group in groups.items()]
        return [item for item in merged if item.term.kind is not Kind.EMPTY]


def _has_assertion(syntax: Syntax) -> bool:
    match syntax:
        case Assertion():
            return True
        case Concat(parts):
            return any(map(_has_assertion, parts))
        case Union(options):
            return any(map(_has_assertion, options))
        case Repeat(body):
            return _has_assertion(body)
    return False


def _both_after(left: After, right: After) -> After:
    newline = (left.newline_end or contains(left.codes, 10)) and (right.newline_end or contains(right.codes, 10))
    codes = intersect(left.codes, right.codes)
    return After(left.empty and right.empty, codes, newline and not contains(codes, 10))


def _is_edge(item: Item) -> bool:
    return item.before.codes in ((), ANY) and item.after.codes in ((), ANY)
