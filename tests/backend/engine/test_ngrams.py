"""Where the end of a text stands elsewhere, by hand and against a plain search."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.engine.ngrams import Match, TokenText


def test_the_last_of_the_longest_matches_is_found():
    text = TokenText([1, 2, 3, 4, 9, 2, 3, 5, 8, 2, 3, 6])
    assert text.find([7, 2, 3]) == Match(2, 11)
    assert text.find([9, 2, 3]) == Match(3, 7)
    assert text.find([1, 2, 3]) == Match(3, 3)


def test_one_equal_token_is_no_match_and_something_has_to_follow():
    text = TokenText([1, 2, 3, 5, 3])
    assert text.find([9, 3]) is None
    assert text.find([5, 3]) is None
    assert text.find([3]) is None


def test_a_text_is_searched_as_far_as_it_has_grown():
    ids = [1, 2]
    text = TokenText(ids)
    assert text.find(ids) is None
    ids += [3, 1, 2]
    assert text.find(ids) == Match(2, 2)


def test_half_a_token_and_half_of_the_next_are_no_match():
    """In bytes, the ids 0x01000000 and 0x00000001 side by side hold others across their border."""
    text = TokenText([0x01000000, 1, 0x01000000, 1, 5])
    assert text.find([0, 0x0101]) is None
    assert text.find([0x01000000, 1]) == Match(2, 4)


def test_what_repeats_itself_is_read_on():
    text = TokenText([5, 6, 7])
    assert text.read(1, 5) == [6, 7, 6, 7, 6]
    assert text.read(0, 2) == [5, 6]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), min_size=2, max_size=20))
def test_a_match_is_as_long_as_it_says(ids, tail):
    found = TokenText(ids).find(tail)
    ends = [end for end in range(2, len(ids)) if ids[end - 2 : end] == tail[-2:]]
    if not ends:
        assert found is None
        return
    assert found is not None
    assert found.end in ends[-6:]
    assert ids[found.end - found.length : found.end] == tail[-found.length :]
    lengths = [
        max(size for size in range(2, min(16, end, len(tail)) + 1) if ids[end - size : end] == tail[-size:])
        for end in ends[-6:]
    ]
    assert found.length == max(lengths)
