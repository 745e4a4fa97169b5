"""Large pages behind large tensors.

A step reads every weight once, and keys and values from all over their pool: through pages of 4 kB a good part of
its time goes to finding where they lie.
"""

from __future__ import annotations

import ctypes
import sys

import torch

_PAGE = 4096
_HUGE_PAGES = 14  # MADV_HUGEPAGE of Linux


def advise_huge_pages(tensor: torch.Tensor) -> None:
    """Ask for large pages behind a contiguous tensor that nothing was written to yet.

    It is advice: where the system has none to give, or is not Linux, nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return
    begin = -(-tensor.data_ptr() // _PAGE) * _PAGE
    end = (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // _PAGE * _PAGE
    if begin < end:
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        madvise(begin, end - begin, _HUGE_PAGES)
