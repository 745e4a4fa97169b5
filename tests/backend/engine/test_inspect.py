"""What the engine shows of itself is what it did and holds."""

from __future__ import annotations

from engine_fakes import Driver, FakeRunner

from forktree.backend.cache.pages import PageAllocator
from forktree.backend.cache.radix import RadixCache
from forktree.backend.engine.inspect import CachedNode, cached_tree


def make_tree(page_size: int = 2) -> tuple[RadixCache, PageAllocator]:
    allocator = PageAllocator(64)
    return RadixCache(allocator, page_size), allocator


def store(tree: RadixCache, allocator: PageAllocator, ids: list[int]) -> None:
    pages = allocator.alloc(-(-len(ids) // tree.page_size))
    assert pages is not None
    tree.insert("", ids, len(ids), pages, 0)


def test_an_empty_cache_shows_nothing() -> None:
    assert cached_tree(make_tree()[0]) == {}


def test_a_fork_is_a_node_with_its_trunk_above() -> None:
    tree, allocator = make_tree()
    store(tree, allocator, [1, 2, 3, 4])
    store(tree, allocator, [1, 2, 5, 6])
    (trunk,) = cached_tree(tree)[""]
    assert trunk == CachedNode((1, 2), 1, 0, (CachedNode((3, 4), 1, 0, ()), CachedNode((5, 6), 1, 0, ())))


def test_a_tree_deeper_than_the_recursion_limit_is_shown() -> None:
    allocator = PageAllocator(4000)
    tree = RadixCache(allocator, 1)
    for length in range(1200, 0, -1):
        store(tree, allocator, [0] * length + [1])
    depth, nodes = 0, cached_tree(tree)[""]
    while nodes:
        depth, nodes = depth + 1, next((n.children for n in nodes if n.children), ())
    assert depth > 1000


def test_the_timeline_adds_up_to_the_counters() -> None:
    driver = Driver(FakeRunner())
    for start in range(3):
        driver.submit(range(start, start + 9), max_tokens=4)
    driver.drain()
    steps, stats = driver.core.timeline(), driver.core.stats()
    assert [step.index for step in steps] == list(range(1, stats.num_steps + 1))
    assert sum(step.prefill_tokens for step in steps) == stats.prefill_tokens
    assert sum(step.decode_tokens for step in steps) == stats.decode_tokens
    assert all(step.num_sequences >= 1 for step in steps)
