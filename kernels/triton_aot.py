"""What is needed to compile a Triton kernel ahead of time, without a device and without calling it.

Every `<op>_triton.py` lists the shapes it is launched with in `aot_specs()`; `benchmarks/gpu/compile_report.py`
compiles them for real chips and reads registers, spills and shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

POINTER_TYPES: Mapping[torch.dtype, str] = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
"""How Triton names a pointer to a tensor of this type."""


@dataclass(frozen=True, slots=True)
class AotSpec:
    """One kernel at one set of types and constants.

    Attributes:
        name:       kernel and variant, as the report prints it: "attend_items bf16 d128".
        kernel:     the `triton.jit` function.
        arguments:  type of each argument that is passed at run time, in Triton's spelling: "*bf16", "i32", "fp32".
        constants:  value of each `tl.constexpr` argument.
        enable_fp_fusion: whether the compiler may fuse products and sums; launched with the same.
        unaligned:  pointers that may not be 16-byte aligned when launched; all others are.
    """

    name: str
    kernel: object
    arguments: Mapping[str, str]
    constants: Mapping[str, object]
    num_warps: int = 4
    num_stages: int = 2
    enable_fp_fusion: bool = False
    unaligned: frozenset[str] = field(default_factory=frozenset)
