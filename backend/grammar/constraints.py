"""The constraints that a user makes: checked when made, compiled once for equal ones, walked token by token.

Regex, Choices, Schema …    the user's face, over a specification of `lang.constraints`
  └─ Automaton              shared by equal specifications (`automaton_of`)
       └─ Masks             shared by all matchers of one automaton and one vocabulary
            └─ Matcher      one output's place
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.choices import checked_options
from forktree.backend.grammar.gbnf import lark_from_gbnf
from forktree.backend.grammar.markup import Spec
from forktree.backend.grammar.once import OnceCache, OnceCounts
from forktree.backend.grammar.schemas import annotations, schema_text
from forktree.backend.grammar.schemas import checked_options as checked_form
from forktree.backend.grammar.specs import automaton_of
from forktree.backend.vocabulary import Vocabulary, marked
from forktree.lang.constraints import (
    ChoicesSpec,
    ConstraintSpec,
    GrammarSpec,
    RegexSpec,
    SchemaSpec,
    SubstringSpec,
    TagsSpec,
    Unit,
    checked_unit,
)
from forktree.lang.errors import ConstraintError
from forktree.lang.tags import Tag, tags_spec

if TYPE_CHECKING:
    from forktree.backend.grammar.masks import Masks
    from forktree.backend.grammar.matcher import Matcher

MAX_TERMS = 500_000  # some 0.3 GB; keys that no schema names add some 150 terms each


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
            ConstraintError: the tokenizer's tokens cannot spell any legal output, or the first mask takes too much
                work.
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


class Tags(Constraint):
    """Free text with tags in it; what is inside a tag satisfies the tag's constraint.

    Free text never holds the begin of a tag otherwise than to begin one. Where the model has special tokens for a tag's
    markup, it is written in those and in nothing else.

    Args:
        tags: each a `Tag(begin, content, end)`.
        triggers: beginnings of begins that free text must not hold either; where a trigger stands, one of the tags
            that begin with it follows. The begins themselves where not given.
        at_least, at_most: how many tags there are; None is no bound.
        text_after: with `at_most`, whether free text may follow the last tag; without it the output ends there.
    Raises, when made:
        ConstraintError: a content cannot be honoured, a begin or trigger is empty or holds another one.
    """

    def __init__(
        self,
        tags: Iterable[Tag],
        *,
        triggers: Iterable[str] = (),
        at_least: int = 0,
        at_most: int | None = None,
        text_after: bool = True,
    ) -> None:
        self._spec = tags_spec(tags, triggers, at_least=at_least, at_most=at_most, text_after=text_after)
        super().__init__()

    @classmethod
    def of(cls, spec: TagsSpec) -> Tags:
        """The constraint of a specification."""
        tags = [Tag(tag.begin, tag.content, tag.end) for tag in spec.tags]
        return cls(
            tags,
            triggers=spec.triggers,
            at_least=spec.at_least,
            at_most=spec.at_most,
            text_after=spec.text_after,
        )

    @property
    def spec(self) -> TagsSpec:
        return self._spec

    def __repr__(self) -> str:
        return f"Tags({[tag.begin for tag in self._spec.tags]!r})"


class Composed(Constraint):
    """A constraint that is put together of others: calls of tools, reasoning before an answer, markup."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        super().__init__()

    @property
    def spec(self) -> Any:
        return self._spec

    def __repr__(self) -> str:
        return f"Composed({self._spec!r})"


def constraint_from_spec(spec: Spec) -> Constraint:
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
        case TagsSpec():
            return Tags.of(spec)
    return Composed(spec)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _masks(key: tuple[Automaton, Vocabulary]) -> Masks:
    from forktree.backend.grammar.masks import Masks
    from forktree.backend.grammar.trie import trie_of

    automaton, vocabulary = key
    if automaton.marked is not None and vocabulary.markup:
        vocabulary = marked(vocabulary)
        automaton = automaton.marked(vocabulary)
    return Masks(automaton, trie_of(vocabulary))


def _vocabulary(tokenizer: Any) -> Vocabulary:
    if isinstance(tokenizer, Vocabulary):
        return tokenizer
    from forktree.backend.tokenizer import vocabulary_of

    return vocabulary_of(tokenizer)


# an automaton that grew past the limit is made anew for the next constraint; who holds the old one keeps it
_AUTOMATA: OnceCache[Spec, Automaton] = OnceCache(
    automaton_of,
    max_bytes=256 << 20,
    size_of=lambda automaton: automaton.num_bytes,
    is_worn=lambda automaton: automaton.num_states > MAX_TERMS,
)
_MASKS: OnceCache[tuple[Automaton, Vocabulary], Masks] = OnceCache(
    _masks, max_bytes=512 << 20, size_of=lambda masks: masks.num_bytes + masks.automaton.num_bytes
)


def compile_counts() -> OnceCounts:
    """Constraints that were asked for by those who generate: found, or compiled, and the seconds that compiling took,
    that of checking them when they were made among them. Of this process."""
    masks = _MASKS.counts()
    return masks._replace(seconds=masks.seconds + _AUTOMATA.counts().seconds)
