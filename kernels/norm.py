"""RMS norm, with the residual stream's addition in the same pass."""

from __future__ import annotations

import torch

from forktree.kernels.checks import check_tensor
from forktree.kernels.exact import tree_sum
from forktree.kernels.native import Native


def add_rms_norm(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    *,
    eps: float,
    native: Native | None = None,
) -> torch.Tensor:
    """Add `delta` to the residual stream, in place, and normalise the sum.

    Args:
        residual: [tokens, hidden] float32; holds residual + delta afterwards.
        delta:    [tokens, hidden] or None for nothing to add.
        weight:   [hidden]
    Returns:
        [tokens, hidden]: sum / sqrt(mean(sum²) + eps) · weight.
    Raises:
        ShapeError: shapes or types that do not fit.
    """
    if residual.is_cuda:
        from forktree.kernels import norm_triton

        return norm_triton.add_rms_norm(residual, delta, weight, eps=eps)
    check_tensor("residual", residual, (None, None), torch.float32)
    tokens, hidden = residual.shape
    check_tensor("weight", weight, (hidden,), torch.float32)
    if delta is not None:
        check_tensor("delta", delta, (tokens, hidden), torch.float32)
    if native is None:
        return _reference(residual, delta, weight, eps)
    out = torch.empty_like(residual)
    native.library.ft_rms_norm(
        residual.data_ptr(),
        None if delta is None else delta.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        tokens,
        hidden,
        eps,
        native.num_threads,
    )
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last axis, row-invariant."""
    mean = tree_sum(x * x) / x.shape[-1]
    return x * (1.0 / torch.sqrt(mean + eps)).unsqueeze(-1) * weight


def _reference(residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if delta is not None:
        residual += delta
    return rms_norm(residual, weight, eps)
