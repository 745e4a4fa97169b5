"""Programs as data: printing, equality, JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from forktree.lang import ir
from forktree.lang.errors import LanguageError
from forktree.lang.expressions import assistant, gen, image, markup, select, system, tools, user
from forktree.lang.program import Op, Program, merge_texts
from forktree.lang.sampling import Sampling


class Receipt(BaseModel):
    company: str
    total: float


def ops(branch: int, *exprs: object) -> list[Op]:
    nodes = [node for expr in exprs for node in (ir.nodes_of(expr) if isinstance(expr, ir.Expr | str) else (expr,))]
    return [Op(branch, node) for node in nodes]


def every_node() -> Program:
    trunk = ops(
        0,
        tools([{"name": "look_up", "description": "Finds.", "parameters": {"type": "object"}}]),
        system("You read receipts."),
        ir.RoleBegin("user"),
        'Receipt "A":\n',
        ir.Argument("text"),
        " of ",
        ir.Argument("when", path=("year",), format_spec="04"),
        ir.RoleEnd("user"),
        ir.Fork((1, 2)),
    )
    first = ops(1, assistant(gen("receipt", schema=Receipt, max_tokens=160)))
    second = ops(
        2,
        assistant("It is for " + select("kind", ["food", "fuel"], method="greedy_token_selection")),
        ir.Fork((3,), "continue"),
    )
    third = ops(3, markup("<|end|>"), gen(regex="[0-9]+", stop=["\n"], temperature=0.5, heal=False))
    rest = ops(
        0,
        ir.Join((1, 2)),
        ir.Assign("total", ir.Variable("receipt", 0, ("total",))),
        ir.Assign("parts", [1, ("a", None), {"b": ir.Variable("kind", 2)}]),
        ir.ScopeBegin("summary"),
        user("The total is " + ir.Sequence((ir.Variable("total", 0, format_spec=".2f"),))),
        ir.ScopeEnd("summary"),
        image(b"\x89PNG\r\n\x1a\n..."),
        ir.Call("check", 4),
    )
    call = ops(4, gen("verdict", choices=["yes", "no"], on_budget="close") + gen("n", dtype=int, n=2))
    back = ops(0, ir.Variable("verdict", 4, conversion="r"))
    steps = (*trunk, *first, *second, *third, *rest, *call, *back)
    returns = (ir.Variable("receipt", 0), ir.Variable("kind", 0))
    return Program("read_receipt", ("text", "when"), steps, returns)


def test_golden_every_node_prints_readably(golden) -> None:
    golden("every_node.txt", str(every_node()))


def test_a_program_survives_json() -> None:
    program = every_node()
    again = Program.from_json(program.to_json())
    assert again == program
    assert str(again) == str(program)
    assert again.to_json() == program.to_json()


def test_lines_survive_json_and_do_not_count_for_equality() -> None:
    program = Program("p", (), tuple(ops(0, gen("x"))))
    again = Program.from_json(program.to_json())
    assert again.ops[0].node.source == program.ops[0].node.source
    assert program == Program("p", (), tuple(ops(0, gen("x"))))
    assert program != Program("p", (), tuple(ops(0, gen("y"))))


def test_the_printed_form_can_show_the_lines() -> None:
    program = Program("p", (), tuple(ops(0, gen("x"))))
    assert "test_program.py:" in program.format(sources=True)


def test_typed_values_of_a_program_that_came_through_json_are_plain_data() -> None:
    program = Program.from_json(Program("p", (), tuple(ops(0, gen("x", schema=Receipt)))).to_json())
    assert program.ops[0].node.output.value_of('{"company":"A","total":1.5}') == {"company": "A", "total": 1.5}


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"format": "other/1"}',
        '{"format": "forktree.program/1", "name": "p", "parameters": [], "ops": [{"on": 0, "op": "Jump"}]}',
        '{"format": "forktree.program/1", "name": "p", "parameters": [], "ops": [{"on": -1, "op": "Text"}]}',
        '{"format": "forktree.program/1", "name": "p", "parameters": [], "returns": null, '
        '"ops": [{"on": 0, "op": "Text", "text": "a", "colour": 1}]}',
        '{"format": "forktree.program/1", "name": "p", "parameters": [], "returns": {"a": 1}, "ops": []}',
    ],
)
def test_json_that_is_no_program_is_refused(text) -> None:
    with pytest.raises(LanguageError):
        Program.from_json(text)


def test_a_value_that_json_cannot_carry_is_refused_by_name() -> None:
    with pytest.raises(LanguageError, match="object"):
        Program("p", (), (Op(0, ir.Assign("x", object())),)).to_json()


def test_adjacent_text_of_one_branch_merges_and_branches_stay_apart() -> None:
    steps = [*ops(0, "a", "b", ir.Fork((1,))), *ops(1, "x"), *ops(0, "c"), *ops(1, "y"), *ops(0, markup("d"))]
    merged = merge_texts(steps)
    assert [(op.branch, getattr(op.node, "text", "fork")) for op in merged] == [
        (0, "ab"),
        (0, "fork"),
        (1, "xy"),
        (0, "c"),
        (0, "d"),
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(json_values, st.text())
def test_any_plain_data_survives_json(data, text) -> None:
    program = Program("p", (), (Op(0, ir.Assign("x", data)), Op(0, ir.Text(text))), data)
    assert Program.from_json(program.to_json()) == program


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        Sampling,
        max_tokens=st.none() | st.integers(1, 100),
        stop=st.none() | st.lists(st.text(min_size=1), max_size=3),
        logit_bias=st.none() | st.dictionaries(st.integers(0, 9), st.floats(-5, 5), max_size=3),
        logprobs=st.none() | st.integers(0, 5),
    )
)
def test_any_sampling_survives_json(sampling) -> None:
    program = Program("p", (), (Op(0, ir.Gen("x", sampling)),))
    assert Program.from_json(program.to_json()) == program


def test_long_text_is_shown_by_its_ends() -> None:
    shown = str(Program("p", (), tuple(ops(0, "a" * 1000 + "z"))))
    assert "601 characters" in shown
    assert len(shown) < 700


def test_the_format_is_named_in_the_json() -> None:
    assert json.loads(every_node().to_json())["format"] == "forktree.program/1"
