"""One seed: repeatable, alone and in any batch, and yet no two branches or called programs share their draws."""

from __future__ import annotations

import pytest

import forktree as ft
from forktree.backend.fake import Fake
from forktree.lang.sampling import Sampling, seeded_for


def seeds(fake: Fake) -> list[int | None]:
    return [request.sampling.seed for request in fake.requests]


def answering() -> Fake:
    return Fake({"x": "yes"})


@ft.function
def one(s, q="?"):
    s += q + ft.gen("x")
    return s["x"]


@ft.function
def tree(s):
    s += "trunk" + ft.gen("x")
    branches = s.fork(3)
    branches += ft.gen("x")
    inner = branches[0].fork(2)
    inner += ft.gen("x")
    late = s.copy()
    late += ft.gen("x")
    called = one()
    return called["x"]


def test_a_run_uses_its_seed_as_it_is() -> None:
    fake = answering()
    one.run(backend=fake, seed=7)
    one.using(seed=7).run(backend=fake)
    one.run(backend=fake)
    assert seeds(fake) == [7, 7, None]


def test_a_row_has_the_map_s_seed_or_its_own() -> None:
    """So it draws the same alone; what keeps rows apart is that a draw depends on the prompt too."""
    fake = answering()
    one.using(backend=fake, seed=7).map([{}, {"seed": 1}], concurrency=1)
    assert seeds(fake) == [7, 1]


def test_branches_and_called_programs_draw_apart_and_repeat() -> None:
    first, second = answering(), answering()
    tree.run(backend=first, seed=7)
    tree.run(backend=second, seed=7)
    assert seeds(first)[0] == 7
    assert len(set(seeds(first))) == len(first.requests) == 8
    assert sorted(seeds(first)) == sorted(seeds(second))


def test_a_traced_program_draws_as_its_body_does() -> None:
    by_body, by_data, by_carried = answering(), answering(), answering()
    tree.run(backend=by_body, seed=7)
    tree.trace().run(backend=by_data, seed=7)
    tree.using(seed=7).trace().run(backend=by_carried)
    assert sorted(seeds(by_body)) == sorted(seeds(by_data)) == sorted(seeds(by_carried))


def test_a_seed_of_a_generation_s_own_is_taken_as_it_is() -> None:
    @ft.function
    def program(s):
        branches = s.fork(2)
        branches += ft.gen("x", seed=3)

    fake = answering()
    program.run(backend=fake, seed=7)
    assert seeds(fake) == [3, 3]


def test_without_a_seed_nothing_is_made_up() -> None:
    sampling = Sampling(temperature=1.0)
    assert seeded_for(sampling, "branch", 3) is sampling
    assert seeded_for(None, "branch", 3) is None


@pytest.mark.parametrize("seed", [0, 1, 2**63, -5])
def test_derived_seeds_are_whole_numbers_that_json_carries(seed) -> None:
    found = {seeded_for(Sampling(seed=seed), kind, i).seed for kind in ("branch", "call") for i in range(75)}
    assert len(found) == 150
    assert all(0 <= each < 2**53 for each in found)
