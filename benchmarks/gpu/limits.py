"""What a device can do: measured, so that every figure has its share of it beside it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Limits:
    """Measured on this device, in this run.

    Attributes:
        copy_bytes_s: bytes a second that a large copy moves, read and written together.
        matrix_flops_s: operations a second of a large product in the model's type.
    """

    copy_bytes_s: float
    matrix_flops_s: float


def time_s(
    run: Callable[[], object], device: torch.device, *, repeats: int = 20, spoil: torch.Tensor | None = None
) -> float:
    """Median seconds of one call, once it is compiled and warm.

    Args:
        spoil: a tensor larger than the device's cache, written before each call so that it finds nothing there.
    """
    run()
    if device.type != "cuda":
        return statistics.median(_host_time(run) for _ in range(min(repeats, 2)))
    run()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in pairs:
        if spoil is not None:
            spoil.zero_()
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize(device)
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs) * 1e-3


def measure_limits(device: torch.device, dtype: torch.dtype) -> Limits:
    """A copy of a gigabyte and a product of 8,192 × 8,192, or toys of both on a CPU."""
    is_cuda = device.type == "cuda"
    source = torch.zeros((1 << 30) if is_cuda else 1 << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = time_s(lambda: target.copy_(source), device)
    size = 8192 if is_cuda else 256
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    product = time_s(lambda: torch.mm(a, b), device)
    return Limits(2 * source.numel() / copy, 2 * size**3 / product)


def spoiler(device: torch.device) -> torch.Tensor | None:
    """A quarter of a gigabyte: larger than any cache."""
    return torch.empty(1 << 28, dtype=torch.uint8, device=device) if device.type == "cuda" else None


def _host_time(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
