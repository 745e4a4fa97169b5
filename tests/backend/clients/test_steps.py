"""A step of a branch as a program of its own, and back."""

from __future__ import annotations

import forktree as ft
from forktree.backend.clients.steps import completion_of, program_of, scores_of
from forktree.lang.constraints import ChoicesSpec
from forktree.runtime.journal import store_state
from forktree.runtime.protocol import (
    Branch,
    ForkMark,
    Generated,
    GenerateRequest,
    RoleBegin,
    RoleEnd,
    ScoreRequest,
    StoredRun,
    Text,
    Usage,
)


def chain(*segments) -> Branch | None:
    branch = None
    for segment in segments:
        branch = Branch(branch, segment)
    return branch


BEGUN = chain(
    RoleBegin("user"), Text("Hi"), ForkMark(), RoleEnd("user"), RoleBegin("assistant"), Text("It "), Generated("is")
)


def run(request, script) -> StoredRun:
    program = ft.Program.from_json(program_of(request).to_json())
    state = program.run(backend=ft.Fake(script))
    return StoredRun(*store_state(state, state.ret_value), Usage(5, 1, 2))


def test_a_generation_is_one_operation_behind_the_branch_s_text() -> None:
    sampling = ft.Sampling(max_tokens=3, seed=4, n=2)
    program = program_of(GenerateRequest(branch=BEGUN, sampling=sampling, sample_index=1, name="x", heal=False))
    gen = program.ops[-2].node
    assert [type(op.node).__name__ for op in program.ops] == [
        *("RoleBegin", "Text", "RoleEnd", "RoleBegin", "Text", "Text", "Gen", "RoleEnd"),
    ]
    assert gen.sampling == ft.Sampling(max_tokens=3, seed=5)
    assert gen.heal is False


def test_what_it_made_comes_back_as_a_completion() -> None:
    request = GenerateRequest(branch=BEGUN, sampling=ft.Sampling(max_tokens=2, logprobs=1))
    completion = completion_of(request, run(request, {"value": "a b c"}))
    assert completion.segment.text == "a b"
    assert completion.finish_reason == "length"
    assert completion.usage == Usage(5, 1, 2)
    assert [entry.text for entry in completion.logprobs] == ["a", " b"]


def test_an_output_that_was_cut_comes_back_as_cut() -> None:
    request = GenerateRequest(branch=None, sampling=ft.Sampling(max_tokens=1), constraint=ChoicesSpec(("a b", "c")))
    completion = completion_of(request, run(request, {"value": "a b"}))
    assert (completion.segment.text, completion.is_complete) == ("a", False)


def test_scores_come_back_in_the_order_of_the_options() -> None:
    request = ScoreRequest(branch=BEGUN, options=("x", "y z", ""))
    result = scores_of(request, run(request, {"value": {"x": -1.0, "y z": [-0.5, -0.25], "": -9.0}}))
    assert [option.logprobs for option in result.options][:2] == [(-1.0,), (-0.5, -0.25)]


def test_scores_without_the_prompt_are_what_the_method_needs() -> None:
    request = ScoreRequest(branch=BEGUN, options=("x", "y"), unconditional=True)
    result = scores_of(request, run(request, {"value": "y"}))
    assert all(len(option.unconditional_logprobs) == 1 for option in result.options)
