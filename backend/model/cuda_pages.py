"""Pages of a device's pool on their way to host memory and back, without waiting for the device.

Copies are launched on the stream that computes: behind what wrote the page, and before what writes it next. Host
memory is pinned where the pool is on a GPU, so that a copy runs beside the host's own work.
"""

from __future__ import annotations

import torch


class DevicePage:
    """Keys, then values, of one page in host memory: [2, layers, page_size, kv_heads, head_dim], as the pool has them.

    The copy may be under way: `bytes` waits for it, from any thread; `put` needs not.
    """

    def __init__(self, held: torch.Tensor, done: torch.cuda.Event | None) -> None:
        self._held = held
        self._done = done

    def __len__(self) -> int:
        return self._held.nbytes

    def __bytes__(self) -> bytes:
        if self._done is not None:
            self._done.synchronize()
        return self._held.view(torch.uint8).numpy().tobytes()

    def put(self, k: torch.Tensor, v: torch.Tensor, page: int) -> None:
        """Launch the copy into page `page` of a pool; k, v: [layers, pages, page_size, kv_heads, head_dim]."""
        k[:, page].copy_(self._held[0], non_blocking=True)
        v[:, page].copy_(self._held[1], non_blocking=True)


def take_page(k: torch.Tensor, v: torch.Tensor, page: int) -> DevicePage:
    """Launch the copy of one page to host memory; k, v as in `put`."""
    held = torch.empty((2, *k[:, page].shape), dtype=k.dtype, pin_memory=k.is_cuda)
    held[0].copy_(k[:, page], non_blocking=True)
    held[1].copy_(v[:, page], non_blocking=True)
    done = None
    if k.is_cuda:
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
    return DevicePage(held, done)


def page_of_bytes(data: bytes, k: torch.Tensor) -> DevicePage:
    """A page of a pool like `k` from what `bytes` gave. Raises ValueError: the data has another size."""
    shape = (2, k.shape[0], *k.shape[2:])
    held = torch.empty(shape, dtype=k.dtype, pin_memory=k.is_cuda)
    if len(data) != held.nbytes:
        raise ValueError(f"a page has {held.nbytes} bytes, not {len(data)}")
    held.view(torch.uint8).view(-1).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return DevicePage(held, None)
