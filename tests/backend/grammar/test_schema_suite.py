"""JSON-Schema-Test-Suite: every test is decided rightly, or its schema is refused with a pointer.

The table in docs/json-schema.md comes from here; `pytest --update-golden` writes it anew. Keys may come in any order
and numbers in any spelling. Two kinds of tests ask for something else than forktree means, and are counted apart:
those that call a format only an annotation, and those that read `content…` as a demand.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from forktree.backend.grammar.constraints import Schema
from forktree.backend.grammar.schema_formats import KNOWN_FORMATS
from forktree.backend.grammar.schema_syntax import ANNOTATIONS, KEYWORDS
from forktree.lang.constraints import VERBATIM
from forktree.lang.errors import ConstraintError

SUITE = Path(__file__).parents[2] / "data/grammar/json_schema_suite.jsonl"
DOC = "../../docs/json-schema.md"  # from tests/golden
DRAFTS = ("draft2020-12", "draft7")
Verdict = Literal["right", "refused", "apart", "wrong"]

ROWS: list[dict[str, Any]] = [json.loads(line, parse_float=Decimal) for line in SUITE.read_text().splitlines()]


def written(value: Any) -> str:
    """JSON with numbers spelled as the suite spells them."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{written(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)


def schema_text(row: dict[str, Any]) -> str:
    schema = row["schema"]
    if row["id"].startswith("draft7/") and isinstance(schema, dict):
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    return written(schema)


class Outcome(NamedTuple):
    """How the tests of one group came out; `where` and `why` say where the schema was refused."""

    verdicts: tuple[Verdict, ...]
    where: str | None = None
    why: str = ""


@lru_cache(maxsize=1000)
def outcome_of(index: int) -> Outcome:
    row = ROWS[index]
    tests = [(value, True) for value in row["valid"]] + [(value, False) for value in row["invalid"]]
    try:
        constraint = Schema(schema_text(row), order="any", numbers="any")
    except ConstraintError as error:
        if "nothing can satisfy" in error.reason and not row["valid"]:
            return Outcome(("right",) * len(tests))  # nothing is legal, as the suite says
        return Outcome(("refused",) * len(tests), error.pointer, error.reason)
    verdicts: list[Verdict] = []
    for value, is_valid in tests:
        is_right = constraint.accepts(written(value)) == is_valid
        verdicts.append("right" if is_right else "apart" if is_apart(row, is_valid=is_valid) else "wrong")
    return Outcome(tuple(verdicts))


def is_apart(row: dict[str, Any], *, is_valid: bool) -> bool:
    """The test says that a format does not assert, or that `content…` does."""
    file = file_of(row)
    return (file == "format" and is_valid) or (file == "optional/content" and not is_valid)


def file_of(row: dict[str, Any]) -> str:
    return str(row["id"]).partition("/")[2].rpartition("/")[0]


@pytest.mark.parametrize("index", range(len(ROWS)), ids=[row["id"] for row in ROWS])
def test_the_suite_is_decided_rightly_or_refused_with_a_pointer(index: int) -> None:
    outcome = outcome_of(index)
    assert "wrong" not in outcome.verdicts
    if outcome.where is not None:
        assert outcome.where.startswith("/")


# -- the table ----------------------------------------------------------------------------------------

SINCE = {
    "$recursiveRef": "2019-09 only",
    "$recursiveAnchor": "2019-09 only",
    "id": "04 only",
    "additionalItems": "04 to 2019-09",
    "dependencies": "04 to 07, later as there",
    "definitions": "04 to 07, later as there",
    "prefixItems": "2020-12",
    "const contains propertyNames $id": "since 06",
    "if then else": "since 07",
    "$anchor $defs dependentRequired dependentSchemas maxContains minContains unevaluatedItems": "since 2019-09",
    "unevaluatedProperties $vocabulary": "since 2019-09",
    "$dynamicRef $dynamicAnchor": "2020-12",
}
REFUSED = {
    "$ref": "it leaves the document, leads nowhere, or in a circle without a value in between",
    "$dynamicRef $recursiveRef": "as `$ref`",
    "$schema": "it is not one of the drafts 04, 06, 07, 2019-09 and 2020-12",
    "$vocabulary": "never: it says nothing in a schema that is no metaschema",
    "format": "`regex`, `idn-hostname`, `idn-email`; `hostname` since 07 (labels of IDNA)",
    "pattern patternProperties": "it looks back, or ahead elsewhere than right after a leading `^`",
    "uniqueItems": "equal items are demanded (`not`); beside `minContains` above 1 or `maxContains`; beside `minItems` "
    "where items have few values and are no list of scalars",
    "multipleOf minimum maximum exclusiveMinimum exclusiveMaximum const enum": "a number has more than 400 digits",
    "oneOf not if anyOf allOf dependentSchemas dependencies": "the combinations pass the limits of size",
    VERBATIM: "its document is missing or too short",
}
FILES = {
    "ref": "$ref", "refRemote": "$ref", "optional/refOfUnknownKeyword": "$ref", "infinite-loop-detection": "$ref",
    "optional/cross-draft": "$ref", "dynamicRef": "$dynamicRef", "anchor": "$anchor", "optional/anchor": "$anchor",
    "optional/id": "$id", "if-then-else": "if", "optional/ecmascript-regex": "pattern", "vocabulary": "$schema",
    "optional/non-bmp-regex": "pattern", "optional/bignum": "minimum", "optional/float-overflow": "multipleOf",
    "optional/dependencies-compatibility": "dependencies", "optional/format-assertion": "$schema",
    "content": "contentMediaType", "optional/content": "contentMediaType", "boolean_schema": "boolean schemas",
}  # fmt: skip


def said(notes: dict[str, str], keyword: str, default: str) -> str:
    return next((text for names, text in notes.items() if keyword in names.split(" ")), default)


def keyword_of(file: str) -> str:
    return "format" if file.startswith("optional/format/") else FILES.get(file, file)


def tallies() -> dict[tuple[str, str], Counter[str]]:
    """By keyword and draft, how many tests came out how."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for index, row in enumerate(ROWS):
        key = (keyword_of(file_of(row)), row["id"].partition("/")[0])
        found.setdefault(key, Counter()).update(outcome_of(index).verdicts)
    return found


def shown(tally: Counter[str]) -> str:
    parts = [f"{tally['right']} right"] if tally["right"] else []
    parts += [f"{tally[kind]} {kind}" for kind in ("refused", "apart", "wrong") if tally[kind]]
    return ", ".join(parts)


def table() -> str:
    found = tallies()
    keywords = sorted(
        KEYWORDS | ANNOTATIONS | {keyword for keyword, _ in found}, key=lambda one: (one.lstrip("$x-"), one)
    )
    lines = ["| keyword | drafts | enforced; refused when | 2020-12 | 07 |", "|---|---|---|---|---|"]
    for keyword in keywords:
        meaning = "annotation" if keyword in ANNOTATIONS else said(REFUSED, keyword, "never refused")
        counts = [shown(found.get((keyword, draft), Counter())) for draft in DRAFTS]
        name = keyword if keyword == "boolean schemas" else f"`{keyword}`"
        lines.append(f"| {name} | {said(SINCE, keyword, 'all')} | {meaning} | {counts[0]} | {counts[1]} |")
    for draft in DRAFTS:
        whole = sum((tally for (_, one), tally in found.items() if one == draft), Counter())
        lines.append(f"\n{draft}: {shown(whole)}, of {whole.total()} tests.")
    return "\n".join(lines)


def test_the_table_in_the_docs_is_what_the_suite_gives(golden: Any) -> None:
    path = Path(__file__).parents[3] / "docs/json-schema.md"
    marks = re.compile(r"(?<=<!-- table: begin -->\n).*(?=\n<!-- table: end -->)", re.DOTALL)
    golden(DOC, marks.sub(lambda _: table(), path.read_text(encoding="utf-8")))


def test_every_format_of_a_draft_is_decided_or_refused() -> None:
    for name in KNOWN_FORMATS:
        try:
            constraint = Schema({"type": "string", "format": name})
        except ConstraintError as error:
            assert error.pointer == "/format"
            continue
        assert not constraint.accepts('"\\u0000 no such thing"'), name
