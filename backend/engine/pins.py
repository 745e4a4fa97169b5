"""Pinned prefixes: a service keeps what its requests begin with in the pool, whatever the traffic.

A pin has a lock of its own on the whole pages of its prefix. So that nobody waits for a page that never comes, the pool
is counted at the door, before anything is queued:

    a pin      is refused where all pins together would take more than a part of the pool
    a request  is refused, or ends at what is left, as if the pool were smaller by what is pinned; pinned pages that its
               own prompt begins with count as its own
    before     requests that came before a pin were promised more: the pin waits for those that might need its pages
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Tokens
from types import MappingProxyType

from forktree.backend.cache.addresses import page_addresses
from forktree.backend.cache.nodes import Node
from forktree.backend.cache.radix import RadixCache
from forktree.backend.engine.request import Sequence
from forktree.lang.errors import ContextLengthError, EngineError

_SHARE = 0.75  # of the pool that may be pinned


class Pins:
    """The pins of one pool, by the id of the request that computes them.

    `reserve` and `count_room` are for any thread; everything else is for the engine's, which owns the locks.
    """

    def __init__(self, tree: RadixCache, num_pages: int) -> None:
        self._tree = tree
        self._num_pages = num_pages
        self._door = threading.Lock()  # over the next two, which are replaced as wholes
        self._reserved: Mapping[int, frozenset[bytes]] = MappingProxyType({})
        self._pages: frozenset[bytes] = frozenset()  # addresses of all that is reserved
        self._locks: dict[int, Node] = {}

    @property
    def num_pages(self) -> int:
        """Distinct pages that are pinned, or will be when they are computed."""
        return len(self._pages)

    @property
    def num_locks(self) -> int:
        return len(self._locks)

    # --- at the door ---------------------------------------------------------------------------------------

    def reserve(self, id: int, namespace: str, ids: list[int]) -> None:
        """Count the whole pages of a prefix as pinned from now on.

        Raises:
            EngineError: too little of the pool would be left for requests.
            ValueError: the prefix does not fill one page.
        """
        size = self._tree.page_size
        if len(ids) < size:
            raise ValueError(
                f"a pin keeps whole pages of {size} tokens, and this prefix has {len(ids)}: pin a longer one"
            )
        pages = frozenset(page_addresses(namespace, ids, len(ids), size))
        most = int(self._num_pages * _SHARE)
        with self._door:
            num_pinned = len(self._pages | pages)
            if num_pinned > most:
                raise EngineError(
                    f"with this prefix of {len(ids)} tokens {num_pinned * size} tokens would be pinned, and of the "
                    f"pool's {self._num_pages * size} at most {most * size} may be, so that requests have room: "
                    "unpin something, shorten the prefix or raise kv_tokens"
                )
            self._set({**self._reserved, id: pages})

    def count_room(self, namespace: str, ids: Tokens[int], num_cacheable: int) -> int:
        """Pages of the pool that a request may count on; of its first tokens so many may come from the cache."""
        pinned = self._pages
        return self._num_pages - len(pinned) + self._count_own(pinned, namespace, ids, num_cacheable)

    def explained(self, error: ContextLengthError) -> ContextLengthError:
        """A refusal that says what part pins have in it."""
        if not self._pages:
            return error
        num_tokens = len(self._pages) * self._tree.page_size
        message = f"{error}; pins hold {num_tokens} tokens of the pool, of which this prompt shares what it begins with"
        return ContextLengthError(message, limit=error.limit, tokens=error.tokens)

    # --- on the engine's thread ----------------------------------------------------------------------------

    def leaves_room_for(self, seqs: Iterable[Sequence]) -> bool:
        """Each of these requests could still be computed alone, to its longest, beside all that is pinned."""
        pinned = self._pages
        room = self._num_pages - len(pinned)
        return all(
            (missing := self._most_pages(seq) - room) <= 0
            or missing <= self._count_own(pinned, seq.request.namespace, seq.ids, seq.cacheable)
            for seq in seqs
        )

    def lock(self, id: int, namespace: str, ids: list[int]) -> None:
        """Lock a reserved prefix that is in the tree."""
        num_tokens = len(ids) // self._tree.page_size * self._tree.page_size
        prefix = self._tree.acquire(namespace, ids, num_tokens)
        assert len(prefix.pages) * self._tree.page_size == num_tokens, "a pin is locked before it is computed"
        self._locks[id] = prefix.node

    def drop(self, id: int) -> None:
        """Undo a pin, whether it was computed or not. Harmless for one that is not there."""
        node = self._locks.pop(id, None)
        if node is not None:
            self._tree.release(node)
        with self._door:
            self._set({known: pages for known, pages in self._reserved.items() if known != id})

    def _set(self, reserved: dict[int, frozenset[bytes]]) -> None:
        self._reserved = MappingProxyType(reserved)
        self._pages = frozenset().union(*reserved.values())

    def _most_pages(self, seq: Sequence) -> int:
        """The last token that is generated is never computed."""
        num_tokens = len(seq.ids) + seq.num_left - (seq.output_limit > 0)
        return -(-num_tokens // self._tree.page_size)

    def _count_own(self, pinned: frozenset[bytes], namespace: str, ids: Tokens[int], num_tokens: int) -> int:
        """How many of the pages that a prompt's first tokens fill are pinned."""
        if not pinned:
            return 0
        return sum(
            address in pinned for address in page_addresses(namespace, list(ids), num_tokens, self._tree.page_size)
        )
