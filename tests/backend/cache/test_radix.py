"""The radix cache, first by hand with pages of four tokens, then against a plain list of sequences."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forktree.backend.cache.pages import PageAllocator
from forktree.backend.cache.radix import Node, Prefix, RadixCache


class Store:
    """A tree, its pool, and what every slot of the pool holds."""

    def __init__(self, num_pages: int = 32, page_size: int = 4) -> None:
        self.size = page_size
        self.allocator = PageAllocator(num_pages)
        self.tree = RadixCache(self.allocator, page_size)
        self.slots = [None] * (num_pages * page_size)

    def put(self, text: str, namespace: str = "") -> bool:
        """Do what a request does: share what is cached, compute the rest, give it all to the tree."""
        ids = [ord(c) for c in text]
        prefix = self.tree.acquire(namespace, ids, len(ids))
        pages = self._fill(prefix, ids)
        if pages is not None:
            self.tree.insert(namespace, ids, len(ids), pages, len(prefix.pages))
        self.tree.release(prefix.node)
        return pages is not None

    def hold(self, text: str, limit: int | None = None) -> Prefix:
        """Lock what is cached of a text."""
        ids = [ord(c) for c in text]
        return self.tree.acquire("", ids, len(ids) if limit is None else limit)

    def _fill(self, prefix: Prefix, ids: list[int]) -> list[int] | None:
        num_new = -(-len(ids) // self.size) - len(prefix.pages)
        self.tree.evict(num_new - self.allocator.num_free)
        fresh = self.allocator.alloc(num_new)
        if fresh is None:
            return None
        if prefix.partial is not None and fresh:
            self._copy(prefix.partial.page, fresh[0], prefix.partial.num_tokens)
        pages = prefix.pages + fresh
        start = len(prefix.pages) * self.size + (prefix.partial.num_tokens if prefix.partial else 0)
        for position in range(start, len(ids)):
            self.slots[pages[position // self.size] * self.size + position % self.size] = ids[position]
        return pages

    def _copy(self, source: int, target: int, num_tokens: int) -> None:
        for i in range(num_tokens):
            self.slots[target * self.size + i] = self.slots[source * self.size + i]

    def read(self, pages: list[int], num_tokens: int) -> str:
        return "".join(chr(self.slots[pages[p // self.size] * self.size + p % self.size]) for p in range(num_tokens))

    def matched(self, text: str, namespace: str = "") -> int:
        return self.tree.match(namespace, [ord(c) for c in text], len(text))

    def drawn(self, namespace: str = "") -> list[str]:
        """The tree as lines: indented tokens, then how many pages the node owns."""
        root = self.tree.namespaces.get(namespace)
        return [] if root is None else list(_draw(root, 0))

    def check(self) -> None:
        cached = self.tree.check()
        assert not cached & self.allocator.free_pages()
        for root in self.tree.namespaces.values():
            self._check_contents(root, "", [])

    def _check_contents(self, node: Node, text: str, pages: list[int]) -> None:
        text, pages = text + "".join(map(chr, node.tokens)), pages + node.pages
        num_held = len(text) if not node.children else len(text) // self.size * self.size
        assert self.read(pages, num_held) == text[:num_held]
        for child in node.children.values():
            self._check_contents(child, text, pages)


def _draw(node, depth):
    for child in node.children.values():
        yield "  " * depth + "".join(map(chr, child.tokens)) + f" {len(child.pages)}"
        yield from _draw(child, depth + 1)


# --- by hand -----------------------------------------------------------------------------------------------


def test_nodes_branch_between_any_two_tokens_and_own_the_pages_of_the_table():
    store = Store()
    store.put("abcdefgh")
    store.put("abcdefxyz")
    assert store.drawn() == ["abcd 1", "  ef 0", "    gh 1", "    xyz 2"]  # a lock cut at the page's border
    store.check()


def test_a_split_copies_no_page():
    store = Store()
    store.put("abcdefgh")
    num_free = store.allocator.num_free
    prefix = store.hold("abcdXX")
    assert store.drawn() == ["abcd 1", "  efgh 1"]
    assert store.allocator.num_free == num_free
    assert len(prefix.pages) == 1


def test_a_match_is_exact_to_the_token():
    store = Store()
    store.put("abcdefgh")
    assert [store.matched(text) for text in ("", "x", "a", "abcx", "abcdefgx", "abcdefghij")] == [0, 0, 1, 3, 7, 8]


def test_a_match_that_ends_inside_a_page_names_the_page_to_copy():
    store = Store()
    store.put("abcdefgh")
    prefix = store.tree.acquire("", [ord(c) for c in "abcdefXY"], 8)
    assert len(prefix.pages) == 1
    assert prefix.partial.num_tokens == 2
    assert store.read([*prefix.pages, prefix.partial.page], 6) == "abcdef"


def test_a_page_split_between_nodes_is_found_in_any_child():
    store = Store(page_size=4)
    for text in ("abcdefgh", "abcdefxy", "abcdeq", "abcde"):
        store.put(text)
    assert store.drawn() == ["abcd 1", "  e 0", "    f 0", "      gh 1", "      xy 1", "    q 1"]
    prefix = store.hold("abcdefzz")
    assert store.read([*prefix.pages, prefix.partial.page], 6) == "abcdef"
    store.check()


def test_going_on_from_an_unfilled_page_gives_the_old_page_back():
    store = Store()
    store.put("abcdef")
    assert store.allocator.num_free == 30
    store.put("abcdefghi")
    assert store.drawn() == ["abcd 1", "  ef 0", "    ghi 2"]
    assert store.allocator.num_free == 29
    store.check()


def test_the_limit_caps_a_match():
    store = Store()
    store.put("abcdefgh")
    prefix = store.hold("abcdefgh", limit=7)
    assert len(prefix.pages) == 1
    assert prefix.partial.num_tokens == 3


def test_inserting_what_is_known_frees_the_duplicates():
    store = Store()
    store.put("abcdefgh")
    pages = store.allocator.alloc(2)
    store.tree.insert("", [ord(c) for c in "abcdefgh"], 8, pages, 0)
    assert store.allocator.num_free == 30
    store.check()


def test_namespaces_share_nothing():
    store = Store()
    store.put("abcd", "one")
    assert store.matched("abcd", "two") == 0
    store.put("abcd", "two")
    assert store.tree.num_pages == 2
    store.check()


def test_match_leaves_no_trace():
    store = Store()
    assert store.matched("abc", "new") == 0
    assert not store.tree.namespaces


def test_evict_takes_the_least_recently_used_leaf_first():
    store = Store()
    store.put("aaaa")
    store.put("bbbb")
    store.put("cccc")
    store.hold("aaaa")  # used last, and locked
    assert store.tree.evict(1) == 1
    assert [store.matched(text) for text in ("aaaa", "bbbb", "cccc")] == [4, 0, 4]


def test_reading_and_storing_again_are_uses():
    store = Store()
    for text in ("aaaa", "bbbb", "cccc"):
        store.put(text)
    store.tree.release(store.hold("aaaa").node)
    store.tree.insert("", [ord("b")] * 4, 4, store.allocator.alloc(1), 0)
    store.tree.evict(1)
    assert [store.matched(text) for text in ("aaaa", "bbbb", "cccc")] == [4, 4, 0]
    store.tree.evict(1)
    assert [store.matched(text) for text in ("aaaa", "bbbb")] == [0, 4]


def test_evict_never_frees_a_locked_page():
    store = Store()
    store.put("abcdefgh")
    prefix = store.hold("abcdxxxx")
    assert store.tree.evict(100) == 1
    assert store.matched("abcdefgh") == 4
    store.tree.release(prefix.node)
    assert store.tree.evict(100) == 1
    assert store.allocator.num_free == 32
    assert not store.tree.namespaces


def test_the_last_child_leaves_its_first_page_to_its_parent():
    store = Store()
    store.put("abcdefgh")
    store.put("abcdefxyzw")
    store.put("abcdef")
    assert store.tree.evict(1) == 1
    assert store.drawn() == ["abcd 1", "  ef 0", "    xyzw 2"]
    assert store.tree.evict(1) == 1
    assert store.drawn() == ["abcd 1", "  ef 1"]
    assert store.matched("abcdefgh") == 6
    store.check()


def test_a_partly_shared_page_is_not_locked_and_the_counts_hold_when_it_goes():
    store = Store()
    store.put("abcdefghij")
    store.put("abcdefghijklmn")
    prefix = store.hold("abcdefX")  # the page of "ef" lies inside a node that ends inside a page
    assert store.tree.num_evictable == 3
    assert store.tree.evict(100) == 3
    store.check()
    store.tree.release(prefix.node)
    store.check()
    assert store.tree.evict(100) == 1


def test_a_leaf_that_goes_uncovers_its_parent():
    store = Store()
    store.put("abcd")
    store.put("abcdefgh")
    assert store.tree.num_evictable == 2
    assert store.tree.evict(2) == 2
    assert store.allocator.num_free == 32


def test_a_lock_covers_its_path_alone():
    store = Store()
    store.put("abcdefgh")
    store.put("abcdxyzw")
    prefix = store.hold("abcdefgh")
    assert store.tree.num_evictable == 1
    store.tree.release(prefix.node)
    assert store.tree.num_evictable == 3
    assert store.tree.num_locks() == 0


def test_releasing_twice_is_a_bug():
    store = Store()
    store.put("abcd")
    prefix = store.hold("abcd")
    store.tree.release(prefix.node)
    with pytest.raises(AssertionError, match="released twice"):
        store.tree.release(prefix.node)


def test_a_page_size_below_one_is_refused():
    with pytest.raises(ValueError, match="page_size must be at least 1, not 0"):
        RadixCache(PageAllocator(1), 0)


def test_the_eviction_heap_stays_in_proportion_to_the_tree():
    store = Store()
    store.put("abcdefgh")
    for _ in range(1000):
        store.tree.release(store.hold("abcdefgh").node)
    assert len(store.tree._heap) < 100


# --- against a plain list of sequences ---------------------------------------------------------------------

TEXTS = st.text(alphabet="ab", min_size=1, max_size=14)


class TreeMachine(RuleBasedStateMachine):
    @initialize(page_size=st.sampled_from([1, 2, 4, 16]), num_pages=st.integers(4, 24))
    def make(self, page_size, num_pages):
        self.store = Store(num_pages, page_size)
        self.known: set[str] = set()
        self.held: list[Prefix] = []
        self.has_evicted = False

    @rule(text=TEXTS)
    def put(self, text):
        num_free = self.store.allocator.num_free
        if self.store.put(text):
            self.known.add(text)
            assert self.store.matched(text) == len(text)
        if num_free < len(text):
            self.has_evicted = True

    @rule(text=TEXTS, limit=st.integers(0, 14))
    def hold(self, text, limit):
        limit = min(limit, len(text))
        prefix = self.store.hold(text, limit)
        num_full = len(prefix.pages) * self.store.size
        assert num_full <= limit
        assert self.store.read(prefix.pages, num_full) == text[:num_full]
        self.held.append(prefix)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data):
        prefix = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.store.tree.release(prefix.node)

    @rule(num_pages=st.integers(1, 30))
    def evict(self, num_pages):
        can_free = self.store.tree.num_evictable
        assert self.store.tree.evict(num_pages) >= min(num_pages, can_free)
        self.has_evicted = True

    @rule(text=TEXTS)
    def match(self, text):
        longest = max((_num_common(text, known) for known in self.known), default=0)
        found = self.store.matched(text)
        assert found == longest or (self.has_evicted and found < longest)

    @invariant()
    def holds(self):
        if hasattr(self, "store"):
            self.store.check()
            assert self.store.tree.num_locks() == len(self.held)
            assert self.store.allocator.num_free + self.store.tree.num_pages == self.store.allocator.num_pages
            pages = {page for prefix in self.held for page in prefix.pages}
            assert not pages & self.store.allocator.free_pages()

    def teardown(self):
        if hasattr(self, "store"):
            for prefix in self.held:
                self.store.tree.release(prefix.node)
            self.store.tree.evict(1000)
            assert self.store.allocator.num_free == self.store.allocator.num_pages
            assert not self.store.tree.namespaces


def _num_common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
