"""Rotary angles of every position, in the very float32 operations of the families' own code.

Float64 would be nearer to the mathematics and farther from what the models were trained with.
"""

from __future__ import annotations

import math

import torch

from forktree.backend.model.config import ModelConfig, RopeConfig
from forktree.kernels.rotary import RotaryTable


def build_rotary_table(config: ModelConfig) -> RotaryTable:
    """Cosines and sines up to `max_positions`; computed once, so that every step reads equal bits."""
    frequencies = inverse_frequencies(config.rope, config.head_dim)
    angles = torch.arange(config.max_positions, dtype=torch.float32).unsqueeze(1) * frequencies
    return RotaryTable(angles.cos(), angles.sin())


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """[head_dim / 2] float32, radians a position."""
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    match rope.kind:
        case "linear":
            return plain / rope.factor
        case "llama3":
            return _llama3(plain, rope)
        case _:
            return plain


def _llama3(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Slow frequencies are divided by the factor, fast ones kept, those between blended (Llama 3.1)."""
    wavelength = 2 * math.pi / plain
    turns = rope.original_max_positions / wavelength
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    slow = plain / rope.factor
    blended = (1 - blend) * slow + blend * plain
    result = torch.where(turns < rope.low_freq_factor, slow, blended)
    return torch.where(turns > rope.high_freq_factor, plain, result)
