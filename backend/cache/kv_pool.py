"""The tensors that hold keys and values: pages for all layers, allocated once."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from forktree.kernels.memory import advise_huge_pages
from forktree.lang.errors import ModelError

_SHARE_OF_FREE = 0.25
_MOST_BYTES = 4 << 30
_FEWEST_TOKENS = 256


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of a token's keys and values: float32, for every layer."""

    layers: int
    kv_heads: int
    head_dim: int

    @property
    def token_bytes(self) -> int:
        return 2 * 4 * self.layers * self.kv_heads * self.head_dim


class KVPool:
    """Keys and values of every page.

    Attributes:
        k, v: [layers, pages, page_size, kv_heads, head_dim] float32; a slot holds nothing meaningful until it
            is written.
    """

    def __init__(self, layout: KVLayout, *, num_pages: int, page_size: int) -> None:
        shape = (layout.layers, num_pages, page_size, layout.kv_heads, layout.head_dim)
        try:
            self.k = torch.empty(shape)
            self.v = torch.empty(shape)
        except RuntimeError as error:  # torch's own out-of-memory on a CPU
            size = num_pages * page_size * layout.token_bytes
            raise ModelError(
                f"{size / 2**30:.1f} GiB for {num_pages * page_size} KV tokens cannot be had; lower kv_tokens"
            ) from error
        advise_huge_pages(self.k)
        advise_huge_pages(self.v)
        self.num_pages = num_pages
        self.page_size = page_size

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` slots of a page, all layers."""
        copy_page(self.k, self.v, source, target, num_tokens)

    def read_page(self, page: int) -> bytes:
        """Keys, then values, of one page: [2, layers, page_size, kv_heads, head_dim]."""
        return torch.stack((self.k[:, page], self.v[:, page])).numpy().tobytes()

    def write_page(self, page: int, data: bytes) -> None:
        """What `read_page` gave, into any page. Raises ValueError: the data has another size."""
        shape = (2, *self.k[:, page].shape)
        if len(data) != 4 * math.prod(shape):
            raise ValueError(f"a page has {4 * math.prod(shape)} bytes, not {len(data)}")
        held = torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape)
        self.k[:, page], self.v[:, page] = held[0], held[1]


def copy_page(k: torch.Tensor, v: torch.Tensor, source: int, target: int, num_tokens: int) -> None:
    """Copy the first `num_tokens` slots of a page in both pools, all layers.

    Args:
        k, v: [layers, pages, page_size, kv_heads, head_dim], on any device.
    Raises:
        IndexError: there is no such page. ValueError: a page has fewer slots.
    """
    num_pages, page_size = k.shape[1:3]
    for name, page in (("source", source), ("target", target)):
        if not 0 <= page < num_pages:
            raise IndexError(f"{name} page must be in [0, {num_pages}), not {page}")
    if not 0 <= num_tokens <= page_size:
        raise ValueError(f"num_tokens must be in [0, {page_size}], not {num_tokens}")
    for pages in (k, v):
        pages[:, target, :num_tokens] = pages[:, source, :num_tokens]


def count_pages(layout: KVLayout, *, kv_tokens: int | None, page_size: int) -> int:
    """Pages of a pool: those of `kv_tokens`, rounded up, or by default of a quarter of the free memory, 4 GiB at most.

    Raises:
        ValueError: a count below 1.
        ModelError: too little memory is free for a useful default.
    """
    if kv_tokens is not None:
        if kv_tokens < 1:
            raise ValueError(f"kv_tokens must be at least 1, not {kv_tokens}")
        return -(-kv_tokens // page_size)
    free = free_memory_bytes()
    tokens = int(min(free * _SHARE_OF_FREE, _MOST_BYTES)) // layout.token_bytes
    if tokens < _FEWEST_TOKENS:
        raise ModelError(
            f"{free / 2**20:.0f} MiB of memory are free, which is too little for a KV pool "
            f"({layout.token_bytes} bytes a token); free some or give kv_tokens"
        )
    return max(1, tokens // page_size)


def free_memory_bytes() -> int:
    """Memory that this process may still take, as far as the system says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no limit ("max"), or no cgroup
        return free
    return min(free, max(0, limit - used))
