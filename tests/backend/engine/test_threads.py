"""How many threads compute: all while nobody disturbs, fewer where that is faster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forktree.backend.engine.threads import ThreadChoice, sizes_of


def run(choice: ThreadChoice, passes: int, pace: Callable[[int], float], share: float) -> list[int]:
    """The sizes that were used; `pace` says how slow a pass with so many threads is."""
    sizes = []
    for _ in range(passes):
        sizes.append(choice.size)
        choice.note(pace(choice.size), share)
    return sizes


def free(size: int) -> float:
    return {1: 1.6, 2: 1.0}[size]


def crowded(size: int) -> float:
    return {1: 1.6, 2: 2.8}[size]


@pytest.mark.parametrize(("most", "sizes"), [(1, (1,)), (2, (2, 1)), (3, (3, 2, 1)), (16, (16, 15, 8))])
def test_all_then_all_but_one_then_half(most, sizes):
    assert sizes_of(most) == sizes


def test_nothing_is_tried_while_the_thread_computes_all_the_time():
    assert set(run(ThreadChoice(2), 2000, free, share=0.98)) == {2}


def test_beside_a_busy_thread_one_is_left_out():
    choice = ThreadChoice(2)
    sizes = run(choice, 400, crowded, share=0.5)
    assert choice.size == 1
    assert sizes.count(2) < 50


def test_what_is_not_faster_is_given_up_and_tried_ever_more_seldom():
    choice = ThreadChoice(2)
    first, later = run(choice, 300, free, share=0.5), run(choice, 3000, free, share=0.5)
    assert first.count(1) > 0
    assert later.count(1) / len(later) < 0.04


def test_all_come_back_when_the_busy_one_has_gone():
    choice = ThreadChoice(2)
    run(choice, 400, crowded, share=0.5)
    sizes = run(choice, 400, free, share=0.98)
    assert choice.size == 2
    assert sizes[-1] == 2


def test_one_bad_pass_decides_nothing():
    choice = ThreadChoice(2)
    run(choice, 100, free, share=0.98)
    choice.note(50.0, 0.05)
    assert set(run(choice, 100, free, share=0.98)) == {2}


def test_one_thread_is_no_choice():
    assert set(run(ThreadChoice(1), 200, lambda size: 1.0, share=0.2)) == {1}
