"""The radix cache: a tree of token runs over pages of keys and values, exact to the token.

A node is a run of tokens at positions [start, end); a path from the root spells a sequence. Nodes branch
between any two tokens, pages hold `page_size` of them, so a node's border may lie inside a page. The rule that
settles who owns such a page:

    page i holds positions [i * page_size, (i + 1) * page_size)

    node            owns pages                                         its last, unfilled page
    ──────────────────────────────────────────────────────────────────────────────────────────────────────
    leaf            [start // page_size, ceil(end / page_size))        is its own
    inner node      [start // page_size, end // page_size)             is in each child, as the child's first:
                                                                       a child needs its own copy of that page
                                                                       anyway, because what follows differs
    path            the nodes' pages laid end to end are the sequence's page table: no gap, no overlap

    page_size 4:    root ── "abcdef" ─┬─ "gh"     inner [0, 6)  owns page 0 = abcd
                                      └─ "xyz"    leaf  [6, 8)  owns page 1 = efgh
                                                  leaf  [6, 9)  owns pages 1', 2' = efxy z···

So a split never copies a page; a match that ends inside a page names the page to copy and how much of it; and
no page that anyone reads is ever written: requests share only the pages that their match fills, and write in
pages of their own. *The tree owns shared pages and the request owns its tail.*

A lock counts one user of a node and of every node above it. It always ends at a border of pages, so it covers
exactly the pages that its holder reads. Unlocked nodes are evicted leaf by leaf, the least recently used first,
by a logical clock. (Radix attention: Zheng et al., "SGLang", 2023, arXiv 2312.07104, §3.)
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from forktree.backend.cache.pages import PageAllocator
from forktree.backend.cache.prefix import count_common

_DEAD = -1  # `last_used` of a node that has left the tree; no entry of the heap matches it


class Node:
    """A run of tokens at [start, end) and the pages it owns. Only the cache changes a node."""

    __slots__ = ("children", "last_used", "num_locks", "pages", "parent", "start", "tokens")

    def __init__(self, parent: Node | None, start: int, tokens: list[int], pages: list[int]) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.pages = pages
        self.children: dict[int, Node] = {}
        self.num_locks = 0
        self.last_used = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class PartialPage(NamedTuple):
    """The first `num_tokens` slots of `page` continue a match. Nothing locks it: it is to be copied before
    anything is written to a page that is freed from now on, this one included."""

    page: int
    num_tokens: int


class Prefix(NamedTuple):
    """A locked match. `pages` are full; `node` holds the lock on them; `partial` goes on inside the next page."""

    node: Node
    pages: list[int]
    partial: PartialPage | None


class Lower(Protocol):
    """What takes over the pages that leave the tree."""

    def keep(self, namespace: str, ids: list[int], first_page: int, pages: list[int]) -> None:
        """Copy what may be worth it of full pages, from index `first_page` of the sequence `ids` on; never raises.

        The pages are free for others as soon as this returns.
        """
        ...


class RadixCache:
    """Owner of every cached page. Not thread-safe: the engine's thread owns it."""

    def __init__(self, allocator: PageAllocator, page_size: int, lower: Lower | None = None) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, not {page_size}")
        self.page_size = page_size
        self._allocator = allocator
        self._lower = lower
        self._roots: dict[str, Node] = {}
        self._clock = 0
        self._num_nodes = 0
        self._num_pages = 0
        self._num_evictable = 0
        self._heap: list[tuple[int, int, Node]] = []  # (last_used, tie-break, leaf); stale entries are skipped
        self._num_pushes = 0

    @property
    def num_pages(self) -> int:
        """Pages that the tree owns."""
        return self._num_pages

    @property
    def num_evictable(self) -> int:
        """Pages that `evict` can free now: those of nodes that nobody locks."""
        return self._num_evictable

    @property
    def namespaces(self) -> Mapping[str, Node]:
        """The root of each namespace, for viewers and checks. Read only."""
        return self._roots

    def match(self, namespace: str, ids: list[int], limit: int) -> int:
        """How many of the first `limit` tokens are cached. Changes nothing."""
        root = self._roots.get(namespace)
        return 0 if root is None else _descend(root, ids, limit)[1]

    def acquire(self, namespace: str, ids: list[int], limit: int) -> Prefix:
        """Match at most `limit` tokens and lock the pages that they fill, until `release`."""
        node, depth = _descend(self._root(namespace), ids, limit)
        index, rest = divmod(depth, self.page_size)
        partial = self._locate(node, index, rest) if rest else None
        holder = self._node_ending_at(node, index * self.page_size)
        self._touch(holder if partial is None else node)
        self._lock(holder)
        return Prefix(holder, self._path_pages(holder), partial)

    def release(self, node: Node) -> None:
        """Undo one lock."""
        walk: Node | None = node
        while walk is not None:
            assert walk.num_locks > 0, "a lock is released twice"
            walk.num_locks -= 1
            if walk.num_locks == 0:
                self._num_evictable += len(walk.pages)
                self._offer(walk)
            root, walk = walk, walk.parent
        self._forget_empty(root)

    def insert(self, namespace: str, ids: list[int], num_tokens: int, pages: list[int], num_shared: int) -> None:
        """Store the first `num_tokens` tokens of a sequence with the pages that hold them.

        Ownership, by index into the sequence's page table (`found` tokens are in the tree already):

            [0, num_shared)                      the tree's before and after
            [num_shared, found // page_size)     the caller's duplicates: freed
            [found // page_size, …)              the caller's until now, the tree's from here on

        If everything was found, all of the caller's are duplicates.
        """
        assert len(pages) == -(-num_tokens // self.page_size)
        if num_tokens == 0:
            return
        node, depth = _descend(self._root(namespace), ids, num_tokens)
        if depth == num_tokens:
            self._touch(node)
            self._allocator.free(pages[num_shared:])
            return
        if depth < node.end:
            node = self._split(node, depth)
        self._touch(node)
        first_new = depth // self.page_size
        self._allocator.free(pages[num_shared:first_new])
        self._add_leaf(node, ids[depth:num_tokens], pages[first_new:])

    def evict(self, num_pages: int) -> int:
        """Free unlocked pages, least recently used leaves first, until `num_pages` are freed or none is left.

        Returns how many were freed; whole leaves go, so it may be more. Every page that leaves the tree
        leaves through `_drop`, where a lower tier may take it over.
        """
        num_freed = 0
        while num_freed < num_pages and self._heap:
            entry = heapq.heappop(self._heap)
            if self._is_current(entry):
                num_freed += self._drop(entry[2])
        return num_freed

    def forget(self) -> int:
        """Free every unlocked page, without a copy in a lower tier; returns how many."""
        lower, self._lower = self._lower, None
        try:
            return self.evict(self._allocator.num_pages)
        finally:
            self._lower = lower

    def keep_all(self) -> None:
        """Have the lower tier keep what the tree holds; the tree keeps it too."""
        todo = list(self._roots.values())
        while todo:
            node = todo.pop()
            self._keep(node)
            todo.extend(node.children.values())

    # --- walking -------------------------------------------------------------------------------------------

    def _root(self, namespace: str) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, 0, [], [])
            self._num_nodes += 1
        return root

    def _touch(self, node: Node) -> None:
        self._clock += 1
        walk: Node | None = node
        while walk is not None:
            walk.last_used = self._clock
            walk = walk.parent
        self._offer(node)

    def _node_ending_at(self, node: Node, depth: int) -> Node:
        """The node on the path down to `node` that ends at `depth`, made by a split if need be."""
        while node.start >= depth and node.parent is not None:
            node = node.parent
        return self._split(node, depth) if depth < node.end else node

    def _path_pages(self, node: Node) -> list[int]:
        path = []
        walk: Node | None = node
        while walk is not None:
            path.append(walk.pages)
            walk = walk.parent
        return [page for pages in reversed(path) for page in pages]

    def _locate(self, node: Node, index: int, num_tokens: int) -> PartialPage:
        """The page that holds page `index` of a path that ends in `node`: the node's, or any descendant's."""
        offset = index - node.start // self.page_size
        while offset >= len(node.pages):
            node = next(iter(node.children.values()))
            offset = index - node.start // self.page_size
        return PartialPage(node.pages[offset], num_tokens)

    # --- changing the tree ---------------------------------------------------------------------------------

    def _split(self, node: Node, depth: int) -> Node:
        """Cut a node at `depth`, which lies inside it. The lower part stays `node`; returns the upper part."""
        cut = depth - node.start
        num_upper_pages = depth // self.page_size - node.start // self.page_size
        upper = Node(node.parent, node.start, node.tokens[:cut], node.pages[:num_upper_pages])
        upper.num_locks, upper.last_used = node.num_locks, node.last_used
        assert node.parent is not None
        node.parent.children[upper.tokens[0]] = upper
        node.parent, node.start = upper, depth
        node.tokens, node.pages = node.tokens[cut:], node.pages[num_upper_pages:]
        upper.children[node.tokens[0]] = node
        self._num_nodes += 1
        return upper

    def _add_leaf(self, parent: Node, tokens: list[int], pages: list[int]) -> None:
        if not parent.children and parent.end % self.page_size:
            # An unfilled page of a leaf is only ever copied from, and the new leaf's first page begins with
            # a copy of it. No lock ends inside a page, so nobody holds this leaf.
            assert parent.num_locks == 0
            self._disown(parent, [parent.pages.pop()])
        leaf = Node(parent, parent.end, tokens, pages)
        leaf.last_used = self._clock
        parent.children[tokens[0]] = leaf
        self._num_nodes += 1
        self._num_pages += len(pages)
        self._num_evictable += len(pages)
        self._offer(leaf)

    def _drop(self, leaf: Node) -> int:
        """Take an unlocked leaf out of the tree; returns how many pages were freed."""
        parent = leaf.parent
        assert parent is not None
        self._keep(leaf)
        del parent.children[leaf.tokens[0]]
        leaf.last_used = _DEAD
        self._num_nodes -= 1
        pages = leaf.pages
        if leaf.start % self.page_size and not parent.children:
            assert parent.num_locks == 0  # no lock ends inside a page
            parent.pages.append(pages[0])  # the last child leaves: the parent's own tokens in it stay
            pages = pages[1:]
        self._disown(leaf, pages)
        self._offer(parent)
        self._forget_empty(parent)
        return len(pages)

    def _keep(self, node: Node) -> None:
        """Offer a node's full pages to the lower tier."""
        first = node.start // self.page_size
        full = node.pages[: node.end // self.page_size - first]
        if self._lower is None or not full:
            return
        runs: list[list[int]] = []
        walk = node
        while walk.parent is not None:
            runs.append(walk.tokens)
            walk = walk.parent
        ids = [token for run in reversed(runs) for token in run]
        namespace = next(name for name, root in self._roots.items() if root is walk)
        self._lower.keep(namespace, ids, first, full)

    def _disown(self, node: Node, pages: list[int]) -> None:
        self._num_pages -= len(pages)
        self._num_evictable -= len(pages)
        self._allocator.free(pages)

    def _forget_empty(self, root: Node) -> None:
        if root.parent is None and not root.children and root.num_locks == 0:
            for namespace, candidate in self._roots.items():
                if candidate is root:
                    del self._roots[namespace]
                    self._num_nodes -= 1
                    return

    # --- locks and age -------------------------------------------------------------------------------------

    def _lock(self, node: Node) -> None:
        walk: Node | None = node
        while walk is not None:
            if walk.num_locks == 0:
                self._num_evictable -= len(walk.pages)
            walk.num_locks += 1
            walk = walk.parent

    def _is_evictable(self, node: Node) -> bool:
        return not node.children and node.num_locks == 0 and node.parent is not None

    def _offer(self, node: Node) -> None:
        """Let `evict` know of a leaf that may go; its older entries are stale if it was used since."""
        if not self._is_evictable(node):
            return
        if len(self._heap) > 2 * self._num_nodes + 64:
            self._heap = list({id(entry[2]): entry for entry in self._heap if self._is_current(entry)}.values())
            heapq.heapify(self._heap)
        self._num_pushes += 1
        heapq.heappush(self._heap, (node.last_used, self._num_pushes, node))

    def _is_current(self, entry: tuple[int, int, Node]) -> bool:
        return entry[2].last_used == entry[0] and self._is_evictable(entry[2])

    def num_locks(self) -> int:
        """Locks held now, over all namespaces; 0 when nothing runs."""
        return sum(root.num_locks for root in self._roots.values())

    # --- invariants ----------------------------------------------------------------------------------------

    def check(self) -> set[int]:
        """Assert every invariant of the tree; returns the pages that it owns. For tests and debugging."""
        pages: list[int] = []
        num_evictable = num_nodes = 0
        offered = {id(entry[2]) for entry in self._heap if self._is_current(entry)}
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            num_nodes += 1
            pages += node.pages
            num_evictable += len(node.pages) if node.num_locks == 0 else 0
            self._check_node(node)
            assert not self._is_evictable(node) or id(node) in offered, "a leaf that may go was not offered"
            stack.extend(node.children.values())
        assert len(set(pages)) == len(pages), "a page has two owners in the tree"
        assert (len(pages), num_evictable, num_nodes) == (self._num_pages, self._num_evictable, self._num_nodes)
        return set(pages)

    def _check_node(self, node: Node) -> None:
        size = self.page_size
        end_page = node.end // size if node.children else -(-node.end // size)
        assert len(node.pages) == end_page - node.start // size, "a node owns the wrong pages"
        assert node.num_locks >= sum(child.num_locks for child in node.children.values())
        for token, child in node.children.items():
            assert child.parent is node
            assert child.start == node.end
            assert child.tokens
            assert child.tokens[0] == token
            assert child.last_used <= node.last_used


def _descend(node: Node, ids: list[int], limit: int) -> tuple[Node, int]:
    """The deepest node that the first `limit` tokens reach into, and how many of them were found."""
    depth = 0
    while depth < limit:
        child = node.children.get(ids[depth])
        if child is None:
            break
        node = child
        size = min(len(node.tokens), limit - depth)
        num_common = count_common(node.tokens, 0, ids, depth, size)
        depth += num_common
        if num_common < len(node.tokens):
            break
    return node, depth
