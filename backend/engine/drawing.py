"""Tokens drawn from a pass's logits, and what each does to its request: it goes on, takes forced tokens, or ends."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

from forktree.backend.engine.ahead import AheadRunner
from forktree.backend.engine.live import LiveRequests
from forktree.backend.engine.messages import Runner, SampleRow, TokenInfo
from forktree.backend.engine.output import Ending, end_of_constraint, sample_row, take_forced, take_token
from forktree.backend.engine.request import Phase, Sequence
from forktree.backend.engine.speculation import count_standing

Waiting = tuple[int, Sequence, tuple[int, ...]]
"""A row of logits, the sequence that draws from it, and the draft whose first token that may turn out to be."""


class Draw(NamedTuple):
    """A sequence whose next token is to be drawn from row `row` of the step's logits.

    If it is the first of `draft`, the one after it can be drawn from the next row, and so on.
    """

    seq: Sequence
    row: int
    what: SampleRow
    draft: tuple[int, ...] = ()


class Drawer:
    """Draws for one engine, and counts.

    Args:
        overlapped: the runner, where it draws without being waited for.
        launch_ahead: launches the next pass over sequences that are being drawn, where that can be; whether it did.
    """

    def __init__(
        self,
        runner: Runner,
        live: LiveRequests,
        overlapped: AheadRunner | None,
        launch_ahead: Callable[[list[Sequence]], bool],
    ) -> None:
        self._runner = runner
        self._live = live
        self._overlapped = overlapped
        self._launch_ahead = launch_ahead
        self.num_drawn = self.num_forced = 0

    def begin(self, seq: Sequence) -> None:
        """Tokens that the constraint forces at once are computed with the prompt."""
        try:
            outcome = take_forced(seq)
        except Exception as error:
            self._live.fail_at(seq, "the constraint failed", error)
            return
        self.num_forced += len(seq.output_ids)
        if isinstance(outcome, Ending):
            self._live.finish(seq, outcome)
        elif outcome.tokens:
            self._live.tell(seq, outcome)

    def draw(self, logits: Any, waiting: list[Waiting]) -> None:
        """A token for each sequence, and for those whose drafts stand another, and so on."""
        while waiting:
            draws = self._list_draws(waiting)
            self._deliver(draws, self._sample(logits, draws))
            waiting = [accepted for draw in draws if (accepted := _go_on(draw)) is not None]

    def _list_draws(self, waiting: list[Waiting]) -> list[Draw]:
        draws = []
        for row, seq, draft in waiting:
            if seq.phase is Phase.DONE:
                continue
            try:
                what = sample_row(seq)
                if what is None:
                    self._live.finish(seq, end_of_constraint(seq))
                else:
                    draws.append(Draw(seq, row, what, draft))
            except Exception as error:
                self._live.fail_at(seq, "the constraint failed", error)
        return draws

    def _sample(self, logits: Any, draws: list[Draw]) -> list[TokenInfo | Exception]:
        """One token for each draw, or the exception that its row raised alone.

        A draw is a function of its own row, seed and position, so asking again row by row changes nothing. But not
        behind a pass that was launched ahead: logits hold until the next pass, and it may have overwritten them.
        """
        if not draws:
            return []
        rows = [(draw.row, draw.what) for draw in draws]
        is_launched = False
        try:
            if self._overlapped is None:
                return list(self._runner.sample(logits, rows))
            pending = self._overlapped.begin_sample(logits, rows)
            is_launched = self._launch_ahead([draw.seq for draw in draws])
            return pending.outcomes()
        except Exception as error:
            if len(draws) == 1 or is_launched:
                return [error] * len(draws)
        return [result for draw in draws for result in self._sample(logits, [draw])]

    def _deliver(self, draws: list[Draw], results: Seq[TokenInfo | Exception]) -> None:
        for draw, result in zip(draws, results, strict=True):
            if isinstance(result, Exception):
                self._live.fail_at(draw.seq, "sampling failed", result)
                continue
            self.num_drawn += 1
            num_before = len(draw.seq.output_ids)
            try:
                outcome = take_token(draw.seq, result)
                self.num_forced += max(0, len(draw.seq.output_ids) - num_before - 1)
                if isinstance(outcome, Ending):
                    self._live.finish(draw.seq, outcome)
                    continue
            except Exception as error:
                self._live.fail_at(draw.seq, f"token {result.token} could not be taken", error)
                continue
            self._live.tell(draw.seq, outcome)


def _go_on(draw: Draw) -> Waiting | None:
    """Where to draw next, if all that is known since a draw was drafted. Rows of what was count as computed."""
    seq, row, _, draft = draw
    if seq.phase is Phase.DONE or not draft:
        return None
    num_stood = count_standing(draft, seq.ids[seq.num_computed :])
    seq.num_computed += num_stood
    if seq.num_pending:
        return None
    return row + num_stood, seq, draft[num_stood:]
