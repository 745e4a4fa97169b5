"""A lark grammar compiled: the texts that are a sentence for some way to cut them into tokens.

No lexer commits to a token: every cut that may still work out is kept, and so is every parse. So the priorities of
rules and terminals, which only choose between readings, change nothing. Ignored terminals may stand before, between
and after tokens.
"""

from __future__ import annotations

from forktree.backend.grammar.alphabet import Alphabet, cut_term
from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.lark_rules import LarkRules
from forktree.backend.grammar.lark_terminals import Terminals
from forktree.backend.grammar.lark_text import LarkGrammar, read_lark
from forktree.backend.grammar.rule_terms import RuleTerms
from forktree.backend.grammar.rules import Leaf
from forktree.backend.grammar.terms import Term, Terms
from forktree.lang.constraints import GrammarSpec
from forktree.lang.errors import ConstraintError


def grammar_term(arena: Terms, spec: GrammarSpec, alphabet: Alphabet | None = None) -> Term:
    """The term of a grammar's sentences; with an alphabet, of those that it spells.

    Raises:
        ConstraintError: the text is no grammar, or a part of it cannot be honoured.
    """
    grammar = read_lark(spec.text)
    try:
        return _compiled(arena, grammar, spec.start, alphabet)
    except RecursionError:
        raise ConstraintError("the grammar nests too deep") from None


def _compiled(arena: Terms, grammar: LarkGrammar, start: str, alphabet: Alphabet | None) -> Term:
    rules = RuleTerms(arena)
    terms = rules.terms
    derivatives = Derivatives(terms)
    terminals = Terminals(grammar, terms)

    def spelled(term: Term) -> Term:
        return term if alphabet is None else cut_term(terms, alphabet, term)

    ignored = terms.repeat(terms.alt(spelled(terminals.named(name)) for name in grammar.ignored), 0, None)
    some = terms.repeat(terms.byte((1 << 256) - 1), 1, None)

    def token(term: Term) -> Leaf:
        whole = terms.cat(spelled(term), ignored)
        is_solid = derivatives.is_live(terms.both((whole, some)) if whole.nullable else whole)
        return Leaf(whole, is_solid)

    rules.add(LarkRules(grammar, terminals, token).from_start(start))
    return terms.cat(ignored, rules.start(start))
