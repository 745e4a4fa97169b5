"""Keys and values of every page on a device, and how many pages its free memory holds."""

from __future__ import annotations

import torch

from forktree.backend.cache.kv_pool import KVLayout, copy_page
from forktree.backend.cache.tiers import HeldPage
from forktree.backend.model.cuda_pages import DevicePage, page_of_bytes, take_page
from forktree.lang.errors import ModelError

_SHARE_OF_FREE = 0.9
"""The rest is for what a step works in: activations of a chunk, partial attention states, logits and candidates."""
_FEWEST_TOKENS = 256


class DevicePool:
    """Keys and values of every page.

    Attributes:
        k, v: [layers, pages, page_size, kv_heads, head_dim]; zeros until something is written, so that no kernel
            can meet a NaN that nobody computed.
    """

    def __init__(
        self, layout: KVLayout, *, num_pages: int, page_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (layout.layers, num_pages, page_size, layout.kv_heads, layout.head_dim)
        try:
            self.k = torch.zeros(shape, device=device, dtype=dtype)
            self.v = torch.zeros(shape, device=device, dtype=dtype)
        except RuntimeError as error:  # out of memory: a subclass on a device, the class itself on a CPU
            size = num_pages * page_size * token_bytes(layout, dtype)
            raise ModelError(
                f"{size / 2**30:.1f} GiB on {device} for {num_pages * page_size} KV tokens cannot be had; "
                "lower kv_tokens"
            ) from error
        self.num_pages = num_pages
        self.page_size = page_size

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` slots of a page, all layers, after what was launched before."""
        copy_page(self.k, self.v, source, target, num_tokens)

    def read_page(self, page: int) -> DevicePage:
        """Keys and values of a page as they are after what was launched before; the copy runs on."""
        return take_page(self.k, self.v, page)

    def write_page(self, page: int, data: HeldPage) -> None:
        """Fill a page, before what is launched from now on. Raises ValueError: the data has another size."""
        held = data if isinstance(data, DevicePage) else page_of_bytes(bytes(data), self.k)
        held.put(self.k, self.v, page)


def token_bytes(layout: KVLayout, dtype: torch.dtype) -> int:
    """Of one token's keys and values, all layers."""
    return 2 * layout.layers * layout.kv_heads * layout.head_dim * dtype.itemsize


def count_device_pages(free_bytes: int, layout: KVLayout, dtype: torch.dtype, page_size: int) -> int:
    """Pages of a pool in nine tenths of the memory that is free once the weights are there.

    Raises:
        ModelError: too little is free.
    """
    tokens = int(free_bytes * _SHARE_OF_FREE) // token_bytes(layout, dtype)
    if tokens < max(_FEWEST_TOKENS, page_size):
        raise ModelError(
            f"{free_bytes / 2**20:.0f} MiB are free on the device, which is too little for a KV pool "
            f"({token_bytes(layout, dtype)} bytes a token); free some, or give kv_tokens"
        )
    return tokens // page_size
