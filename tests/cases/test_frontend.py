"""The language over the real engine, in the corners where other frontends hung, mixed up rows or kept state."""

from __future__ import annotations

import threading

import pytest

import forktree as ft
from forktree.backend.local import Local

# --- forks -----------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_branches_without_any_trunk_run_on_the_real_engine(wild: Local) -> None:
    @ft.function
    def program(s):
        forks = s.fork(3)
        for i, branch in enumerate(forks):
            branch += f"{i}:"
            branch += ft.gen("x", max_tokens=2)
        forks.join()
        s += s["x"][0] + s["x"][2]

    state = program.run(backend=wild)
    assert state.text() == state["x"][0] + state["x"][2]
    assert len(state["x"]) == 3


@pytest.mark.model
@pytest.mark.parametrize("size", [1, 2])
def test_branches_begin_behind_a_value_that_was_still_pending(wild: Local, size) -> None:
    @ft.function
    def program(s):
        s += "a " + ft.gen("x", max_tokens=3)
        forks = s.fork(size)
        forks += lambda i: f" b{i}" + ft.gen("y", max_tokens=2)
        s.join(*forks)
        return [branch.text() for branch in forks], [branch.tokens() for branch in forks]

    state = program.run(backend=wild)
    texts, ids = state.ret_value
    values = state["y"] if size > 1 else [state["y"]]
    assert texts == [f"a {state['x']} b{i}{values[i]}" for i in range(size)]
    assert all(branch[: len(state.tokens()) - 1] == state.tokens()[:-1] for branch in ids)


# --- streams ---------------------------------------------------------------------------------------------------


@ft.function
def branching(s):
    s += "Pick " + ft.select("kind", ["apple", "pear"])
    if s["kind"] == "apple":
        s += ft.gen("why_a", max_tokens=5)
    else:
        s += ft.gen("why_p", max_tokens=5)


@pytest.mark.model
@pytest.mark.timeout(60)
def test_every_name_of_a_branching_program_can_be_streamed(wild: Local) -> None:
    kind = branching.run(backend=wild)["kind"]
    taken, other = ("why_a", "why_p") if kind == "apple" else ("why_p", "why_a")
    assert list(branching.stream(backend=wild).text_iter("kind")) == [kind]
    state = branching.stream(backend=wild)
    assert "".join(state.text_iter(taken)) == state[taken]
    state = branching.stream(backend=wild)
    assert "".join(state.text_iter()) == state.text()
    for name in (other, "typo"):
        with pytest.raises(ft.UndefinedVariableError, match=name):
            list(branching.stream(backend=wild).text_iter(name))
    finished = branching.run(backend=wild)
    assert "".join(finished.text_iter(taken)) == finished[taken]


@pytest.mark.model
@pytest.mark.timeout(60)
def test_leaving_streams_leaves_no_thread(wild: Local) -> None:
    @ft.function
    def endless(s):
        s += "Once" + ft.gen("v", max_tokens=2000, ignore_eos=True)
        s["v"]

    for _ in endless.stream(backend=wild).text_iter("v"):
        break
    before = threading.active_count()
    for _ in range(10):
        for _ in endless.stream(backend=wild).text_iter("v"):
            break
    branching.run(backend=wild)
    assert threading.active_count() <= before + 2


# --- many rows -------------------------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.parametrize("concurrency", [1, 4, None, 1000])
def test_rows_keep_their_places_and_each_failure_is_its_own(wild: Local, concurrency) -> None:
    @ft.function
    def program(s, q):
        if q in ("7", "30"):
            raise ValueError(f"row {q}")
        s += f"Q{q}" + ft.gen("a", max_tokens=4, temperature=1.0)
        return s["a"]

    rows = [{"q": str(i)} for i in range(50)]
    rows[12]["unknown"] = "?"
    results = program.using(backend=wild).map(rows, concurrency=concurrency)
    assert [result.row for result in results] == rows
    failed = {result.index: type(result.error) for result in results if not result.ok}
    assert failed == {7: ValueError, 30: ValueError, 12: TypeError}
    good = [result for result in results if result.ok]
    assert all(result.state.text() == f"Q{result.index}{result.value}" for result in good)
    assert len({result.value for result in good}) > 40


# --- functions -------------------------------------------------------------------------------------------------


def test_each_run_evaluates_the_body_again() -> None:
    class Agent:
        @ft.function
        def asks(self, s, q, seen=None):
            s += q + ft.gen("a")
            return [*(seen or []), s["a"]]

    agent, fake = Agent(), ft.Fake(["1", "2", "3"])
    runs = [agent.asks.run("q", backend=fake).ret_value for _ in range(3)]
    assert runs == [["1"], ["2"], ["3"]]


def test_bound_arguments_that_the_body_copies_are_not_shared_between_runs() -> None:
    @ft.function
    def collects(s, item, bag=()):
        own = [*bag, item]
        s += f"{own}"
        return own

    bound = collects.bind(bag=["x"])
    assert [bound.run(i, backend=ft.Fake([])).ret_value for i in (1, 2)] == [["x", 1], ["x", 2]]
    assert collects.run(3, backend=ft.Fake([])).ret_value == [3]


@pytest.mark.model
@pytest.mark.parametrize(
    "method", ["token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"]
)
def test_every_select_method_works_behind_a_prompt_that_ends_in_two_equal_tokens(wild: Local, method) -> None:
    @ft.function
    def program(s):
        s += "The end.\n\n" + ft.select("x", ["yes", "no", "not at all"], method=method)
        return s["x"]

    state = program.run(backend=wild)
    meta = state.meta("x")
    assert state.ret_value in ("yes", "no", "not at all")
    assert sum(meta.probabilities.values()) == pytest.approx(1.0)
    assert state.text() == "The end.\n\n" + state.ret_value


@pytest.mark.model
def test_a_seeded_row_gives_the_same_alone_and_in_a_map_and_branches_draw_apart(wild: Local) -> None:
    @ft.function
    def program(s, q):
        s += q + ft.gen("x", max_tokens=8, temperature=1.0)
        branches = s.fork(3)
        branches += ft.gen("y", max_tokens=8, temperature=1.0)
        branches.join()
        return s["x"], s["y"]

    rows = [{"q": q} for q in ("Once", "upon", "a", "time")]
    mapped = [result.value for result in program.using(backend=wild, seed=5).map(rows)]
    assert mapped == [program.run(**row, backend=wild, seed=5).ret_value for row in rows]
    assert mapped == [program.trace().run(**row, backend=wild, seed=5).ret_value for row in rows]
    assert all(len(set(branches)) > 1 for _, branches in mapped)
