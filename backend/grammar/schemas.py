"""`Schema`: the output is JSON that satisfies a JSON Schema."""

from __future__ import annotations

from typing import Any, Literal

from forktree.backend.grammar.derivatives import Derivatives
from forktree.backend.grammar.schema_document import Document
from forktree.backend.grammar.schema_meaning import Interpreter
from forktree.backend.grammar.schema_numbers import AnyWriting, PlainWriting
from forktree.backend.grammar.schema_syntax import annotations_of, check
from forktree.backend.grammar.schema_text import Writer
from forktree.backend.grammar.terms import Term, Terms
from forktree.lang.constraints import SchemaSpec
from forktree.lang.errors import ConstraintError
from forktree.lang.verbatim import Verbatim, dumped_schema

BOUNDED_BLANKS = 20


def schema_term(arena: Terms, spec: SchemaSpec) -> Term:
    """The term of a schema's JSON texts.

    Raises:
        ConstraintError: it is no schema, cannot be enforced in full, or nothing satisfies it.
    """
    document = Document(spec.schema)
    check(document)
    writer: Writer

    def resolve(key: Any) -> Term:
        return writer.resolve(key)

    terms = arena.scoped(resolve)
    derivatives = Derivatives(terms)
    numbers = AnyWriting(derivatives) if spec.numbers == "any" else PlainWriting(derivatives)
    interpreter = Interpreter(document, derivatives, numbers)
    writer = Writer(interpreter, max_blanks=_max_blanks(spec.whitespace), any_order=spec.order == "any")
    try:
        return writer.start(interpreter.goal(document.place))
    except RecursionError:
        raise ConstraintError("the schema nests too deep") from None


def _max_blanks(whitespace: Literal["compact", "bounded"] | int) -> int:
    if whitespace == "compact":
        return 0
    return BOUNDED_BLANKS if whitespace == "bounded" else whitespace


def checked_options(order: object, whitespace: object, numbers: object) -> None:
    """Raises ConstraintError where an option of `Schema` has a value that it does not know."""
    if order not in ("schema", "any"):
        raise ConstraintError(f'order must be "schema" or "any", not {order!r}')
    is_bound = isinstance(whitespace, int) and not isinstance(whitespace, bool) and whitespace >= 0
    if whitespace not in ("compact", "bounded") and not is_bound:
        raise ConstraintError(f'whitespace must be "compact", "bounded" or a count of blanks, not {whitespace!r}')
    if numbers not in ("plain", "any"):
        raise ConstraintError(f'numbers must be "plain" or "any", not {numbers!r}')


def schema_text(schema: Any) -> str:
    """A schema as JSON text, keys in their order.

    Raises:
        ConstraintError: it is neither JSON text nor made of JSON values.
    """
    if isinstance(schema, str):
        return schema
    if isinstance(schema, Verbatim):
        schema = schema.to_schema()
    if not isinstance(schema, dict | bool):
        raise ConstraintError(f"a schema must be a dict, a boolean or JSON text, not {type(schema).__name__}")
    return dumped_schema(schema)


def annotations(text: str) -> tuple[str, ...]:
    """JSON pointers of what constrains nothing in a schema."""
    return annotations_of(Document(text))
