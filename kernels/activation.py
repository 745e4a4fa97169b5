"""SiLU of the gate times the other half, as the feed-forward layers of the Llama family have it."""

from __future__ import annotations

import torch

from forktree.kernels.checks import ShapeError, check_tensor
from forktree.kernels.exact import exp
from forktree.kernels.native import Native


def silu_mul(gate_up: torch.Tensor, *, native: Native | None = None) -> torch.Tensor:
    """silu(gate) · up.

    Args:
        gate_up: [tokens, 2 · intermediate] float32, the gate first.
    Returns:
        [tokens, intermediate]
    Raises:
        ShapeError: an odd width, or a tensor that does not fit.
    """
    if gate_up.is_cuda:
        from forktree.kernels import activation_triton

        return activation_triton.silu_mul(gate_up)
    check_tensor("gate_up", gate_up, (None, None), torch.float32)
    tokens, width = gate_up.shape
    if width % 2:
        raise ShapeError(f"gate_up must have an even width, not {width}")
    if native is None:
        gate, up = gate_up[:, : width // 2], gate_up[:, width // 2 :]
        return gate / (exp(-gate) + 1.0) * up
    out = gate_up.new_empty(tokens, width // 2)
    native.library.ft_silu_mul(gate_up.data_ptr(), out.data_ptr(), tokens, width // 2, native.num_threads)
    return out
