"""A linear layer whose rows do not know each other, for dense weights: contract, plain reference, dispatch.

The inner axis is cut into segments of a length that only the weight's shape decides. A segment is summed from its
first product to its last, and segments are added in order: so a row has the same bits alone, among 64 and within a
prompt, whatever tiles the outer axes are cut into.
"""

from __future__ import annotations

import torch

from forktree.kernels.checks import ShapeError, check_floats, check_tensor
from forktree.kernels.exact import tree_sum

BLOCK_K = 64
"""Numbers of the inner axis that one step of a kernel multiplies: a segment is a multiple."""
_TILE_N = 64
_ENOUGH_PROGRAMS = 256
_SHORTEST_SEGMENT = 512


def multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """x · weightᵀ + bias.

    Args:
        x:      [tokens, in]
        weight: [out, in], the type of x
        bias:   [out] or None, added in float32
        dtype:  of the result; that of x by default.
    Returns:
        [tokens, out]
    Raises:
        ShapeError: shapes or types that do not fit.
    """
    check_multiply(x, weight, bias)
    if x.is_cuda:
        from forktree.kernels.matmul_triton import multiply as on_device

        return on_device(x, weight, bias, dtype=dtype)
    return _reference(x, weight, bias).to(dtype or x.dtype)


def check_multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    check_floats("x", x, (None, None))
    check_tensor("weight", weight, (None, x.shape[1]), x.dtype)
    if bias is not None:
        check_floats("bias", bias, (weight.shape[0],))
    if not x.shape[1]:
        raise ShapeError("x must have at least one column")


def segment_length(num_outputs: int, num_inputs: int) -> int:
    """Of the inner axis, in numbers: the last segment may be shorter.

    A decode step is bound by the memory, which only many programs at a time keep busy. Where the outputs alone give
    too few, the inner axis is cut as well, down to pieces that are still worth a program.
    """
    tiles = -(-num_outputs // _TILE_N)
    wanted = -(-_ENOUGH_PROGRAMS // tiles)
    most = max(1, num_inputs // _SHORTEST_SEGMENT)
    length = -(-num_inputs // min(wanted, most))
    return -(-length // BLOCK_K) * BLOCK_K


def _reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The same segments in order, each summed by halving; float32, one row at a time."""
    num_outputs, num_inputs = weight.shape
    length, wide = segment_length(num_outputs, num_inputs), weight.float()
    total = torch.zeros(x.shape[0], num_outputs)
    for start in range(0, num_inputs, length):
        part = slice(start, start + length)
        for row, values in enumerate(x.float()):
            total[row] += tree_sum(wide[:, part] * values[part])
    return total if bias is None else total + bias.float()
