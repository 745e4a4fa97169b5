"""The next step, launched before this one's tokens are read.

A device that computes by itself would wait while the host reads tokens, tells listeners, advances constraints and
plans. Where a step's sequences all go on decoding and nobody waits to join, the next pass is known but for its ids,
and those are on the device: so it is launched at once, with id −1 − i for the i-th token of the draws (see
`Runner`). By the time it is computed the tokens have been read, and masks for what comes next have been made.

What was launched for a sequence that has ended meanwhile is dropped: its row wrote a slot behind its last token,
which nobody reads, and any later owner of the page writes after it. A sequence that was given more tokens at once
(its constraint forced them) counts the row as computed and does not draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.messages import ForwardBatch, Runner, SampleRow, TokenInfo
from forktree.backend.engine.request import Phase
from forktree.backend.engine.request import Sequence as Seq
from forktree.backend.engine.scheduler import Chunk, StepPlan


class Pending(Protocol):
    """Tokens that are being drawn."""

    def outcomes(self) -> list[TokenInfo | Exception]:
        """Wait for them: a token for each row, or the exception that the row would have raised alone."""
        ...


@runtime_checkable
class AheadRunner(Protocol):
    """A runner whose passes and draws are launched and not waited for.

    `forward` takes −1 − i for the i-th token of the last draws, read or not.
    """

    def begin_sample(self, logits: Any, rows: Sequence[tuple[int, SampleRow]]) -> Pending:
        """`Runner.sample`, not waited for."""
        ...


class Flight(NamedTuple):
    """A pass that was launched, one token for each of its chunks."""

    plan: StepPlan
    logits: Any


_DEVICE_FIXED_ROWS = 256.0
"""Rows up to which a pass of a device costs the time of reading its weights: operations a byte of an H200, bfloat16."""
_DEVICE_STEP_TOKENS = 4096


def config_for(runner: Runner, config: EngineConfig) -> EngineConfig:
    """The limits for a runner. One that does not wait cannot be timed by its calls, and launches ahead instead of
    guessing tokens."""
    if not isinstance(runner, AheadRunner):
        return config
    return replace(
        config,
        max_draft=0,
        fixed_rows=_DEVICE_FIXED_ROWS,
        max_step_tokens=max(config.max_step_tokens, _DEVICE_STEP_TOKENS),
    )


def plan_ahead(drawing: Sequence[Seq], make_room: Callable[[Seq, int], int]) -> tuple[StepPlan, ForwardBatch] | None:
    """A pass over the tokens that are being drawn, in their order; None where nobody goes on, or a page is wanting.

    Args:
        drawing: all running sequences, whose known tokens are all computed.
        make_room: `Scheduler.make_room`
    """
    plan = StepPlan()
    batch = ForwardBatch(ids=[], positions=[], seq_of_row=[], page_tables=[], logit_rows=[])
    for index, seq in enumerate(drawing):
        if seq.num_left <= 1:  # the token that is being drawn is its last
            continue
        if make_room(seq, 1) < 1:
            return None
        position, row = len(seq.ids), len(batch.ids)
        plan.chunks.append(Chunk(seq, position, 1))
        batch.ids.append(-1 - index)
        batch.positions.append(position)
        batch.seq_of_row.append(row)
        batch.page_tables.append(seq.pages)
        batch.logit_rows.append(row)
    return (plan, batch) if plan.chunks else None


def land(flight: Flight) -> tuple[StepPlan, list[tuple[int, Seq, tuple[int, ...]]]]:
    """What is left of a flight: the plan of those who go on, and which rows they draw from.

    A row's sequence knows its token by now, and perhaps more that were forced behind it.
    """
    left = [(row, chunk) for row, chunk in enumerate(flight.plan.chunks) if chunk.seq.phase is Phase.RUNNING]
    draws: list[tuple[int, Seq, tuple[int, ...]]] = [
        (row, chunk.seq, ()) for row, chunk in left if len(chunk.seq.ids) == chunk.start + 1
    ]
    return StepPlan(chunks=[chunk for _, chunk in left]), draws
