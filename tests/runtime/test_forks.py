"""Forking, joining and copying."""

from __future__ import annotations

import asyncio

import pytest

from forktree.backend.fake import Fake
from forktree.lang.errors import BackendError, LanguageError, ServerError
from forktree.lang.expressions import gen, user
from forktree.runtime import protocol
from forktree.runtime.function import function


def echo(request) -> str:
    """The last word of the prompt, in brackets."""
    return f"[{request.prompt.split()[-1] if request.prompt.split() else ''}]"


def test_branches_begin_with_the_trunk_and_go_on_alone() -> None:
    @function
    def program(s):
        s += "trunk "
        forks = s.fork(2)
        forks[0] += "left" + gen("x")
        forks[1] += "right" + gen("x")
        s += "still alone"
        return forks[0].text(), forks[1].text()

    state = program.run(backend=Fake(echo))
    assert state.ret_value == ("trunk left[left]", "trunk right[right]")
    assert state.text() == "trunk still alone"


def test_branches_share_one_trunk_node_and_a_mark_closes_it() -> None:
    fake = Fake(echo)

    @function
    def program(s):
        s += "trunk"
        forks = s.fork(3)
        forks += gen("x")

    program.run(backend=fake)
    tips = {id(request.branch) for request in fake.requests}
    assert len(tips) == 1
    assert fake.requests[0].branch.segments() == [protocol.Text("trunk"), protocol.ForkMark()]


@pytest.mark.parametrize("size", [0, -1, []])
def test_a_fork_needs_a_branch(size) -> None:
    @function
    def program(s):
        s.fork(size)

    with pytest.raises(ValueError, match="at least one branch"):
        program.run(backend=Fake([]))


def test_fork_before_any_text_sends_no_empty_prompt() -> None:
    fake = Fake(echo)

    @function
    def program(s):
        forks = s.fork(3)
        for i, branch in enumerate(forks):
            branch += f"{i}:"
            branch += gen("x", max_tokens=2)
        forks.join()
        s += s["x"][0] + s["x"][2]

    state = program.run(backend=fake)
    assert state.text() == "[0:][2:]"
    assert all(request.prompt for request in fake.requests)


def test_a_pending_generation_of_the_trunk_is_finished_before_branches_go_on() -> None:
    fake = Fake(["one", "two", "three"])
    fake.hold()

    @function
    def program(s):
        s += "a " + gen("x")
        left, right = s.fork(2)
        left += " l" + gen("l")
        right += " r" + gen("r")
        fake.release()
        return left.text(), right.text(), left["x"]

    left, right, x = program.run(backend=fake).ret_value
    assert (x, {left[:7], right[:7]}) == ("one", {"a one l", "a one r"})


def test_unused_branches_cost_no_request() -> None:
    fake = Fake(echo)

    @function
    def program(s):
        s += "a"
        forks = s.fork(5)
        forks[3] += gen("x")

    program.run(backend=fake)
    assert fake.num_requests == 1


def test_a_fork_inside_a_fork_sees_both_trunks() -> None:
    @function
    def program(s):
        s += "a "
        (outer,) = s.fork(1)
        outer += "b "
        inner = outer.fork(2)
        inner += lambda i: f"{i}" + gen("x")
        outer.join(*inner)
        s.join(outer)
        return s["x"], inner[1].text()

    assert program.run(backend=Fake(echo)).ret_value == (["[0]", "[1]"], "a b 1[1]")


def test_a_list_gives_each_branch_its_beginning() -> None:
    @function
    def program(s):
        forks = s.fork(["red ", "blue "])
        forks += gen("x")
        forks.join()
        return s["x"]

    assert program.run(backend=Fake(echo)).ret_value == ["[red]", "[blue]"]


@pytest.mark.parametrize(
    ("appended", "texts"),
    [
        ("same", ["same", "same"]),
        (["p", "q"], ["p", "q"]),
        (lambda i: str(i), ["0", "1"]),
        (user("u"), ["u", "u"]),
    ],
)
def test_appending_to_a_group_takes_text_lists_functions_and_expressions(appended, texts) -> None:
    @function
    def program(s):
        forks = s.fork(2)
        forks += appended
        return [branch.text() for branch in forks]

    assert program.run(backend=Fake([])).ret_value == texts


def test_a_list_of_another_length_is_an_error() -> None:
    @function
    def program(s):
        forks = s.fork(2)
        forks += ["a", "b", "c"]

    with pytest.raises(LanguageError, match="3 items for 2 branches"):
        program.run(backend=Fake([]))


def test_a_group_is_iterable_indexable_and_has_a_length() -> None:
    @function
    def program(s):
        forks = s.fork(3)
        forks[-1] += "last"
        return len(forks), [branch.text() for branch in forks], len(forks[1:])

    assert program.run(backend=Fake([])).ret_value == (3, ["", "", "last"], 2)


# Joining


def test_join_gives_a_single_value_as_itself_and_several_as_a_list_in_branch_order() -> None:
    @function
    def program(s):
        a, b = s.fork(2)
        a += gen("both") + gen("only_a")
        b += gen("both")
        s.join(a, b)
        return s["both"], s["only_a"]

    fake = Fake({"both": ["1", "2"], "only_a": "3"})
    both, only_a = program.run(backend=fake).ret_value
    assert sorted(both) == ["1", "2"]
    assert only_a == "3"


def test_the_group_s_join_always_gives_lists() -> None:
    @function
    def program(s):
        forks = s.fork(2)
        forks[0] += gen("one")
        forks += gen("two")
        forks.join()

    assert program.run(backend=Fake({"one": "a", "two": "b"})).variables() == {"one": ["a"], "two": ["b", "b"]}


def test_a_group_joins_at_the_end_of_its_block() -> None:
    @function
    def program(s):
        with s.fork(2) as forks:
            forks += gen("x")
        return s["x"]

    assert program.run(backend=Fake({"x": "v"})).ret_value == ["v", "v"]


def test_a_name_that_the_parent_already_has_is_an_error() -> None:
    @function
    def program(s):
        s["x"] = 1
        (branch,) = s.fork(1)
        branch += gen("x")
        s.join(branch)

    with pytest.raises(LanguageError, match="'x', which the state that they join already has"):
        program.run(backend=Fake(["a"]))


def test_branches_see_the_trunk_s_variables_and_joining_does_not_bring_those_back() -> None:
    @function
    def program(s):
        s += gen("x")
        forks = s.fork(2)
        seen = [branch["x"] for branch in forks]
        forks.join()
        return seen, s["x"]

    assert program.run(backend=Fake(["v"])).ret_value == (["v", "v"], "v")


def test_branches_see_how_the_trunk_s_variables_were_made() -> None:
    @function
    def program(s):
        s += "one two" + gen("x")
        (branch,) = s.fork(1)
        return branch.meta("x").prompt_tokens

    assert program.run(backend=Fake(["v"])).ret_value == 2


def test_join_does_not_wait() -> None:
    fake = Fake({"x": "v"})
    fake.hold()

    @function
    def program(s):
        forks = s.fork(2)
        forks += gen("x")
        forks.join()
        fake.release()
        return s["x"]

    assert program.run(backend=fake).ret_value == ["v", "v"]


def test_joining_with_text_appends_what_the_branches_wrote() -> None:
    @function
    def program(s):
        s += "a "
        forks = s.fork(2)
        forks += lambda i: f"{i} " + gen("x") + " "
        forks.join("concate_and_append")
        s += "end"

    assert program.run(backend=Fake(echo)).text() == "a 0 [0] 1 [1] end"


def test_joining_something_else_is_an_error() -> None:
    @function
    def program(s):
        s.join("branch")

    with pytest.raises(LanguageError, match="join takes branches"):
        program.run(backend=Fake([]))


def test_a_copy_goes_its_own_way_and_joins_as_a_block() -> None:
    @function
    def program(s):
        s += "a "
        with s.copy() as other:
            other += "b" + gen("x")
        return s["x"], s.text()

    assert program.run(backend=Fake(echo)).ret_value == ("[b]", "a ")


# Failure


def failing(request) -> str:
    if request.name == "bad":
        raise ServerError("down")
    return "fine"


def test_a_failed_branch_cancels_its_siblings_and_nothing_hangs() -> None:
    fake = Fake(failing)

    @function
    def program(s):
        bad, slow = s.fork(2)
        fake.hold()
        slow += gen("slow") + gen("slower")
        bad += gen("bad")
        fake.release()
        s.join(bad, slow)
        return s["bad"]

    with pytest.raises(ServerError, match="down"):
        program.run(backend=fake)


def test_a_sibling_that_was_cancelled_raises_the_reason() -> None:
    async def script(request):
        if request.name == "slow":
            await asyncio.Event().wait()  # for ever
        return failing(request)

    fake = Fake(script)

    @function
    def program(s):
        bad, slow = s.fork(2)
        slow += gen("slow")
        bad += gen("bad")
        return slow["slow"]

    with pytest.raises(ServerError, match="down"):
        program.run(backend=fake)
    assert fake.num_cancelled == 1


def test_siblings_go_on_when_told_so() -> None:
    @function
    def program(s):
        bad, good = s.fork(2, on_error="continue")
        bad += gen("bad")
        with pytest.raises(ServerError):
            bad["bad"]
        good += gen("good")
        return good["good"]

    assert program.run(backend=Fake(failing)).ret_value == "fine"


def test_a_list_of_joined_values_raises_the_error_of_the_one_that_failed() -> None:
    @function
    def program(s):
        forks = s.fork(2)
        forks += ["ok", "no"]
        forks += gen("x")
        forks.join()
        return s["x"]

    def script(request):
        if request.prompt.endswith("no"):
            raise RuntimeError("boom")
        return "v"

    with pytest.raises(BackendError, match="boom"):
        program.run(backend=Fake(script))
