"""The ladder of captured sizes, with values in place of graphs."""

from __future__ import annotations

import pytest

from forktree.backend.model.cuda_graphs import LADDERS, GraphLadder, Size, round_up


def test_a_size_is_rounded_up_on_each_ladder() -> None:
    assert round_up(Size(1, 1, 1)) == Size(1, 64, 64)
    assert round_up(Size(3, 64, 65)) == Size(4, 64, 256)
    assert round_up(Size(17, 65, 1000)) == Size(32, 256, 1024)
    assert round_up(Size(256, 4096, 16384)) == Size(256, 4096, 16384)


@pytest.mark.parametrize("needed", [Size(257, 1, 1), Size(1, 4097, 1), Size(1, 1, 16385)])
def test_what_exceeds_a_ladder_has_no_size(needed: Size) -> None:
    assert round_up(needed) is None
    assert GraphLadder(str).fit(needed) is None


def test_a_size_is_made_once() -> None:
    made: list[Size] = []

    def make(size: Size) -> Size:
        made.append(size)
        return size

    ladder = GraphLadder(make)
    for rows in (3, 4, 3, 8):
        ladder.fit(Size(rows, 1, 1))
    assert [size.rows for size in made] == [4, 8]


def test_the_one_used_longest_ago_goes_first() -> None:
    made: list[int] = []

    def make(size: Size) -> Size:
        made.append(size.rows)
        return size

    ladder = GraphLadder(make, most=2)
    for rows in (1, 2, 1, 4, 1, 2):
        ladder.fit(Size(rows, 1, 1))
    assert made == [1, 2, 4, 2]
    assert len(ladder) == 2


def test_every_batch_up_to_the_largest_finds_a_rung() -> None:
    for rows in range(1, LADDERS.rows[-1] + 1):
        size = round_up(Size(rows, 1, 1))
        assert size is not None
        assert rows <= size.rows < 2 * rows + 16
