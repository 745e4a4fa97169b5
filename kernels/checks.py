"""Shape checks that the operations share."""

from __future__ import annotations

import torch


class ShapeError(ValueError):
    """A tensor has a shape, type or layout that an operation does not take."""


def check_tensor(name: str, tensor: torch.Tensor, shape: tuple[int | None, ...], dtype: torch.dtype) -> None:
    """Check shape (None is any length), type and contiguity.

    Raises:
        ShapeError: with the name, what was given and what is right.
    """
    fits = tensor.dim() == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        want = ", ".join("*" if size is None else str(size) for size in shape)
        raise ShapeError(f"{name} must be [{want}], not {list(tensor.shape)}")
    if tensor.dtype != dtype:
        raise ShapeError(f"{name} must be {dtype}, not {tensor.dtype}")
    if not tensor.is_contiguous():
        raise ShapeError(f"{name} must be contiguous; its strides are {list(tensor.stride())}")


FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Types that the kernels for a GPU read and write; sums are float32 whatever they are."""


def check_floats(name: str, tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    """`check_tensor` for any of `FLOATS`.

    Raises:
        ShapeError: with the name, what was given and what is right.
    """
    if tensor.dtype not in FLOATS:
        raise ShapeError(f"{name} must be float32, bfloat16 or float16, not {tensor.dtype}")
    check_tensor(name, tensor, shape, tensor.dtype)
