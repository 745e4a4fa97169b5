"""From a specification to its automaton: the one place that knows every kind of constraint."""

from __future__ import annotations

from typing import assert_never

from forktree.backend.grammar.alphabet import Alphabet, cut_term
from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.choices import any_of
from forktree.backend.grammar.collector import PAUSED_COLLECTOR
from forktree.backend.grammar.grammars import grammar_term
from forktree.backend.grammar.markup import (
    Concat,
    Markup,
    OneOf,
    Repeated,
    Spec,
    Spelling,
    Until,
    composite_term,
)
from forktree.backend.grammar.regex_syntax import parse_python
from forktree.backend.grammar.regex_terms import whole_match
from forktree.backend.grammar.schemas import schema_term
from forktree.backend.grammar.substrings import raw_pieces, spelled_stretches
from forktree.backend.grammar.tags import TagsWriter
from forktree.backend.grammar.terms import Term, Terms
from forktree.backend.grammar.work import COMPILE_STEPS
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.constraints import (
    DEFAULT_REASONING,
    ChoicesSpec,
    GrammarSpec,
    ReasoningSpec,
    RegexSpec,
    SchemaSpec,
    SubstringSpec,
    TagsSpec,
    ToolsSpec,
)
from forktree.lang.tools import schema_of_calls

MAX_BLANK_LINES = 2  # between reasoning and what follows it

_UNSPELLED = "this tokenizer's tokens cannot spell any legal output"
_WITH_MARKUP = TagsSpec | ReasoningSpec | Markup | Until | Concat | OneOf | Repeated


def automaton_of(spec: Spec, spelling: Spelling = Spelling()) -> Automaton:
    """
    Raises:
        ConstraintError: the constraint cannot be honoured in full, nothing satisfies it, or it takes too much work.
    """
    terms = Terms()

    def respelled(alphabet: Alphabet) -> Automaton:
        return automaton_of(spec, Spelling(spelling.markup, alphabet))

    def marked(vocabulary: Vocabulary) -> Automaton:
        return automaton_of(spec, Spelling.of(vocabulary))

    has_markup = isinstance(spec, _WITH_MARKUP)
    is_remade = has_markup or isinstance(spec, GrammarSpec | SubstringSpec)
    with terms.work.limited(COMPILE_STEPS), PAUSED_COLLECTOR:
        return Automaton(
            terms,
            term_of(terms, spec, spelling),
            refusal=_refusal(spec) if spelling.alphabet is None else _UNSPELLED,
            respelled=respelled if is_remade else None,
            marked=marked if has_markup else None,
        )


def term_of(terms: Terms, spec: Spec, spelling: Spelling) -> Term:
    """The term of a constraint inside an arena. Raises ConstraintError as `automaton_of`, but for empty languages."""
    match spec:
        case SchemaSpec():
            return schema_term(terms, spec)  # spelled in ASCII where the tokens have no more
        case ToolsSpec():
            return schema_term(terms, schema_of_calls(spec))
        case ReasoningSpec():
            return term_of(terms, reasoning_parts(spec, spec.content), spelling)
        case GrammarSpec():
            return grammar_term(terms, spec, spelling.alphabet)
        case TagsSpec():
            return TagsWriter(terms, spec, spelling, term_of).start()
        case Markup() | Until() | Concat() | OneOf() | Repeated():
            return composite_term(terms, spec, spelling, term_of)
        case RegexSpec(pattern):
            return _cut(terms, whole_match(terms, parse_python(pattern)), spelling.alphabet)
        case ChoicesSpec(options):
            return _cut(terms, any_of(terms, options), spelling.alphabet)
        case SubstringSpec(text, unit):
            is_cut = unit == "word" and spelling.alphabet is not None  # a word that cannot be spelled has no end
            stretches = spelled_stretches(text, spelling.codes) if is_cut else [text]
            machines = [raw_pieces(stretch, unit) for stretch in stretches or [""]]
            return terms.alt([terms.machine(machine, machine.start()) for machine in machines])
    assert_never(spec)


def reasoning_parts(spec: ReasoningSpec, content: Spec | None, *, is_open: bool = False) -> Concat:
    """Reasoning and what follows it; `is_open`: its begin is written already."""
    begin, end = spec.begin or DEFAULT_REASONING[0], spec.end or DEFAULT_REASONING[1]
    reasoning: tuple[Spec, ...] = (Until(end),) if is_open else (Markup(begin), Until(end))
    if content is None:
        return Concat((*reasoning, Until()))
    return Concat((*reasoning, RegexSpec(f"\\n{{0,{MAX_BLANK_LINES}}}"), content))


def _cut(terms: Terms, term: Term, alphabet: Alphabet | None) -> Term:
    return term if alphabet is None else cut_term(terms, alphabet, term)


def _refusal(spec: Spec) -> str:
    match spec:
        case RegexSpec(pattern):
            return f"nothing matches the pattern {pattern!r}"
        case GrammarSpec():
            return f"the rule {spec.start!r} has no sentence: every way through it uses itself again"
    return "nothing can satisfy this constraint"
