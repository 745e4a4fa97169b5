"""Rotary positions, and the write of new keys and values to their slots, in one pass over q, k and v."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from forktree.kernels.checks import ShapeError, check_tensor
from forktree.kernels.native import Native
from forktree.kernels.norm import rms_norm


@dataclass(frozen=True, slots=True, eq=False)
class RotaryTable:
    """Cosines and sines of every position: [max_positions, head_dim / 2] float32 each."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorms:
    """Norms of each query and key head before the rotation: weights [head_dim]."""

    q_weight: torch.Tensor
    k_weight: torch.Tensor
    eps: float


def rotate_and_write(
    qkv: torch.Tensor,
    table: RotaryTable,
    positions: torch.Tensor,
    slots: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    *,
    q_heads: int,
    norms: HeadNorms | None = None,
    native: Native | None = None,
) -> torch.Tensor:
    """Rotate queries and keys to their positions; write keys and values to their slots.

    Args:
        qkv:       [tokens, (q_heads + 2 · kv_heads) · head_dim] float32: queries, keys, values
        positions: [tokens] int64, within the table
        slots:     [tokens] int64: page · page_size + offset, each written once
        k_pages:   [pages, page_size, kv_heads, head_dim], written
        v_pages:   the same shape, written
    Returns:
        [tokens, q_heads, head_dim]: the rotated queries.
    Raises:
        ShapeError: shapes or types that do not fit, or an odd head_dim.
    """
    if qkv.is_cuda:
        from forktree.kernels import rotary_triton

        return rotary_triton.rotate_and_write(
            qkv, table, positions, slots, k_pages, v_pages, q_heads=q_heads, norms=norms
        )
    check_tensor("k_pages", k_pages, (None, None, None, None), torch.float32)
    check_tensor("v_pages", v_pages, tuple(k_pages.shape), torch.float32)
    kv_heads, head_dim = k_pages.shape[2:]
    tokens = qkv.shape[0]
    check_tensor("qkv", qkv, (None, (q_heads + 2 * kv_heads) * head_dim), torch.float32)
    check_tensor("positions", positions, (tokens,), torch.int64)
    check_tensor("slots", slots, (tokens,), torch.int64)
    if head_dim % 2:
        raise ShapeError(f"head_dim must be even to be rotated, not {head_dim}")
    check_tensor("table.cos", table.cos, (None, head_dim // 2), torch.float32)
    check_tensor("table.sin", table.sin, tuple(table.cos.shape), torch.float32)
    if native is None:
        return _reference(qkv, table, positions, slots, k_pages, v_pages, q_heads, norms)
    q = qkv.new_empty(tokens, q_heads, head_dim)
    native.library.ft_rotate_and_write(
        qkv.data_ptr(),
        table.cos.data_ptr(),
        table.sin.data_ptr(),
        positions.data_ptr(),
        slots.data_ptr(),
        norms.q_weight.data_ptr() if norms else None,
        norms.k_weight.data_ptr() if norms else None,
        norms.eps if norms else 0.0,
        q.data_ptr(),
        k_pages.data_ptr(),
        v_pages.data_ptr(),
        tokens,
        q_heads,
        kv_heads,
        head_dim,
        native.num_threads,
    )
    return q


def _reference(
    qkv: torch.Tensor,
    table: RotaryTable,
    positions: torch.Tensor,
    slots: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    q_heads: int,
    norms: HeadNorms | None,
) -> torch.Tensor:
    kv_heads, head_dim = k_pages.shape[2:]
    heads = qkv.view(qkv.shape[0], q_heads + 2 * kv_heads, head_dim)
    q, k, v = heads[:, :q_heads], heads[:, q_heads:-kv_heads], heads[:, -kv_heads:]
    if norms is not None:
        q = rms_norm(q, norms.q_weight, norms.eps)
        k = rms_norm(k, norms.k_weight, norms.eps)
    cos, sin = table.cos[positions].unsqueeze(1), table.sin[positions].unsqueeze(1)
    k_pages.view(-1, kv_heads, head_dim)[slots] = _rotate(k, cos, sin)
    v_pages.view(-1, kv_heads, head_dim)[slots] = v
    return _rotate(q, cos, sin)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
