"""Structural tags: free text until a trigger, then a tag's constraint and its end, then free text again.

    Ref("text", node, count)    free text behind `count` tags that ends with `node` of the triggers

Free text completes a trigger only to enter a tag. Where a tag's markup is spelled by special tokens of the vocabulary
it is those tokens, and text may not spell them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.markup import Build, Markup, Spelling, Until, is_special
from forktree.backend.grammar.terms import Term, Terms
from forktree.backend.grammar.triggers import Symbols, Triggers
from forktree.lang.constraints import TagsSpec
from forktree.lang.errors import ConstraintError

_Rests = tuple[tuple[int, Symbols], ...]


class TagsWriter:
    """Terms of one `Tags`."""

    def __init__(self, arena: Terms, spec: TagsSpec, spelling: Spelling, build: Build) -> None:
        self.terms = arena.scoped(self._resolve)
        self._spec = spec
        self._spelling = spelling
        self._build = build
        entries = _entries(spec, spelling)
        self._triggers = Triggers(list(entries))
        self._rests = list(entries.values())
        self._contents: dict[int, Term] = {}
        self._known = max(spec.at_least, spec.at_most or 0)  # from here on counts make no difference

    def start(self) -> Term:
        """
        Raises:
            ConstraintError: a tag's content cannot be honoured, or nothing can be inside a tag.
        """
        derivatives = Derivatives(self.terms)
        for number, tag in enumerate(self._spec.tags):
            if not derivatives.is_live(self._inside(number)):
                raise ConstraintError(f"nothing can be inside the tag {tag.begin!r}")
        return self._text(0, 0)

    def _text(self, node: int, count: int) -> Term:
        """Free text from a node on. Characters that begin no trigger are a run of their own."""
        reference = self.terms.ref(("text", node, count))
        rest = self._may_end(reference, count)
        if node:
            return rest
        return self.terms.cat(self.terms.repeat(self._spelling.plain(self.terms, self._triggers, 0), 0, None), rest)

    def _may_end(self, term: Term, count: int) -> Term:
        return self.terms.optional(term) if count >= self._spec.at_least else term

    def _resolve(self, key: Hashable) -> Term:
        parts: Any = key
        _, node, count = parts
        options = []
        if node:
            options.append(self.terms.cat(self._spelling.plain(self.terms, self._triggers, node), self._text(0, count)))
        for symbol in self._triggers.symbols(node):
            after = self._triggers.after(node, symbol)
            found = self._triggers.found(after)
            if found:
                following = self.terms.alt([self._entered(self._rests[number], count) for number in sorted(found)])
            elif after or not is_special(symbol):
                following = self._text(after, count)
            else:
                continue
            options.append(self.terms.cat(self._spelling.written(self.terms, (symbol,)), following))
        return self.terms.alt(options)

    def _entered(self, rests: _Rests, count: int) -> Term:
        """Behind a trigger: the rests of the begins that it starts, each with its tag and what follows that."""
        if self._spec.at_most is not None and count >= self._spec.at_most:
            return self.terms.empty
        options = []
        for number, rest in rests:
            begin = self._spelling.written(self.terms, rest)
            options.append(self.terms.cats([begin, self._inside(number), self._after(count + 1)]))
        return self.terms.alt(options)

    def _inside(self, number: int) -> Term:
        """A tag behind its begin, its end included."""
        if number not in self._contents:
            tag = self._spec.tags[number]
            content = tag.content
            parts = (Until(tag.end),) if content is None else (content, Markup(tag.end))
            self._contents[number] = self.terms.cats([self._build(self.terms, part, self._spelling) for part in parts])
        return self._contents[number]

    def _after(self, count: int) -> Term:
        is_over = count == self._spec.at_most and not self._spec.text_after
        return self.terms.epsilon if is_over else self._text(0, min(count, self._known))


def _entries(spec: TagsSpec, spelling: Spelling) -> dict[Symbols, _Rests]:
    """Each trigger, and for each tag that it starts the rest of the tag's begin; a text that spells the special
    tokens of a trigger starts none.

    Raises:
        ConstraintError: a begin holds another tag's trigger, which would enter that tag.
    """
    entries: dict[Symbols, list[tuple[int, Symbols]]] = {}
    for number, tag in enumerate(spec.tags):
        begin = spelling.symbols(tag.begin)
        given = [symbols for one in spec.triggers if begin[: len(symbols := spelling.symbols(one))] == symbols]
        trigger = min(given, key=len) if given else _committing(begin)
        entries.setdefault(trigger, []).append((number, begin[len(trigger) :]))
    _check_apart(spec, entries)
    spelled = {tuple(_text_of(trigger)): [] for trigger in entries if any(map(is_special, trigger))}
    return {trigger: tuple(rests) for trigger, rests in ({**spelled, **entries}).items()}


def _committing(begin: Symbols) -> Symbols:
    """A begin up to its first special token, which free text cannot have; all of one that has none."""
    for at, symbol in enumerate(begin):
        if is_special(symbol):
            return begin[: at + 1]
    return begin


def _text_of(symbols: Symbols) -> str:
    return "".join(symbol[1:] if is_special(symbol) else symbol for symbol in symbols)


def _check_apart(spec: TagsSpec, entries: dict[Symbols, list[tuple[int, Symbols]]]) -> None:
    for trigger in entries:
        for other in entries:
            places = range(len(trigger) - len(other) + 1)
            if other != trigger and any(trigger[at : at + len(other)] == other for at in places):
                raise ConstraintError(
                    f"the trigger {_text_of(trigger)!r} holds the trigger {_text_of(other)!r}: "
                    "give a trigger that both tags begin with"
                )
