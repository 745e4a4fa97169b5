"""Log-softmax of chosen tokens, for a GPU: one program a row reads the row once and then its tokens.

Bytes a row: 4 · vocab read, whatever the number of its tokens. The sum of exponentials is float32 within a block and
float64 from block to block, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl

from forktree.kernels.checks import check_tensor
from forktree.kernels.triton_aot import POINTER_TYPES, AotSpec

_BLOCK = 4096


@triton.jit
def gather_logprobs_kernel(logits, rows, starts, tokens, out, norms, stride, width, BLOCK: tl.constexpr):
    """NaN where a row holds a NaN or +inf; 0 · inf is avoided for rows of −inf alone."""
    index = tl.program_id(0)
    base = logits + tl.load(rows + index).to(tl.int64) * stride
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float64)
    bad = tl.zeros((), tl.int32)
    for start in range(0, width, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = tl.load(base + ids, mask=ids < width, other=float("-inf"))
        bad = tl.maximum(bad, tl.max(((x < float("inf")) == 0).to(tl.int32), 0))
        x = tl.where(x < float("inf"), x, float("-inf"))
        best = tl.maximum(top, tl.max(x, 0))
        safe = tl.where(best > float("-inf"), best, 0.0)
        total = total * tl.exp((top - safe).to(tl.float64)) + tl.sum(tl.exp(x - safe), 0).to(tl.float64)
        top = best
    norm = tl.where(total > 0, top.to(tl.float64) + tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))
    norm = tl.where(bad > 0, float("nan"), norm)
    tl.store(norms + index, norm)
    first = tl.load(starts + index)
    last = tl.load(starts + index + 1)
    for at in range(first, last):
        token = tl.load(tokens + at).to(tl.int64)
        tl.store(out + at, tl.load(base + token).to(tl.float64) - norm)


def gather_logprobs(
    logits: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of each chosen row's tokens.

    Args:
        logits: [rows, vocab] float32
        rows:   [chosen] int32
        starts: [chosen + 1] int32, into `tokens`
        tokens: [*] int32
    Returns:
        [*] float64: natural log-probabilities, and [chosen] float64: the rows' log-sum-exps, NaN where a row holds a
        NaN or +inf.
    Raises:
        ShapeError: shapes or types that do not fit.
    """
    check_tensor("logits", logits, (None, None), torch.float32)
    check_tensor("rows", rows, (None,), torch.int32)
    check_tensor("starts", starts, (len(rows) + 1,), torch.int32)
    check_tensor("tokens", tokens, (None,), torch.int32)
    out = torch.empty(len(tokens), dtype=torch.float64, device=logits.device)
    norms = torch.empty(len(rows), dtype=torch.float64, device=logits.device)
    if len(rows):
        gather_logprobs_kernel[(len(rows),)](
            logits, rows, starts, tokens, out, norms, logits.stride(0), logits.shape[1], BLOCK=_BLOCK, num_warps=8
        )
    return out, norms


def gather_pairs(logits: torch.Tensor, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """The same for (row, token) pairs in any order; each distinct row is read once. Waits for the device."""
    order = sorted(range(len(rows)), key=rows.__getitem__)
    distinct: list[int] = []
    starts: list[int] = []
    for at, index in enumerate(order):
        if not distinct or rows[index] != distinct[-1]:
            distinct.append(rows[index])
            starts.append(at)
    packed = torch.tensor([*distinct, *starts, len(order), *(tokens[i] for i in order)], dtype=torch.int32)
    packed = packed.to(logits.device)
    found, _ = gather_logprobs(
        logits,
        packed[: len(distinct)],
        packed[len(distinct) : 2 * len(distinct) + 1],
        packed[2 * len(distinct) + 1 :],
    )
    values = found.tolist()
    result = [0.0] * len(rows)
    for at, index in enumerate(order):
        result[index] = values[at]
    return result


def logsumexp_rows(logits: torch.Tensor, rows: Sequence[int]) -> list[float]:
    """`kernels.logits.logsumexp_rows`, whose checks the caller has made. Waits for the device."""
    given = torch.tensor([*rows, *([0] * (len(rows) + 1))], dtype=torch.int32).to(logits.device)
    chosen, starts = given[: len(rows)], given[len(rows) :]
    _, norms = gather_logprobs(logits, chosen, starts, starts[:0])
    values: list[float] = norms.tolist()
    return values


def aot_specs() -> Iterator[AotSpec]:
    """For float32 logits."""
    yield AotSpec(
        name="gather_logprobs float32",
        kernel=gather_logprobs_kernel,
        arguments={"logits": POINTER_TYPES[torch.float32]}
        | dict.fromkeys(("rows", "starts", "tokens"), POINTER_TYPES[torch.int32])
        | {"out": "*fp64", "norms": "*fp64", "stride": "i32", "width": "i32"},
        constants={"BLOCK": _BLOCK},
        num_warps=8,
        enable_fp_fusion=True,
    )
