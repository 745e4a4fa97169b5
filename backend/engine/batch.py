"""From a step's plan to the arrays of one forward pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from forktree.backend.engine.continuations import BranchRows
from forktree.backend.engine.messages import ForwardBatch
from forktree.backend.engine.request import Sequence
from forktree.backend.engine.scheduler import Chunk


class ScoreRows(NamedTuple):
    """Rows of logits that foretell `tokens` of a prompt: `tokens[i]` under row `first_row + i`."""

    seq: Sequence
    first_row: int
    tokens: list[int]


class BranchScores(NamedTuple):
    """Logits that foretell nodes of continuations: `nodes[i]`, of token `tokens[i]`, under row `rows[i]`."""

    seq: Sequence
    rows: list[int]
    nodes: list[int]
    tokens: list[int]


class HiddenRows(NamedTuple):
    """Final hidden states to be added to a sequence's sum: `rows` of those that the pass gives out."""

    seq: Sequence
    rows: range


class StepBatch(NamedTuple):
    """One forward pass, and who reads which row of its logits.

    `draws` holds, for each sequence whose known tokens are all computed by this step, the row to draw from and the
    tokens that were drafted to follow; the rows of these follow that row.
    """

    forward: ForwardBatch
    draws: list[tuple[int, Sequence, tuple[int, ...]]]
    scores: list[ScoreRows]
    branch_scores: list[BranchScores]
    hidden: list[HiddenRows]


def build_batch(chunks: Iterable[Chunk]) -> StepBatch:
    """Lay the chunks end to end.

    Page tables are the sequences' own lists: they stay as they are until the step has been delivered.
    """
    forward = ForwardBatch(ids=[], positions=[], seq_of_row=[], page_tables=[], logit_rows=[])
    batch = StepBatch(forward, [], [], [], [])
    for chunk in chunks:
        first_row = len(forward.ids)
        _add_rows(forward, chunk)
        _add_logit_rows(batch, chunk, first_row)
        _add_hidden_rows(batch, chunk, first_row)
        if chunk.seq.branches is not None:
            _add_branch_rows(batch, chunk, first_row, chunk.seq.branches)
    return batch


def _add_rows(forward: ForwardBatch, chunk: Chunk) -> None:
    seq, start, num_tokens, draft = chunk
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
    if draft is not None:
        forward.ids.extend(draft.tokens)
        forward.positions.extend(range(start + num_tokens, start + num_tokens + len(draft.tokens)))
        forward.seq_of_row.extend([index] * len(draft.tokens))


def _add_logit_rows(batch: StepBatch, chunk: Chunk, first_row: int) -> None:
    seq, start, num_tokens, draft = chunk
    logit_rows, end = batch.forward.logit_rows, start + num_tokens
    row = seq.first_score_row
    if row is not None and row < end:
        scored = range(row, min(end, seq.num_prompt - 1))  # the cache stops before `row`, so row >= start
        tokens = seq.ids[scored.start + 1 : scored.stop + 1]
        batch.scores.append(ScoreRows(seq, len(logit_rows), tokens))
        logit_rows.extend(range(first_row + scored.start - start, first_row + scored.stop - start))
    if chunk.draws:
        drafted = () if draft is None else draft.tokens
        batch.draws.append((len(logit_rows), seq, drafted))
        logit_rows.extend(range(first_row + num_tokens - 1, first_row + num_tokens + len(drafted)))


def _add_hidden_rows(batch: StepBatch, chunk: Chunk, first_row: int) -> None:
    seq, start, num_tokens, _ = chunk
    row, end = seq.first_hidden_row, start + num_tokens
    if row is None or row >= end:
        return
    hidden_rows = batch.forward.hidden_rows  # the cache stops before `row`, so row >= start
    batch.hidden.append(HiddenRows(seq, range(len(hidden_rows), len(hidden_rows) + end - row)))
    hidden_rows.extend(range(first_row + row - start, first_row + num_tokens))


def _add_branch_rows(batch: StepBatch, chunk: Chunk, first_row: int, branches: BranchRows) -> None:
    """Put a chunk's rows in their branches, and ask for the logits of each and of the prompt's last row."""
    seq, start, num_tokens, _ = chunk
    forward, trie = batch.forward, seq.request.continuations
    assert trie is not None
    scores = BranchScores(seq, [], [], [])
    for place in range(max(start, seq.num_prompt - 1), start + num_tokens):
        index, row = place - seq.num_prompt, first_row + place - start
        if index >= 0:
            forward.positions[row] = seq.num_prompt + branches.offsets[index]
            forward.places[row] = place
        nodes = branches.foretold[index + 1]
        scores.rows.extend([len(forward.logit_rows)] * len(nodes))
        scores.nodes.extend(nodes)
        scores.tokens.extend(trie.tokens[node] for node in nodes)
        forward.logit_rows.append(row)
    if start + num_tokens > seq.num_prompt:
        forward.trees[len(forward.page_tables) - 1] = branches.tree
    if scores.nodes:
        batch.branch_scores.append(scores)
