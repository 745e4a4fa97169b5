"""Rows that begin alike start one after another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forktree as ft
from forktree.backend.fake import Fake
from forktree.runtime.order import depth_first, paths_by_values


@ft.function
def about(s, document, question):
    s += f"{document} Q: {question}" + ft.gen("x")
    return s["x"]


ROWS = [{"document": f"document {i % 3}", "question": f"q{i}"} for i in range(9)]


def started(fake: Fake) -> list[str]:
    return [request.prompt.split()[1] for request in fake.requests]


@pytest.mark.parametrize("program", [about, about.trace()], ids=["body", "traced"])
@pytest.mark.parametrize("form", [list, lambda rows: [tuple(row.values()) for row in rows]], ids=["dicts", "tuples"])
def test_rows_of_one_document_start_together_and_results_keep_the_rows_order(program, form) -> None:
    fake = Fake(lambda request: request.prompt)
    ft.use(fake)
    try:
        results = program.map(form(ROWS), concurrency=1)
    finally:
        ft.use(None)
    assert started(fake) == ["0"] * 3 + ["1"] * 3 + ["2"] * 3
    assert [result.index for result in results] == list(range(9))
    assert [result.value.split()[-1] for result in results] == [row["question"] for row in ROWS]


def test_where_each_result_waits_for_its_turn_rows_start_as_they_come() -> None:
    fake = Fake({"x": "a"})
    list(about.using(backend=fake).imap(ROWS, concurrency=1))
    about.using(backend=fake).map(iter(ROWS), concurrency=1)
    about.using(backend=fake).map(ROWS, concurrency=1, on_error="raise")
    assert started(fake) == [f"{i % 3}" for i in range(9)] * 3


def test_the_text_that_repeats_most_decides_and_not_the_place_of_the_argument() -> None:
    rows = [{"style": "ab"[i % 2], "document": f"a long document, no. {i // 2}"} for i in range(4)]
    paths = paths_by_values(rows)
    assert [path[0][0] for path in paths] == ["document"] * 4
    assert depth_first(paths) == [0, 1, 2, 3]


def test_values_that_are_no_plain_data_move_nothing() -> None:
    shared: list[int] = []
    assert depth_first(paths_by_values([{"a": shared}, {"a": {}}, {"a": shared}])) == [0, 1, 2]


def test_a_row_that_does_not_fit_fails_as_its_result() -> None:
    results = about.trace().map(
        [{"document": "d", "backend": Fake({"x": "a"})}, *[{**ROWS[0], "backend": Fake({"x": "a"})}]]
    )
    assert [result.ok for result in results] == [False, True]


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=3).map(tuple), max_size=12))
def test_every_row_comes_once_and_those_of_one_beginning_stand_together(paths) -> None:
    order = depth_first(paths)
    assert sorted(order) == list(range(len(paths)))
    for length in (1, 2, 3):
        heads = [paths[index][:length] for index in order if len(paths[index]) >= length]
        runs = [head for index, head in enumerate(heads) if index == 0 or heads[index - 1] != head]
        assert len(runs) == len(set(runs))


@given(st.lists(st.integers(), unique=True, max_size=12))
def test_rows_that_share_nothing_keep_their_places(values) -> None:
    assert depth_first(paths_by_values([{"a": value} for value in values])) == list(range(len(values)))


async def test_an_awaited_map_starts_them_together_too() -> None:
    fake = Fake({"x": "a"})
    results = await about.using(backend=fake).amap(ROWS, concurrency=1)
    assert started(fake) == ["0"] * 3 + ["1"] * 3 + ["2"] * 3
    assert [result.index for result in results] == list(range(9))
