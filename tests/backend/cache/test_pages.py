"""The free list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forktree.backend.cache.pages import PageAllocator


def test_alloc_hands_out_each_page_once():
    pages = PageAllocator(5)
    assert pages.alloc(2) == [0, 1]
    assert sorted(pages.alloc(3)) == [2, 3, 4]
    assert pages.num_free == 0


def test_alloc_beyond_what_is_free_takes_nothing():
    pages = PageAllocator(3)
    assert pages.alloc(4) is None
    assert pages.num_free == 3
    assert pages.alloc(0) == []


def test_a_page_freed_last_comes_first():
    pages = PageAllocator(4)
    pages.alloc(4)
    pages.free([2])
    pages.free([3])
    assert pages.alloc(1) == [3]


def test_a_page_cannot_be_freed_twice():
    pages = PageAllocator(2)
    pages.alloc(1)
    pages.free([0])
    with pytest.raises(AssertionError, match="page 0 is freed twice"):
        pages.free([0])


def test_a_pool_needs_a_page():
    with pytest.raises(ValueError, match="at least 1 page, not 0"):
        PageAllocator(0)


@given(st.integers(1, 12), st.lists(st.integers(0, 13), max_size=20))
def test_free_and_held_pages_always_make_the_pool(num_pages, sizes):
    pages, held = PageAllocator(num_pages), []
    for size in sizes:
        got = pages.alloc(size)
        if got is None:
            pages.free(held)
            held = []
        else:
            held += got
        assert sorted(held + list(pages.free_pages())) == list(range(num_pages))
        assert pages.num_free == num_pages - len(held)
