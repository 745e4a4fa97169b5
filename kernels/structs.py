"""What the native library is told, as it reads it: each is the struct of the same name in a header or source.

They hold addresses alone: whoever makes one keeps the tensors for as long as it is used.
"""

from __future__ import annotations

import ctypes
from typing import ClassVar

_P, _I, _N, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class Linear(ctypes.Structure):
    """gemm.h"""

    _fields_: ClassVar = [
        *((name, _P) for name in ("panels", "bias")),
        *((name, _I) for name in ("outputs", "blocks")),
        *((name, _N) for name in ("format", "inputs")),
    ]


class AttentionPlan(ctypes.Structure):
    """attention.h"""

    _fields_: ClassVar = [
        *((name, _P) for name in ("item_page_start", "item_pages", "item_unit", "item_start")),
        *((name, _P) for name in ("entry_row", "entry_count", "entry_pair", "row_pair_start")),
        *((name, _I) for name in ("items", "rows", "split")),
    ]


class Attention(ctypes.Structure):
    """attention.h"""

    _fields_: ClassVar = [
        *((name, _P) for name in ("q", "k_pages", "v_pages", "partial", "stats")),
        ("plan", AttentionPlan),
        *((name, _I) for name in ("q_heads", "kv_heads", "head_dim")),
        ("scale", _F),
    ]


class StepLayer(ctypes.Structure):
    """step_cpu.cpp"""

    _fields_: ClassVar = [
        *((name, _P) for name in ("attention_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, Linear) for name in ("qkv", "output", "gate_up", "down")),
    ]


class StepModel(ctypes.Structure):
    """step_cpu.cpp"""

    _fields_: ClassVar = [
        *((name, _P) for name in ("layers", "embedding", "norm", "cos", "sin")),
        ("head", Linear),
        *((name, _I) for name in ("num_layers", "hidden", "inner", "q_heads", "kv_heads", "head_dim")),
        *((name, _F) for name in ("eps", "scale")),
    ]


class StepInput(ctypes.Structure):
    """step_cpu.cpp"""

    _fields_: ClassVar = [
        *((name, _P) for name in ("ids", "positions", "slots", "logit_rows")),
        *((name, _P) for name in ("k_pages", "v_pages", "logits", "workspace", "hidden_rows", "hidden")),
        ("plan", AttentionPlan),
        *((name, _I) for name in ("rows", "pairs", "most_pairs", "num_logits", "num_hidden", "layer_floats")),
    ]
