"""The table of docs/backends.md is the dialects' own; `pytest --update-golden` writes it anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forktree.backend.clients.dialects import DIALECTS, Dialect

DOC = Path(__file__).parents[3] / "docs" / "backends.md"
BEGIN, END = "<!-- dialects -->\n", "<!-- end -->"

SCHEMAS = {
    "strict": "`json_schema`, strict where it can be",
    "enforced": "`json_schema`, enforced",
    "json_mode": "JSON mode with the schema, enforced",
    "object": "JSON mode and words",
    "tool": "a forced call of a tool",
    "asked": "words",
}
SCORING = {None: "no", "echo": "echo (plain text), first token (turns)", "first_token": "first token"}


def table() -> Iterator[str]:
    yield "| | " + " | ".join(f"`{name}`" for name in DIALECTS) + " |\n"
    yield "|---|" + "---|" * len(DIALECTS) + "\n"
    for title, cell in ROWS.items():
        yield f"| {title} | " + " | ".join(cell(dialect) for dialect in DIALECTS.values()) + " |\n"


def told_by(dialect: Dialect) -> str:
    return ", ".join([*dialect.hosts, *([f"port {dialect.port}"] if dialect.port else [])]) or "`dialect=`"


def continuing(dialect: Dialect) -> str:
    if dialect.continues is None:
        return "no"
    sent = [*dialect.continues, *dialect.continues_mark]
    return "yes" + (f" ({', '.join(f'`{name}`' for name in sent)})" if sent else "")


def yes_or_no(name: str):
    return lambda dialect: "yes" if getattr(dialect, name) else "no"


ROWS = {
    "told by": told_by,
    "key": lambda dialect: ", ".join(f"`{name}`" for name in dialect.key_variables) or "none",
    "budget": lambda dialect: f"`{dialect.budget}`",
    "stops": lambda dialect: str(dialect.max_stops or "any number"),
    "parameters": lambda dialect: ", ".join(
        f"`{name}`" if name == sent else f"`{name}` as `{sent}`" for name, sent in dialect.sampling.items()
    ),
    "schema": lambda dialect: SCHEMAS[dialect.schema],
    "fields of its own": lambda dialect: (
        ", ".join(
            f"{kind.removesuffix('Spec')}: `{f'{dialect.native_under}.' if dialect.native_under else ''}{sent}`"
            for kind, sent in dialect.native.items()
        )
        or "none"
    ),
    "forced calls of tools": yes_or_no("has_tools"),
    "a turn that has begun": continuing,
    "plain text": yes_or_no("completions"),
    "log-probabilities": yes_or_no("logprobs"),
    "select": lambda dialect: SCORING[dialect.scoring],
    "images": yes_or_no("images"),
    "reasoning": lambda dialect: " or ".join(f"`{name}`" for name in dialect.reasoning) or "not shown",
}


def test_the_table_in_the_docs_is_that_of_the_code(request: pytest.FixtureRequest) -> None:
    text = DOC.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END, 1)
    whole = f"{before}{BEGIN}{''.join(table())}{END}{after}"
    if request.config.getoption("--update-golden"):
        DOC.write_text(whole, encoding="utf-8")
    assert DOC.read_text(encoding="utf-8") == whole
