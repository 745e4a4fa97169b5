"""Pools of keys and values for tests of paged attention: what no row may read is NaN."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch


@dataclass
class Pool:
    """Sequences laid into shuffled pages; every slot that holds no token is NaN."""

    k: torch.Tensor
    v: torch.Tensor
    tables: list[list[int]]
    lengths: list[int]

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    def dense(self, seq: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the first `length` positions, [length, kv_heads, head_dim] each."""
        size = self.page_size
        slots = torch.tensor([self.tables[seq][p // size] * size + p % size for p in range(length)])
        return self.k.flatten(0, 1)[slots], self.v.flatten(0, 1)[slots]


def make_pool(
    lengths: list[int], *, page_size: int, kv_heads: int, head_dim: int, num_shared: int = 0, seed: int = 0
) -> Pool:
    """Random keys and values of these sequences, whose first `num_shared` pages are the same pages."""
    rng, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    need = [-(-length // page_size) for length in lengths]
    free = list(range(sum(need) + num_shared + 3))
    rng.shuffle(free)
    num_pages = len(free)
    shared = [free.pop() for _ in range(num_shared)]
    tables = [shared[:n] + [free.pop() for _ in range(n - len(shared[:n]))] for n in need]
    k = torch.full((num_pages, page_size, kv_heads, head_dim), float("nan"))
    v = torch.full_like(k, float("nan"))
    for table, length in zip(tables, lengths, strict=True):
        for position in range(length):
            at = (table[position // page_size], position % page_size)
            if k[at].isnan().any():
                k[at] = torch.randn(kv_heads, head_dim, generator=noise)
                v[at] = torch.randn(kv_heads, head_dim, generator=noise)
    return Pool(k, v, tables, lengths)
