"""From a step's plan to the arrays of one forward pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from forktree.backend.engine.messages import ForwardBatch
from forktree.backend.engine.request import Sequence
from forktree.backend.engine.scheduler import Chunk


class ScoreRows(NamedTuple):
    """Rows of logits that foretell `tokens` of a prompt: `tokens[i]` under row `first_row + i`."""

    seq: Sequence
    first_row: int
    tokens: list[int]


class StepBatch(NamedTuple):
    """One forward pass, and who reads which row of its logits.

    `draws` holds (row, sequence) for each sequence whose known tokens are all computed by this step.
    """

    forward: ForwardBatch
    draws: list[tuple[int, Sequence]]
    scores: list[ScoreRows]


def build_batch(chunks: Iterable[Chunk]) -> StepBatch:
    """Lay the chunks end to end.

    Page tables are the sequences' own lists: they stay as they are until the step has been delivered.
    """
    forward = ForwardBatch(ids=[], positions=[], seq_of_row=[], page_tables=[], logit_rows=[])
    batch = StepBatch(forward, [], [])
    for chunk in chunks:
        first_row = len(forward.ids)
        _add_rows(forward, chunk)
        _add_logit_rows(batch, chunk, first_row)
    return batch


def _add_rows(forward: ForwardBatch, chunk: Chunk) -> None:
    seq, start, num_tokens = chunk
    index = len(forward.page_tables)
    forward.page_tables.append(seq.pages)
    if num_tokens == 1:
        forward.ids.append(seq.ids[start])
        forward.positions.append(start)
        forward.seq_of_row.append(index)
    else:
        forward.ids.extend(seq.ids[start : start + num_tokens])
        forward.positions.extend(range(start, start + num_tokens))
        forward.seq_of_row.extend([index] * num_tokens)


def _add_logit_rows(batch: StepBatch, chunk: Chunk, first_row: int) -> None:
    seq, start, num_tokens = chunk
    logit_rows, end = batch.forward.logit_rows, start + num_tokens
    row = seq.first_score_row
    if row is not None and row < end:
        scored = range(row, min(end, seq.num_prompt - 1))  # the cache stops before `row`, so row >= start
        tokens = seq.ids[scored.start + 1 : scored.stop + 1]
        batch.scores.append(ScoreRows(seq, len(logit_rows), tokens))
        logit_rows.extend(range(first_row + scored.start - start, first_row + scored.stop - start))
    if end == len(seq.ids) and seq.output_limit:
        batch.draws.append((len(logit_rows), seq))
        logit_rows.append(first_row + num_tokens - 1)
