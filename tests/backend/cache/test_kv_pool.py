"""The pool's size follows the memory, and a copied page is a copy of what was asked for."""

from __future__ import annotations

import pytest
import torch

from forktree.backend.cache import kv_pool
from forktree.backend.cache.kv_pool import KVLayout, KVPool, count_pages
from forktree.lang.errors import ModelError

LAYOUT = KVLayout(layers=2, kv_heads=1, head_dim=4)


def test_a_token_takes_keys_and_values_of_every_layer() -> None:
    assert LAYOUT.token_bytes == 2 * 2 * 1 * 4 * 4
    assert KVLayout(30, 3, 64).token_bytes == 46080


def test_copy_page_copies_the_first_tokens_of_every_layer() -> None:
    pool = KVPool(LAYOUT, num_pages=3, page_size=4)
    for pages in (pool.k, pool.v):
        pages.copy_(torch.arange(pages.numel()).view(pages.shape))
    before = pool.k.clone(), pool.v.clone()
    pool.copy_page(0, 2, 3)
    for pages, old in zip((pool.k, pool.v), before, strict=True):
        assert torch.equal(pages[:, 2, :3], old[:, 0, :3])
        assert torch.equal(pages[:, 2, 3], old[:, 2, 3])
        assert torch.equal(pages[:, :2], old[:, :2])


def test_pages_and_counts_outside_the_pool_are_refused() -> None:
    pool = KVPool(LAYOUT, num_pages=3, page_size=4)
    with pytest.raises(IndexError, match=r"target page must be in \[0, 3\), not 3"):
        pool.copy_page(0, 3, 1)
    with pytest.raises(ValueError, match=r"num_tokens must be in \[0, 4\], not 5"):
        pool.copy_page(0, 1, 5)


def test_tokens_asked_for_are_rounded_up_to_pages() -> None:
    assert count_pages(LAYOUT, kv_tokens=33, page_size=16) == 3


@pytest.mark.parametrize(("free", "tokens"), [(1 << 20, 4096), (1 << 40, (4 << 30) // 64)])
def test_the_default_is_a_quarter_of_the_free_memory_up_to_a_cap(
    monkeypatch: pytest.MonkeyPatch, free: int, tokens: int
) -> None:
    monkeypatch.setattr(kv_pool, "free_memory_bytes", lambda: free)
    assert count_pages(LAYOUT, kv_tokens=None, page_size=16) == tokens // 16


def test_too_little_memory_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_pool, "free_memory_bytes", lambda: 10_000)
    with pytest.raises(ModelError, match="too little for a KV pool"):
        count_pages(LAYOUT, kv_tokens=None, page_size=16)


def test_a_pool_that_cannot_be_had_names_its_size() -> None:
    with pytest.raises(ModelError, match="lower kv_tokens"):
        KVPool(LAYOUT, num_pages=1 << 44, page_size=16)


def test_a_page_read_and_written_elsewhere_has_the_same_bits():
    pool = KVPool(KVLayout(layers=2, kv_heads=1, head_dim=2), num_pages=2, page_size=2)
    pool.k.copy_(torch.arange(pool.k.numel()).view(pool.k.shape))
    pool.v.copy_(-pool.k)
    pool.write_page(1, pool.read_page(0))
    assert torch.equal(pool.k[:, 1], pool.k[:, 0])
    assert torch.equal(pool.v[:, 1], pool.v[:, 0])
    with pytest.raises(ValueError, match="64 bytes, not 3"):
        pool.write_page(0, b"odd")
