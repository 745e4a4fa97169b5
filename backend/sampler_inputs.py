"""From what a request may draw to the tensors that `kernels.sampling` reads: made on the host, copied once.

It says to a device what `backend/sampler.py` does on a CPU, row for row: the same edits, the same ends, the same keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from forktree.backend.engine.messages import SampleRow
from forktree.backend.sampler import race_keys
from forktree.kernels.sampling import DrawInputs, Edits
from forktree.lang.errors import EngineError

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


def make_inputs(
    rows: Sequence[tuple[int, SampleRow]], *, words: int, num_ends: int | None = None, num_banned: int | None = None
) -> DrawInputs:
    """Tensors on the host.

    Args:
        words: int32 words of a mask; one that is longer is cut (ids beyond are padding of the output layer).
        num_ends, num_banned: columns that there is room for; by default as many as a row needs.
    Raises:
        EngineError: a row has more ends or bans than there is room for.
    """
    ends = [sorted(what.end_ids - what.banned_ids) for _, what in rows]
    banned = [sorted(what.banned_ids) for _, what in rows]
    params = [what.params for _, what in rows]
    keys = np.array([race_keys(p.seed, what.position) for p, (_, what) in zip(params, rows, strict=True)], dtype="<u4")
    return DrawInputs(
        rows=torch.tensor([row for row, _ in rows], dtype=torch.int32),
        masks=torch.from_numpy(_masks(rows, words)),
        ends=_lists("end tokens", ends, num_ends),
        banned=_lists("banned tokens", banned, num_banned),
        temperature=torch.tensor([p.temperature for p in params], dtype=torch.float64),
        top_k=torch.tensor([max(0, min(p.top_k, (1 << 31) - 1)) for p in params], dtype=torch.int32),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float64),
        min_p=torch.tensor([p.min_p for p in params], dtype=torch.float64),
        keys=torch.from_numpy(keys.reshape(len(rows), 4).view("<i4")),
    )


def has_edits(what: SampleRow) -> bool:
    """Whether penalties or a bias change any of its logits."""
    params = what.params
    counts = bool(params.frequency_penalty or params.presence_penalty) and bool(len(what.output_ids))
    return params.repetition_penalty != 1.0 or counts or bool(params.logit_bias)


def make_edits(rows: Sequence[tuple[int, SampleRow]], width: int) -> Edits:
    """Penalties and biases of each row, on the host; a row without any has no edits."""
    parts = [_edits_of(what, width) for _, what in rows]
    starts = np.cumsum([0, *(len(tokens) for tokens, _ in parts)])
    values = np.concatenate([values for _, values in parts], axis=1) if parts else np.empty((3, 0), dtype=np.float32)
    tokens = np.concatenate([tokens for tokens, _ in parts]) if parts else np.empty(0, dtype=np.int64)
    penalty, lowered, bias = torch.from_numpy(np.ascontiguousarray(values))
    return Edits(
        start=torch.from_numpy(starts.astype(np.int32)),
        token=torch.from_numpy(tokens.astype(np.int32)),
        penalty=penalty,
        lowered=lowered,
        bias=bias,
    )


def _edits_of(what: SampleRow, width: int) -> tuple[Array, Array]:
    """Tokens [n], and [3, n] float32: penalty, what it is lowered by, bias."""
    params = what.params
    empty = np.empty(0, dtype=np.int64)
    if not has_edits(what):
        return empty, np.empty((3, 0), dtype=np.float32)
    seen = np.unique(np.asarray([*what.prompt_ids, *what.output_ids], dtype=np.int64))
    seen = seen if params.repetition_penalty != 1.0 else empty
    output, times = np.unique(np.asarray(what.output_ids, dtype=np.int64), return_counts=True)
    biased = np.asarray([token for token, _ in params.logit_bias], dtype=np.int64)
    tokens = np.unique(np.concatenate([seen, output, biased]))
    tokens = tokens[(tokens >= 0) & (tokens < width)]
    values = np.zeros((3, len(tokens)), dtype=np.float32)
    values[0] = np.where(np.isin(tokens, seen), np.float32(params.repetition_penalty), np.float32(1.0))
    known = output < width
    lowered = times * params.frequency_penalty + params.presence_penalty
    values[1, np.searchsorted(tokens, output[known])] = lowered[known].astype(np.float32)
    for token, bias in params.logit_bias:
        if 0 <= token < width:
            values[2, np.searchsorted(tokens, token)] += np.float32(bias)
    return tokens, values


def _masks(rows: Sequence[tuple[int, SampleRow]], words: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Nothing is legal behind the end of a mask that is too short."""
    packed = np.zeros((len(rows), words), dtype=np.int32)
    for index, (_, what) in enumerate(rows):
        if what.mask is None:
            packed[index] = -1
        else:
            given = np.asarray(what.mask, dtype=np.int32)[:words]
            packed[index, : len(given)] = given
    return packed


def _lists(name: str, lists: Sequence[Sequence[int]], width: int | None) -> torch.Tensor:
    longest = max(map(len, lists), default=0)
    width = longest if width is None else width
    if longest > width:
        raise EngineError(f"a row has {longest} {name}, but there is room for {width}")
    padded = [[*tokens, *([-1] * (width - len(tokens)))] for tokens in lists]
    return torch.tensor(padded, dtype=torch.int32).view(len(lists), width)
