"""What requests read of a pass besides their next token: log-probabilities, and final hidden states."""

from __future__ import annotations

from typing import Any

from forktree.backend.engine.batch import BranchScores, HiddenRows, ScoreRows, StepBatch
from forktree.backend.engine.live import LiveRequests
from forktree.backend.engine.messages import HiddenRunner, Runner
from forktree.backend.engine.output import Ending
from forktree.backend.engine.request import Phase, Sequence


class Readings:
    """Reads for one engine. A reading that fails ends its own request."""

    def __init__(self, runner: Runner, live: LiveRequests) -> None:
        self._runner = runner
        self._live = live

    def deliver(self, logits: Any, hidden: Any | None, batch: StepBatch) -> None:
        """What each request asked to know of its rows."""
        self._deliver_scores(logits, batch.scores)
        self._deliver_branch_scores(logits, batch.branch_scores)
        self._deliver_hidden(hidden, batch.hidden)

    def finish_prompt(self, seq: Sequence) -> None:
        """End a request that generates nothing."""
        embedding: tuple[float, ...] = ()
        if seq.hidden_total is not None:
            try:
                embedding = self._embedder.direction_of(seq.hidden_total)
            except Exception as error:
                self._live.fail_at(seq, "the prompt has no embedding", error)
                return
        self._live.finish(seq, Ending(reason="length"), embedding)

    @property
    def _embedder(self) -> HiddenRunner:
        """The runner, for requests that are taken only where it is one."""
        assert isinstance(self._runner, HiddenRunner)
        return self._runner

    def _deliver_scores(self, logits: Any, scores: list[ScoreRows]) -> None:
        for seq, first_row, tokens in scores:
            if seq.phase is Phase.DONE:
                continue
            try:
                rows = range(first_row, first_row + len(tokens))
                seq.prompt_logprobs += self._runner.gather_logprobs(logits, rows, tokens)
            except Exception as error:
                self._live.fail_at(seq, "log-probabilities could not be computed", error)

    def _deliver_branch_scores(self, logits: Any, scores: list[BranchScores]) -> None:
        for seq, rows, nodes, tokens in scores:
            if seq.phase is Phase.DONE:
                continue
            try:
                found = self._runner.gather_logprobs(logits, rows, tokens)
                for node, logprob in zip(nodes, found, strict=True):
                    seq.continuation_logprobs[node] = logprob
            except Exception as error:
                self._live.fail_at(seq, "log-probabilities could not be computed", error)

    def _deliver_hidden(self, hidden: Any, wanted: list[HiddenRows]) -> None:
        for seq, rows in wanted:
            if seq.phase is Phase.DONE:
                continue
            try:
                seq.hidden_total = self._embedder.add_hidden(seq.hidden_total, hidden, rows)
                seq.num_hidden += len(rows)
            except Exception as error:
                self._live.fail_at(seq, "hidden states could not be read", error)
