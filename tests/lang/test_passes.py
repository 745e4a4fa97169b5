"""Passes keep what a program does."""

from __future__ import annotations

import asyncio

import pytest

from forktree.backend.fake import Fake
from forktree.lang import ir
from forktree.lang.expressions import assistant, gen, select, user
from forktree.lang.passes import drop_unread, merge_text, share_trunk
from forktree.runtime.function import function


@function
def judge(s, essay):
    s += "Essay: "
    s += f"{essay}"
    s += "\n"
    s += "Judge it."
    forks = s.fork(3)
    for dimension, branch in zip(("clarity", "style", "facts"), forks, strict=True):
        branch += user("You are strict. ")
        branch += assistant("The " + dimension + " is " + gen(dimension, max_tokens=2))
        branch += gen("aside")
    s.join(*forks)
    s += f"So: {s['clarity']} {s['style']}" + gen("verdict")
    return s["verdict"]


def script(request) -> str:
    return f"<{request.name} after {len(request.prompt)}>"


def prompts(program) -> list[tuple[str, tuple[int, ...]]]:
    """Each request's name and the ids of its prompt."""
    fake = Fake(script)
    program.run(essay="text", backend=fake)
    return sorted((request.name, asyncio.run(fake.tokens(request.branch))) for request in fake.requests)


def test_text_that_would_be_cut_inside_a_run_is_not_moved() -> None:
    @function
    def program(s):
        forks = s.fork(2)
        forks += "shared "
        forks += ["a", "b"]
        forks += gen("x")

    assert share_trunk(program.trace()) == program.trace()


@pytest.mark.parametrize("improve", [merge_text, share_trunk, lambda program: share_trunk(merge_text(program))])
def test_no_prompt_changes(improve) -> None:
    program = judge.trace()
    assert prompts(improve(program)) == prompts(program)


def test_adjacent_text_becomes_one_node() -> None:
    merged = merge_text(judge.trace())
    texts = [node.text for node in merged.ops_of(0) if isinstance(node, ir.Text)]
    assert texts[:2] == ["Essay: ", "\nJudge it."]


def test_what_all_branches_begin_with_is_on_a_trunk_of_their_own() -> None:
    shared = share_trunk(judge.trace())
    (trunk,) = next(node.branches for node in shared.ops_of(0) if isinstance(node, ir.Fork))
    nodes = shared.ops_of(trunk)
    assert [type(node) for node in nodes] == [
        ir.RoleBegin,
        ir.Text,
        ir.RoleEnd,
        ir.RoleBegin,
        ir.Fork,
    ]
    assert len(nodes[-1].branches) == 3


def test_a_fork_with_nothing_in_common_stays_as_it_is() -> None:
    @function
    def program(s):
        left, right = s.fork(2)
        left += "a" + gen("x")
        right += "b" + gen("y")

    assert share_trunk(program.trace()) == program.trace()


def test_an_unread_generation_at_the_end_of_its_branch_is_dropped() -> None:
    dropped = drop_unread(judge.trace())
    names = [op.node.name for op in dropped.ops if isinstance(op.node, ir.Gen)]
    assert names == ["clarity", "style", "verdict"]
    assert prompts(dropped) == [each for each in prompts(judge.trace()) if each[0] not in ("aside", "facts")]


def test_what_is_kept_by_name_stays() -> None:
    dropped = drop_unread(judge.trace(), keep=("facts",))
    assert [op.node.name for op in dropped.ops if isinstance(op.node, ir.Gen)].count("facts") == 1


def test_a_generation_whose_text_a_later_one_sees_is_never_dropped() -> None:
    @function
    def program(s):
        s += gen("thought") + select("answer", ["a", "b"])
        (branch,) = s.fork(1)
        branch += gen("late")
        return branch["late"]

    assert drop_unread(program.trace()) == program.trace()
