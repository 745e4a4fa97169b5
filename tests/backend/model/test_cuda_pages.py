"""A device's pages move to the tiers and back, bit for bit; the device is the CPU here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_fakes import Driver

pytest.importorskip("triton", reason="triton is not installed here")

from forktree.backend.cache.kv_pool import KVLayout
from forktree.backend.cache.tiers import PageMover
from forktree.backend.model.config import read_config
from forktree.backend.model.cuda_llama import build_device_model
from forktree.backend.model.cuda_load import make_device_runner
from forktree.backend.model.cuda_pool import DevicePool
from forktree.backend.model.weights import open_weights
from forktree.kernels.triton_mode import is_interpreted

LAYOUT = KVLayout(layers=2, kv_heads=1, head_dim=4)
CPU = torch.device("cpu")


def pool(dtype: torch.dtype) -> DevicePool:
    made = DevicePool(LAYOUT, num_pages=4, page_size=2, device=CPU, dtype=dtype)
    for number, pages in enumerate((made.k, made.v)):
        pages.copy_(torch.arange(pages.numel()).view(pages.shape) + 100 * number)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_page_comes_back_as_it_was_and_touches_no_other(dtype: torch.dtype, as_bytes: bool) -> None:
    one, right = pool(dtype), pool(dtype)
    page = one.read_page(1)
    assert len(page) == len(bytes(page)) == 2 * 2 * 2 * 4 * dtype.itemsize
    one.k[:, 1], one.v[:, 1] = 0, 0  # written by somebody else since
    one.write_page(3, bytes(page) if as_bytes else page)
    for pages, before in ((one.k, right.k), (one.v, right.v)):
        assert torch.equal(pages[:, 3], before[:, 1])
        assert torch.equal(pages[:, [0, 2]], before[:, [0, 2]])


def test_bytes_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="a page has 128 bytes, not 5"):
        pool(torch.float32).write_page(0, b"12345")


@pytest.mark.skipif(not is_interpreted(), reason="TRITON_INTERPRET is off")
def test_the_engine_over_a_devices_pool_gives_the_same_tokens_from_host_memory_and_from_the_disk(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    with open_weights(tiny_model_dir) as weights:
        model = build_device_model(read_config(tiny_model_dir), weights, device=CPU, dtype=torch.float32)
    first, other = [3, 4, 5, 6, 7], [20, 21, 22, 23, 24]

    def ask(one: Driver, ids: list[int]):
        listener = one.submit(ids, max_tokens=1)
        one.drain()
        return listener.finished

    def driver(**config) -> Driver:
        runner = make_device_runner(model, kv_tokens=8, page_size=4)
        assert isinstance(runner, PageMover)
        runner.faults = []
        return Driver(runner, fixed_rows=1e9, headroom_tokens=0, **config)

    one = driver(host_bytes=1 << 20, cache_dir=str(tmp_path), fingerprint="tiny")
    computed, _, again = (ask(one, ids) for ids in (first, other, first))
    one.core.close()
    two = driver(cache_dir=str(tmp_path), fingerprint="tiny")
    restarted = ask(two, first)
    two.core.close()
    assert computed.num_cached == 0
    for found in (again, restarted):
        assert (found.ids, found.tokens, found.num_cached) == (computed.ids, computed.tokens, 4)
