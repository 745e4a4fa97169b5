"""Comparing runs of tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forktree.backend.cache.prefix import count_common


@given(st.lists(st.integers(0, 2), max_size=90), st.lists(st.integers(0, 2), max_size=90), st.data())
def test_count_common_is_the_plain_count(a, b, data):
    shared = data.draw(st.lists(st.integers(0, 2), max_size=200))
    a, b = shared + a, [7, *shared, *b]
    limit = data.draw(st.integers(0, min(len(a), len(b) - 1)))
    expected = 0
    while expected < limit and a[expected] == b[expected + 1]:
        expected += 1
    assert count_common(a, 0, b, 1, limit) == expected


def test_count_common_finds_a_difference_at_every_place():
    tokens = list(range(200))
    for place in range(200):
        other = [*tokens[:place], -1, *tokens[place + 1 :]]
        assert count_common(tokens, 0, other, 0, 200) == place
