"""From final hidden states of a prompt's tokens to one vector of length 1.

A sum and a mean of states have one direction, so that no count is needed: the last token's state and the mean over a
prompt are both the direction of a sum. It is taken in float64, one row after another in order of position, so that
the chunks in which a prompt was computed change no bit.
"""

from __future__ import annotations

import math

import torch

from forktree.lang.errors import EngineError


def add_states(total: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
    """`total` plus each of `states` in turn.

    Args:
        total:  [hidden] float64, or None for nothing yet
        states: [rows, hidden] float32, on any device
    Returns:
        [hidden] float64, on the CPU
    """
    rows = states.to("cpu", torch.float64)
    total = torch.zeros(rows.shape[1], dtype=torch.float64) if total is None else total
    for row in rows:
        total = total + row
    return total


def direction_of(total: torch.Tensor) -> tuple[float, ...]:
    """The sum divided by its length, each value rounded to float32.

    Raises EngineError: it has no direction, because a state is not finite or all are zero.
    """
    values = total.tolist()
    length = math.sqrt(math.fsum(value * value for value in values))
    if not 0 < length < math.inf:
        raise EngineError(f"the model's hidden states have no direction: their sum has length {length}")
    found: list[float] = torch.tensor([value / length for value in values]).tolist()
    return tuple(found)
