"""A step of a branch as a program of its own, and back."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

import forktree as ft
from forktree.backend.clients.steps import completion_of, has_ids, program_of, scores_of, stored_branch
from forktree.lang.constraints import ChoicesSpec
from forktree.runtime.journal import store_state
from forktree.runtime.programs import run_behind
from forktree.runtime.protocol import (
    Branch,
    ForkMark,
    Generated,
    GenerateRequest,
    Image,
    RoleBegin,
    RoleEnd,
    ScoreRequest,
    StoredRun,
    Text,
    Tools,
    Usage,
)
from forktree.runtime.stored import restore_branch, store_branch


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
    branch = restore_branch(json.dumps(stored_branch(request.branch)))
    state = asyncio.run(run_behind(program, branch, backend=ft.Fake(script), sampling=None, arguments={}))
    return StoredRun(*store_state(state, state.ret_value), Usage(5, 1, 2))


def test_a_generation_is_one_operation_behind_the_branch() -> None:
    sampling = ft.Sampling(max_tokens=3, seed=4, n=2)
    program = program_of(GenerateRequest(branch=BEGUN, sampling=sampling, sample_index=1, name="x", heal=False))
    (op,) = program.ops
    assert op.node.sampling == ft.Sampling(max_tokens=3, seed=5)
    assert op.node.heal is False


def test_a_branch_is_sent_as_a_journal_stores_it() -> None:
    branch = Branch(Branch(BEGUN, Tools("[]")), Generated(" so", (5, 6), 1))
    assert json.dumps(stored_branch(branch), separators=(",", ":")) == store_branch(branch)
    assert stored_branch(None) == []
    assert has_ids(branch)
    assert not has_ids(BEGUN)
    with pytest.raises(ft.UnsupportedError, match="image"):
        stored_branch(Branch(None, Image(b"x")))


def test_ids_come_back_where_the_text_is_the_one_they_spell() -> None:
    kept = run(GenerateRequest(branch=None), {"value": "a b"})
    made = replace(kept, branch=json.dumps([["Generated", "a b", {"$tuple": [7, 8]}, 1]]))
    assert completion_of(GenerateRequest(branch=None), made).segment == Generated("a b", (7, 8), 1)
    other = replace(kept, branch=json.dumps([["Generated", "a", {"$tuple": [7]}, 0]]))
    assert completion_of(GenerateRequest(branch=None), other).segment == Generated("a b")


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
