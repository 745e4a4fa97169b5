"""The rules of the IR, each by a program that breaks it."""

from __future__ import annotations

import pytest

from forktree.lang import ir
from forktree.lang.errors import LanguageError, RoleError, UndefinedVariableError
from forktree.lang.program import Op, Program
from forktree.lang.verify import verify

X = ir.Gen("x")


def program(*steps: tuple[int, ir.Node], returns: object = None, parameters: tuple[str, ...] = ()) -> Program:
    return Program("p", parameters, tuple(Op(*step) for step in steps), returns)


@pytest.mark.parametrize(
    "good",
    [
        program(),
        program((0, X), (0, ir.Variable("x", 0)), returns=ir.Variable("x", 0)),
        program((0, X), (0, ir.Fork((1, 2))), (1, ir.Variable("x", 1)), (2, ir.Variable("x", 0))),
        program((0, ir.Fork((1, 2))), (1, X), (2, ir.Variable("x", 1)), (0, ir.Join((1, 2))), (0, ir.Variable("x", 0))),
        program((0, ir.Call("q", 1)), (1, X), (0, ir.Variable("x", 1))),
        program((0, ir.RoleBegin("user")), (0, ir.Fork((1,))), (1, ir.RoleEnd("user")), (0, ir.RoleEnd("user"))),
        program((0, ir.ScopeBegin("s")), (0, X), (0, ir.ScopeEnd("s")), (0, ir.Variable("s", 0))),
        program((0, ir.Argument("a")), parameters=("a",)),
    ],
)
def test_programs_that_keep_the_rules_pass(good) -> None:
    assert verify(good) is good


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (program((1, X)), LanguageError, "branch 1 is used before"),
        (program((0, ir.Fork((1,))), (0, ir.Fork((1,)))), LanguageError, "opened twice"),
        (program((0, ir.Fork((0,)))), LanguageError, "opened twice"),
        (program((0, ir.Variable("x", 0)), (0, X)), UndefinedVariableError, "'x' is read before"),
        (program((0, ir.Fork((1,))), (0, X), (1, ir.Variable("x", 1))), UndefinedVariableError, "'x'"),
        (program(returns=ir.Variable("x", 0)), UndefinedVariableError, "'x'"),
        (program((0, ir.Assign("y", [ir.Variable("x", 0)]))), UndefinedVariableError, "'x'"),
        (program((0, ir.Variable("x", 7))), UndefinedVariableError, "'x'"),
        (program((0, ir.Argument("a"))), LanguageError, "'a' is not a parameter"),
        (program((0, ir.RoleBegin("user")), (0, ir.RoleBegin("system"))), RoleError, "inside an open user"),
        (program((0, ir.RoleEnd("user"))), RoleError, "no turn is open"),
        (program((0, ir.ScopeEnd("s"))), LanguageError, "scope 's'"),
        (program((0, X), (0, ir.Fork((1,))), (1, X), (0, ir.Join((1,)))), LanguageError, "'x'"),
        (program((0, ir.Join((3,)))), LanguageError, "no fork opened"),
        (program((0, ir.Select("x", ()))), LanguageError, "no options"),
    ],
)
def test_programs_that_break_a_rule_are_refused(bad, error, message) -> None:
    with pytest.raises(error, match=message):
        verify(bad)
