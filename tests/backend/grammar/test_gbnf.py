"""GBNF through its translation: the same sentences, and refusals with line and column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grammar_walks import accepts_by_tokens

from forktree.backend.grammar.constraints import Grammar
from forktree.lang.errors import ConstraintError

ROWS = [json.loads(line) for line in (Path(__file__).parents[2] / "data/grammar/gbnf.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", [pytest.param(row, id=row["id"]) for row in ROWS])
def test_grammars_of_llama_cpp_are_decided_rightly(row: dict[str, object]) -> None:
    grammar = Grammar.from_gbnf(str(row["grammar"]))
    assert [one for one in row["accept"] if not grammar.accepts(one)] == []  # type: ignore[attr-defined]
    assert [one for one in row["reject"] if grammar.accepts(one)] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "accept", "reject"),
    [
        ('root ::= num ("+" num)*\nnum ::= [0-9]+\n', ["1", "12+3"], ["", "+", "1+"]),
        ('root ::= a-b | a_b\na-b ::= "x"\na_b ::= "y"\n', ["x", "y"], ["xy"]),
        ('root ::= ("a" |\n  "b"){2,} # two at least\n  "c"?', ["ab", "abac"], ["a", "c"]),
        ('root ::= [^"\\\\\\n-] [a\\-z\\]-] . "\\u00e9\\"" ', ['x-\né"', 'q]zé"'], ['"-zé"', 'xbzé"']),
        ('root ::= "x"{2} "" "y"{1,2}', ["xxy", "xxyy"], ["xy", "xx", "xxyyy"]),
        ("root ::= root [0-9] | [1-9]", ["1", "10"], ["01", ""]),
    ],
)
def test_a_gbnf_grammar_has_its_own_meaning(text: str, accept: list[str], reject: list[str]) -> None:
    grammar = Grammar.from_gbnf(text)
    assert [one for one in accept if not accepts_by_tokens(grammar, one)] == []
    assert [one for one in reject if accepts_by_tokens(grammar, one)] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('start: "a"\n', "line 1 column 1|not GBNF"),
        ('other ::= "a"\n', "rule `root`"),
        ('root ::= "a"\nroot ::= "b"\n', "defined twice.*line 2 column 1"),
        ('root ::= ("a"\n', "never closed"),
        ('root ::= "a")\n', "unbalanced.*line 1 column 13"),
        ('root ::= * "a"\n', "nothing to repeat"),
        ("root ::= missing\n", "missing"),
        ("root ::= <[1000]>\n", "line 1 column 10"),
        ("root ::= " + "(" * 50 + '"a"' + "){1,}" * 50, "longer than"),
    ],
)
def test_what_is_not_gbnf_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        Grammar.from_gbnf(text)
