"""The constraints that a user makes: checked when made, compiled once for equal ones, walked token by token.

Regex, Choices, Schema …    the user's face, over a specification of `lang.constraints`
  └─ Automaton              shared by equal specifications (`automaton_of`)
       └─ Masks             shared by all matchers of one automaton and one vocabulary
            └─ Matcher      one output's place
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, assert_never

from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.choices import any_of, checked_options
from forktree.backend.grammar.gbnf import lark_from_gbnf
from forktree.backend.grammar.grammars import grammar_automaton
from forktree.backend.grammar.once import OnceCache
from forktree.backend.grammar.regex_syntax import parse_python
from forktree.backend.grammar.regex_terms import whole_match
from forktree.backend.grammar.schemas import annotations, schema_automaton, schema_text
from forktree.backend.grammar.schemas import checked_options as checked_form
from forktree.backend.grammar.substrings import raw_pieces
from forktree.backend.grammar.terms import Terms
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.constraints import (
    ChoicesSpec,
    ConstraintSpec,
    GrammarSpec,
    RegexSpec,
    SchemaSpec,
    SubstringSpec,
    Unit,
    checked_unit,
)
from forktree.lang.errors import ConstraintError

if TYPE_CHECKING:
    from forktree.backend.grammar.masks import Masks
    from forktree.backend.grammar.matcher import Matcher

MAX_TERMS = 2_000_000


class Constraint(ABC):
    """A language of legal outputs.

    Raises, when made:
        ConstraintError: the constraint cannot be honoured in full, or nothing can satisfy it.
    """

    def __init__(self) -> None:
        self._automaton = _AUTOMATA.get(self.spec)

    @property
    @abstractmethod
    def spec(self) -> ConstraintSpec:
        """The constraint as plain data."""

    @property
    def automaton(self) -> Automaton:
        return self._automaton

    def accepts(self, text: str) -> bool:
        """Whether this text is one whole legal output."""
        state = self._automaton.run(self._automaton.start, _encoded(text))
        return state is not None and state.nullable

    def accepts_prefix(self, text: str) -> bool:
        """Whether some legal output begins with this text."""
        return self._automaton.run(self._automaton.start, _encoded(text)) is not None

    def compile(self, tokenizer: Any) -> Matcher:
        """A matcher at the start of an output.

        Args:
            tokenizer: as transformers makes it, or a `Vocabulary`.
        Raises:
            ConstraintError: the tokenizer's tokens cannot spell any legal output.
        """
        from forktree.backend.grammar.matcher import Matcher

        return Matcher(_MASKS.get((self._automaton, _vocabulary(tokenizer))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constraint) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)


class Regex(Constraint):
    """The whole output matches a pattern of Python's `re`."""

    def __init__(self, pattern: str) -> None:
        if not isinstance(pattern, str):
            raise ConstraintError(f"a pattern must be a text, not {type(pattern).__name__}")
        self._spec = RegexSpec(pattern)
        super().__init__()

    @property
    def spec(self) -> RegexSpec:
        return self._spec

    def __repr__(self) -> str:
        return f"Regex({self._spec.pattern!r})"


class Choices(Constraint):
    """The whole output is one of the options."""

    def __init__(self, options: Iterable[str]) -> None:
        self._spec = ChoicesSpec(checked_options(options))
        super().__init__()

    @property
    def spec(self) -> ChoicesSpec:
        return self._spec

    def __repr__(self) -> str:
        return f"Choices({list(self._spec.options)!r})"


class Schema(Constraint):
    """The whole output is JSON text that satisfies a JSON Schema.

    Args:
        schema: a dict, a boolean or JSON text; it means what JSON Schema says.
        order: "schema" writes keys in schema order, "any" lets them come in any order.
        whitespace: "compact", "bounded", or the most blanks in a row.
        numbers: "plain" has no exponent and at most 17 fraction digits, "any" takes all of RFC 8259.
    """

    def __init__(
        self,
        schema: dict[str, Any] | bool | str,
        *,
        order: Literal["schema", "any"] = "schema",
        whitespace: Literal["compact", "bounded"] | int = "compact",
        numbers: Literal["plain", "any"] = "plain",
    ) -> None:
        checked_form(order, whitespace, numbers)
        self._spec = SchemaSpec(schema_text(schema), order, whitespace, numbers)
        super().__init__()

    @property
    def spec(self) -> SchemaSpec:
        return self._spec

    @property
    def annotations(self) -> tuple[str, ...]:
        """JSON pointers of what constrains nothing: annotations, unknown keywords, unknown formats."""
        return annotations(self._spec.schema)

    def __repr__(self) -> str:
        return f"Schema({self._spec.schema!r})"


class Substring(Constraint):
    """The whole output is a literal piece of a text; the empty piece is one.

    Args:
        unit: "word" takes only pieces that begin and end with whole words, which are what blanks separate.
    """

    def __init__(self, text: str, *, unit: Unit = "character") -> None:
        if not isinstance(text, str):
            raise ConstraintError(f"the document must be a text, not {type(text).__name__}")
        self._spec = SubstringSpec(text, checked_unit(unit))
        super().__init__()

    @property
    def spec(self) -> SubstringSpec:
        return self._spec

    def __repr__(self) -> str:
        return f"Substring({self._spec.text[:40]!r})"


class Grammar(Constraint):
    """The whole output is a sentence of a grammar in lark's notation, for some way to cut it into tokens.

    Args:
        text: the grammar.
        start: the rule that a whole output follows.
    """

    def __init__(self, text: str, start: str = "start") -> None:
        for what, value in (("a grammar", text), ("a start rule", start)):
            if not isinstance(value, str):
                raise ConstraintError(f"{what} must be a text, not {type(value).__name__}")
        self._spec = GrammarSpec(text, start)
        super().__init__()

    @classmethod
    def from_gbnf(cls, text: str) -> Grammar:
        """The grammar that a text in llama.cpp's notation describes; its start is `root`.

        Raises:
            ConstraintError: it is not GBNF, or cannot be honoured.
        """
        return cls(*lark_from_gbnf(text))

    @property
    def spec(self) -> GrammarSpec:
        return self._spec

    def __repr__(self) -> str:
        return f"Grammar({self._spec.text[:40]!r}, start={self._spec.start!r})"


def constraint_from_spec(spec: ConstraintSpec) -> Constraint:
    """The constraint that a specification describes; equal ones share one automaton.

    Raises:
        ConstraintError: as when the constraint is made.
    """
    match spec:
        case RegexSpec(pattern):
            return Regex(pattern)
        case ChoicesSpec(options):
            return Choices(options)
        case SchemaSpec(schema, order, whitespace, numbers):
            return Schema(schema, order=order, whitespace=whitespace, numbers=numbers)
        case SubstringSpec(text, unit):
            return Substring(text, unit=unit)
        case GrammarSpec(text, start):
            return Grammar(text, start)
    assert_never(spec)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _automaton(spec: ConstraintSpec) -> Automaton:
    match spec:
        case RegexSpec(pattern):
            terms = Terms()
            term = whole_match(terms, parse_python(pattern))
            return Automaton(terms, term, refusal=f"nothing matches the pattern {pattern!r}")
        case ChoicesSpec(options):
            terms = Terms()
            return Automaton(terms, any_of(terms, options))
        case SchemaSpec():
            return schema_automaton(spec)
        case SubstringSpec(text, unit):
            terms, machine = Terms(), raw_pieces(text, unit)
            return Automaton(terms, terms.machine(machine, machine.start()))
        case GrammarSpec():
            return grammar_automaton(spec)
    assert_never(spec)


def _masks(key: tuple[Automaton, Vocabulary]) -> Masks:
    from forktree.backend.grammar.masks import Masks
    from forktree.backend.grammar.trie import trie_of

    automaton, vocabulary = key
    return Masks(automaton, trie_of(vocabulary))


def _vocabulary(tokenizer: Any) -> Vocabulary:
    if isinstance(tokenizer, Vocabulary):
        return tokenizer
    from forktree.backend.tokenizer import vocabulary_of

    return vocabulary_of(tokenizer)


# an automaton that grew past the limit is made anew for the next constraint; who holds the old one keeps it
_AUTOMATA: OnceCache[ConstraintSpec, Automaton] = OnceCache(
    _automaton, max_entries=256, is_worn=lambda automaton: automaton.num_states > MAX_TERMS
)
_MASKS: OnceCache[tuple[Automaton, Vocabulary], Masks] = OnceCache(_masks, max_entries=256)
