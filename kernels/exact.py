"""Sums and exponentials whose bits depend on nothing but their own row.

A library's reduction or exponential may take another path for the last few elements of a tensor, so that the
same row differs in its last bit when its neighbours change. These are made only of operations that IEEE 754
defines to the bit (add, subtract, multiply, divide, compare), in a fixed order. The reference of every kernel
is written with them.
"""

from __future__ import annotations

import torch

_LOG2E = 1.44269504088896341
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440e-4
# Minimax polynomial of (exp(r) - 1 - r) / r² on |r| ≤ ln2 / 2; Cephes, expf.c (S. Moshier, public domain).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def tree_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over the last axis by halving: [..., n] → [...]."""
    while (n := x.shape[-1]) > 1:
        half = n // 2
        pairs = x[..., :half] + x[..., half : 2 * half]
        x = pairs if n % 2 == 0 else torch.cat([pairs, x[..., -1:]], dim=-1)
    return x[..., 0]


def exp(x: torch.Tensor) -> torch.Tensor:
    """Exponential of float32, within 2 units in the last place; flushes below about 1e-38; exp(0) is exactly 1."""
    x = x.clamp(-87.3, 88.7)
    n = torch.floor(x * _LOG2E + 0.5)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    poly = torch.full_like(r, _EXP[0])
    for coefficient in _EXP[1:]:
        poly = poly * r + coefficient
    whole = (n.to(torch.int32) + 127) * (1 << 23)
    return (poly * (r * r) + r + 1.0) * whole.view(torch.float32)
