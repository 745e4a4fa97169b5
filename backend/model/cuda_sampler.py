"""Draws on a device: launched at once, read when they are needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from forktree.backend.engine.messages import SampleRow, TokenInfo
from forktree.backend.model.cuda_inputs import Fence, to_device
from forktree.backend.sampler_inputs import has_edits, make_edits, make_inputs
from forktree.kernels import logits_triton
from forktree.kernels.sampling import BROKEN_ROW, DRAWN, Drawn, Edits
from forktree.kernels.sampling_triton import draw_tokens, edit_logits_
from forktree.lang.errors import EngineError

Rows = Sequence[tuple[int, SampleRow]]


class PendingDraws:
    """Tokens that are being drawn. `result` waits for them, once.

    Args:
        adjusted: [draws, width] penalised logits, for log-probabilities; None where nobody asked for any.
    """

    def __init__(self, rows: Rows, drawn: Drawn, adjusted: torch.Tensor | None, vocab_size: int) -> None:
        self._rows = rows
        self._adjusted = adjusted
        self._vocab_size = vocab_size
        device = drawn.token.device
        packed = torch.stack([drawn.token, drawn.logit.view(torch.int32), drawn.status])[:, : len(rows)]
        is_cuda = device.type == "cuda"
        self._host = torch.empty(packed.shape, dtype=torch.int32, pin_memory=is_cuda)
        self._host.copy_(packed, non_blocking=True)
        self._fence = Fence(device)
        self._fence.mark()

    def result(self) -> list[TokenInfo]:
        """One for each row.

        Raises:
            EngineError: a row has a NaN or +inf, or nothing that may be drawn; the message names the row.
        """
        infos = []
        for outcome in self.outcomes():
            if isinstance(outcome, Exception):
                raise outcome
            infos.append(outcome)
        return infos

    def outcomes(self) -> list[TokenInfo | Exception]:
        """The same, with each row's error in its place."""
        self._fence.wait()
        tokens, _, statuses = self._host.tolist()
        infos = self._with_logprobs(tokens, self._host[1].view(torch.float32).tolist())
        outcomes: list[TokenInfo | Exception] = []
        for (row, _), info, status in zip(self._rows, infos, statuses, strict=True):
            outcomes.append(info if status == DRAWN else EngineError(_describe(row, status)))
        return outcomes

    def _with_logprobs(self, tokens: list[int], logits: list[float]) -> list[TokenInfo]:
        infos = [TokenInfo(token) for token in tokens]
        asked = [i for i, (_, what) in enumerate(self._rows) if what.params.num_logprobs is not None]
        if not asked:
            return infos
        assert self._adjusted is not None
        norms = logits_triton.logsumexp_rows(self._adjusted, asked)
        most = max(self._rows[i][1].params.num_logprobs or 0 for i in asked)
        top = _find_top(self._adjusted[asked, : self._vocab_size], most)
        for i, norm, alternatives in zip(asked, norms, top, strict=True):
            num = self._rows[i][1].params.num_logprobs or 0
            found = tuple((token, value - norm) for token, value in alternatives[:num])
            infos[i] = TokenInfo(tokens[i], logits[i] - norm, found)
        return infos


def begin_draws(logits: torch.Tensor, rows: Rows, *, vocab_size: int) -> tuple[PendingDraws, Drawn]:
    """Launch the draws of a step, whatever they are; returns at once."""
    width, device = logits.shape[1], logits.device
    inputs = to_device(make_inputs(rows, words=-(-width // 32)), device)
    adjusted: torch.Tensor | None = None
    if any(has_edits(what) or what.params.num_logprobs is not None for _, what in rows):
        adjusted = edit_logits_(logits[inputs.rows.long()], _edits_to(make_edits(rows, width), device))
        inputs.rows.copy_(torch.arange(len(rows), dtype=torch.int32))
    drawn = draw_tokens(logits if adjusted is None else adjusted, inputs, vocab_size=vocab_size)
    return PendingDraws(rows, drawn, adjusted, vocab_size), drawn


def is_plain(rows: Rows) -> bool:
    """Whether every draw looks at the logits as they are and wants a token alone."""
    return not any(has_edits(what) or what.params.num_logprobs is not None for _, what in rows)


def _find_top(values: torch.Tensor, k: int) -> list[list[tuple[int, float]]]:
    """The k likeliest of each row, the lower id first among equals: a stable sort, since topk promises no order."""
    ordered = torch.sort(values, dim=-1, descending=True, stable=True)
    ids, found = ordered.indices[:, :k].tolist(), ordered.values[:, :k].tolist()
    return [list(zip(*pair, strict=True)) for pair in zip(ids, found, strict=True)]


def _edits_to(edits: Edits, device: torch.device) -> Edits:
    parts = (edits.start, edits.token, edits.penalty, edits.lowered, edits.bias)
    return Edits(*(part.to(device) for part in parts))


def _describe(row: int, status: int) -> str:
    if status == BROKEN_ROW:
        return f"row {row} of the logits holds a NaN or +inf; the model's weights or its input are broken"
    return f"row {row} has no token that may be drawn: mask, bans and bias exclude every one"
