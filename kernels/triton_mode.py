"""Whether Triton's kernels are compiled or run by its interpreter."""

from __future__ import annotations

import triton


@triton.jit
def _probe():
    pass


def is_interpreted() -> bool:
    """True where TRITON_INTERPRET was set when triton was imported: kernels then take CPU tensors.

    The interpreter (3.9) multiplies the bits of bfloat16 matrices, not their values, so a kernel that takes `tl.dot`
    of them must widen them to float32 first, which changes no product.
    """
    return not isinstance(_probe, triton.JITFunction)
