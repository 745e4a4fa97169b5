"""A page that says what holds names the tests that hold it, and they are there."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md") if "held by |" in path.read_text(encoding="utf-8"))
_NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#([\w-]+))?\)")


@lru_cache(256)
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def test_the_pages_that_promise_something_are_among_those_read_here() -> None:
    assert {"security.md", "determinism.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    named = _NAMED.findall((DOCS / page).read_text(encoding="utf-8"))
    assert named
    missing = [f"{path}::{name}" for path, name in named if not (TESTS / path).is_file() or name not in names_in(path)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_every_row_of_what_holds_names_a_test(page: str) -> None:
    without, in_table = [], False
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        is_row = line.startswith("|")
        if is_row and not in_table:
            in_table = line.rstrip().endswith("held by |")
        elif is_row and in_table and not set(line) <= set("|- ") and not _NAMED.search(line):
            without.append(line)
        in_table = in_table and is_row
    assert without == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in [*DOCS.glob("*.md"), *TESTS.parent.glob("*.md")]:
        for target, _ in _LINK.findall(page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []
