"""Which pages of the KV pool are free. Plain ints: the tensors live in `kv_pool`."""

from __future__ import annotations

from collections.abc import Iterable


class PageAllocator:
    """Hands out page ids in [0, num_pages) and takes them back; a page cannot be freed twice.

    The page freed last is handed out first, so that a small working set stays warm in the processor's caches.
    """

    def __init__(self, num_pages: int) -> None:
        """Raises ValueError if there is no page at all."""
        if num_pages < 1:
            raise ValueError(f"a KV pool needs at least 1 page, not {num_pages}")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._is_free = bytearray(b"\x01" * num_pages)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def alloc(self, num_pages: int) -> list[int] | None:
        """Take pages, or None (and take nothing) if there are not as many free."""
        if num_pages > len(self._free):
            return None
        if num_pages == 0:
            return []
        taken = self._free[-num_pages:]
        del self._free[-num_pages:]
        taken.reverse()
        for page in taken:
            self._is_free[page] = 0
        return taken

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back. Raises AssertionError on a page that is free already: two owners are a bug."""
        for page in pages:
            assert not self._is_free[page], f"page {page} is freed twice"
            self._is_free[page] = 1
            self._free.append(page)

    def free_pages(self) -> set[int]:
        """The free pages, for invariant checks."""
        return set(self._free)
