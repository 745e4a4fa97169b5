"""What is held goes last, goes all the same when nothing else is left, and is let go with its owner."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.cache.holds import Holds
from forktree.backend.cache.pages import PageAllocator
from forktree.backend.cache.radix import RadixCache


class Pool:
    def __init__(self, num_pages: int = 16, page_size: int = 2) -> None:
        self.allocator = PageAllocator(num_pages)
        self.tree = RadixCache(self.allocator, page_size)
        self.holds = Holds(self.tree)

    def store(self, ids: list[int]) -> None:
        pages = self.allocator.alloc(-(-len(ids) // self.tree.page_size))
        if pages is None:
            self.tree.evict(self.allocator.num_pages)
            pages = self.allocator.alloc(-(-len(ids) // self.tree.page_size))
        assert pages is not None
        self.tree.insert("", ids, len(ids), pages, 0)

    def has(self, ids: list[int]) -> bool:
        return self.tree.match("", ids, len(ids)) == len(ids)


A, B, C = [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]


def test_what_is_held_is_evicted_after_all_that_is_not_though_it_was_used_longest_ago():
    pool = Pool()
    for ids in (A, B, C):
        pool.store(ids)
    pool.holds.add(1, "", A, 4)
    pool.tree.evict(4)
    assert [pool.has(ids) for ids in (A, B, C)] == [True, False, False]
    pool.tree.evict(1)
    assert not pool.has(A)
    pool.holds.release(1)
    pool.tree.check()


def test_a_trunk_stays_while_one_of_its_branches_is_held():
    pool = Pool()
    pool.store([*A, 5, 5])
    pool.store([*A, 6, 6])
    pool.holds.add(1, "", [*A, 5, 5], 6)
    pool.store(B)
    pool.tree.evict(3)
    assert pool.has([*A, 5, 5])
    assert not pool.has([*A, 6, 6])
    assert not pool.has(B)


def test_a_released_owner_holds_nothing_and_never_again():
    pool = Pool()
    pool.store(A)
    pool.store(B)
    pool.holds.add(1, "", A, 4)
    pool.holds.release(1)
    pool.holds.add(1, "", A, 4)
    assert pool.holds.num_owners == 0
    pool.tree.evict(1)
    assert not pool.has(A)
    assert pool.has(B)


def test_a_longer_hold_takes_the_place_of_the_one_that_it_covers():
    pool = Pool()
    pool.store(A)
    pool.holds.add(1, "", A, 4)
    pool.store([*A, 5, 5])
    pool.holds.add(1, "", [*A, 5, 5], 6)
    root = pool.tree.namespaces[""]
    assert root.num_holds == 1
    pool.holds.release(1)
    assert root.num_holds == 0


_IDS = st.lists(st.integers(1, 2), min_size=1, max_size=8)
_STEPS = st.one_of(
    st.tuples(st.just("store"), _IDS),
    st.tuples(st.just("hold"), st.integers(1, 3), _IDS),
    st.tuples(st.just("release"), st.integers(1, 3)),
    st.tuples(st.just("evict"), st.integers(1, 6)),
    st.tuples(st.just("lock"), _IDS),
    st.tuples(st.just("unlock")),
)


@settings(max_examples=120, deadline=None)
@given(steps=st.lists(_STEPS, max_size=30), page_size=st.sampled_from([1, 2, 4]))
def test_holds_of_nodes_that_split_and_die_are_counted_exactly(steps, page_size):
    pool, locks = Pool(64, page_size), []
    for step in steps:
        match step:
            case ("store", ids):
                pool.store(ids)
            case ("hold", owner, ids):
                pool.holds.add(owner, "", ids, len(ids))
            case ("release", owner):
                pool.holds.release(owner)
            case ("evict", num_pages):
                pool.tree.evict(num_pages)
            case ("lock", ids):
                locks.append(pool.tree.acquire("", ids, len(ids)).node)
            case ("unlock",) if locks:
                pool.tree.release(locks.pop())
        pool.tree.check()
    for owner in (1, 2, 3):
        pool.holds.release(owner)
    assert all(
        node.num_holds == 0 for root in pool.tree.namespaces.values() for node in [root, *root.children.values()]
    )
    while locks:
        pool.tree.release(locks.pop())
    pool.tree.evict(64)
    assert pool.allocator.num_free == 64
