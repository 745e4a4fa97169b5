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
by a logical clock. A hold says that a node will be asked for again: what is held is evicted when nothing else is
left, so that a hold never keeps anybody from running. (Radix attention: Zheng et al., "SGLang", 2023, arXiv
2312.07104, §3.)
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Protocol

from forktree.backend.cache.nodes import DEAD, Node, PartialPage, Prefix, descend, upwards
from forktree.backend.cache.pages import PageAllocator


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
        self._heap: list[tuple[bool, int, int, Node]] = []  # (held, last_used, tie-break, leaf), stale ones among them
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
        return 0 if root is None else descend(root, ids, limit)[1]

    def acquire(self, namespace: str, ids: list[int], limit: int) -> Prefix:
        """Match at most `limit` tokens and lock the pages that they fill, until `release`."""
        node, depth = descend(self._root(namespace), ids, limit)
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
        node, depth = descend(self._root(namespace), ids, num_tokens)
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
        """Free unlocked pages, those that nobody holds and then the least recently used first, until there are so many.

        Returns how many were freed; whole leaves go, so it may be more. Every page that leaves the tree
        leaves through `_drop`, where a lower tier may take it over.
        """
        num_freed = 0
        while num_freed < num_pages and self._heap:
            entry = heapq.heappop(self._heap)
            if self._is_current(entry):
                num_freed += self._drop(entry[3])
        return num_freed

    def evict_unheld(self, num_pages: int) -> int:
        """As `evict`, but what is held stays."""
        num_freed = 0
        while num_freed < num_pages and self._heap and not self._heap[0][0]:
            entry = heapq.heappop(self._heap)
            if self._is_current(entry):
                num_freed += self._drop(entry[3])
        return num_freed

    def hold(self, namespace: str, ids: list[int], num_tokens: int) -> Node | None:
        """Hold what the tree has of the first `num_tokens` tokens, until `unhold`; None if that is nothing."""
        root = self._roots.get(namespace)
        node = None if root is None else descend(root, ids, num_tokens)[0]
        if node is None or node.parent is None:
            return None
        self._change_holds(node, 1)
        return node

    def unhold(self, node: Node) -> None:
        """Undo one hold; the node may have been evicted since."""
        self._change_holds(node, -1)

    def touch(self, namespace: str, ids: list[int], limit: int) -> int:
        """Count what the tree has of the first `limit` tokens as used now; returns how many it has."""
        root = self._roots.get(namespace)
        if root is None:
            return 0
        node, depth = descend(root, ids, limit)
        self._touch(node)
        return depth

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
        for walk in upwards(node):
            walk.last_used = self._clock
        self._offer(node)

    def _node_ending_at(self, node: Node, depth: int) -> Node:
        """The node on the path down to `node` that ends at `depth`, made by a split if need be."""
        while node.start >= depth and node.parent is not None:
            node = node.parent
        return self._split(node, depth) if depth < node.end else node

    def _path_pages(self, node: Node) -> list[int]:
        path = [walk.pages for walk in upwards(node)]
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
        upper.num_locks, upper.num_holds, upper.last_used = node.num_locks, node.num_holds, node.last_used
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
        leaf.last_used = DEAD
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
        path = list(upwards(node))
        ids = [token for walk in reversed(path) for token in walk.tokens]
        namespace = next(name for name, root in self._roots.items() if root is path[-1])
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
        for walk in upwards(node):
            if walk.num_locks == 0:
                self._num_evictable -= len(walk.pages)
            walk.num_locks += 1

    def _is_evictable(self, node: Node) -> bool:
        return not node.children and node.num_locks == 0 and node.parent is not None and not node.is_dead

    def _offer(self, node: Node) -> None:
        """Let `evict` know of a leaf that may go; its older entries are stale if it was used since."""
        if not self._is_evictable(node):
            return
        if len(self._heap) > 2 * self._num_nodes + 64:
            self._heap = list({id(entry[3]): entry for entry in self._heap if self._is_current(entry)}.values())
            heapq.heapify(self._heap)
        self._num_pushes += 1
        heapq.heappush(self._heap, (node.num_holds > 0, node.last_used, self._num_pushes, node))

    def _is_current(self, entry: tuple[bool, int, int, Node]) -> bool:
        is_held, last_used, _, node = entry
        return node.last_used == last_used and (node.num_holds > 0) == is_held and self._is_evictable(node)

    def _change_holds(self, node: Node, change: int) -> None:
        """Nodes that are dead keep count of their holds for those above them, which may not be."""
        for walk in upwards(node):
            was_held = walk.num_holds > 0
            walk.num_holds += change
            assert walk.num_holds >= 0, "a hold is released twice"
            if was_held != (walk.num_holds > 0):
                self._offer(walk)

    def num_locks(self) -> int:
        """Locks held now, over all namespaces; 0 when nothing runs."""
        return sum(root.num_locks for root in self._roots.values())

    # --- invariants ----------------------------------------------------------------------------------------

    def check(self) -> set[int]:
        """Assert every invariant of the tree; returns the pages that it owns. For tests and debugging."""
        pages: list[int] = []
        num_evictable = num_nodes = 0
        offered = {id(entry[3]) for entry in self._heap if self._is_current(entry)}
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
        assert node.num_holds >= sum(child.num_holds for child in node.children.values())
        for token, child in node.children.items():
            assert child.parent is node
            assert child.start == node.end
            assert child.tokens
            assert child.tokens[0] == token
            assert child.last_used <= node.last_used
