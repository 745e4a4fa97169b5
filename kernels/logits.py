"""The normaliser of a row of logits: what turns a logit into a log-probability."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from forktree.kernels.checks import check_tensor
from forktree.kernels.exact import exp, tree_sum
from forktree.kernels.native import Native


def logsumexp_rows(logits: torch.Tensor, rows: Sequence[int], *, native: Native | None = None) -> list[float]:
    """Natural log of the sum of exponentials of each chosen row.

    Args:
        logits: [rows, vocab] float32
        rows:   which rows, in any order, repeats allowed
    Returns:
        One float a chosen row; NaN where the row holds a NaN or +inf.
    """
    check_tensor("logits", logits, (None, None), torch.float32)
    if not rows:
        return []
    if min(rows) < 0 or max(rows) >= logits.shape[0]:
        raise IndexError(f"rows must be in [0, {logits.shape[0]}), not {list(rows)}")
    if logits.is_cuda:
        from forktree.kernels import logits_triton

        return logits_triton.logsumexp_rows(logits, rows)
    if native is None:
        return [_reference(logits[row]) for row in rows]
    chosen = torch.tensor(rows, dtype=torch.int64)
    out = torch.empty(len(rows), dtype=torch.float64)
    native.library.ft_logsumexp(
        logits.data_ptr(), chosen.data_ptr(), out.data_ptr(), len(rows), logits.shape[1], native.num_threads
    )
    values: list[float] = out.tolist()
    return values


def _reference(row: torch.Tensor) -> float:
    top = row.max()
    if not torch.isfinite(top):
        return float("-inf") if top == float("-inf") else float("nan")
    weights = exp(row - top).masked_fill(row == float("-inf"), 0.0)
    return float(top.double() + torch.log(tree_sum(weights.double())))
