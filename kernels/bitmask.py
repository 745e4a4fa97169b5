"""Packed masks of legal tokens over rows of logits."""

from __future__ import annotations

import torch

from forktree.kernels.checks import check_floats, check_tensor


def apply_bitmask(logits: torch.Tensor, masks: torch.Tensor, *, vocab_size: int) -> torch.Tensor:
    """Set every logit that may not be drawn to −inf, in place; returns `logits`.

    Args:
        logits: [rows, width]; the output layer may be wider than the vocabulary
        masks:  [rows, words] int32: bit t % 32 of word t // 32 says that token t is legal
        vocab_size: ids from here on, and ids that the mask is too narrow for, are never legal.
    Raises:
        ShapeError: shapes or types that do not fit.
    """
    check_floats("logits", logits, (None, None))
    check_tensor("masks", masks, (logits.shape[0], None), torch.int32)
    if logits.is_cuda:
        from forktree.kernels.bitmask_triton import apply_bitmask as apply

        return apply(logits, masks, vocab_size=vocab_size)
    return logits.masked_fill_(~unpack(masks, logits.shape[1], vocab_size), float("-inf"))


def unpack(masks: torch.Tensor, width: int, vocab_size: int) -> torch.Tensor:
    """[rows, words] int32 → [rows, width] flags."""
    bits = (masks.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=masks.device)) & 1
    flags = bits.bool().flatten(1)[:, : min(width, vocab_size)]
    return torch.nn.functional.pad(flags, (0, width - flags.shape[1]))
