"""From chunks to the arrays of one forward pass, by hand."""

from __future__ import annotations

from forktree.backend.engine.batch import build_batch
from forktree.backend.engine.messages import EngineRequest
from forktree.backend.engine.request import Sequence
from forktree.backend.engine.scheduler import Chunk


def seq(id: int, ids: list[int], output_limit: int = 1, **fields) -> Sequence:
    request = EngineRequest(ids=tuple(ids), on_event=lambda event: None, **fields)
    made = Sequence(id, request, output_limit)
    made.pages = [10 * id, 10 * id + 1]
    return made


def test_sequences_lie_end_to_end_and_draw_from_their_last_row():
    a, b, c = seq(1, [5, 6, 7]), seq(2, [8, 9]), seq(3, [1, 2, 3, 4])
    batch = build_batch([Chunk(a, 0, 3), Chunk(b, 1, 1), Chunk(c, 1, 2)])
    assert batch.forward.ids == [5, 6, 7, 9, 2, 3]
    assert batch.forward.positions == [0, 1, 2, 1, 1, 2]
    assert batch.forward.seq_of_row == [0, 0, 0, 1, 2, 2]
    assert batch.forward.page_tables == [[10, 11], [20, 21], [30, 31]]
    assert batch.forward.logit_rows == [2, 3]  # c goes on: it draws nothing yet
    assert batch.draws == [(0, a, ()), (1, b, ())]


def test_a_prompt_alone_wants_no_logits():
    batch = build_batch([Chunk(seq(1, [5, 6, 7], output_limit=0), 0, 3)])
    assert batch.forward.logit_rows == []
    assert batch.draws == []


def test_scores_read_the_row_before_each_token():
    a, b = seq(1, [5, 6]), seq(2, [1, 2, 3, 4, 5], output_limit=0, score_from=2)
    batch = build_batch([Chunk(a, 1, 1), Chunk(b, 1, 4)])
    assert batch.forward.logit_rows == [0, 1, 2, 3]
    assert batch.scores == [(b, 1, [3, 4, 5])]


def test_scores_are_collected_over_chunks():
    a = seq(1, [1, 2, 3, 4, 5], output_limit=0, score_from=2)
    assert build_batch([Chunk(a, 0, 1)]).scores == []
    assert build_batch([Chunk(a, 1, 2)]).scores == [(a, 0, [3, 4])]
    a.prompt_logprobs += [-1.0, -2.0]
    batch = build_batch([Chunk(a, 3, 2)])
    assert batch.scores == [(a, 0, [5])]
    assert batch.forward.logit_rows == [0]


def test_a_scored_prompt_that_generates_draws_too():
    a = seq(1, [1, 2, 3], output_limit=4, score_from=2)
    batch = build_batch([Chunk(a, 1, 2)])
    assert batch.forward.logit_rows == [0, 1]
    assert batch.scores == [(a, 0, [3])]
    assert batch.draws == [(1, a, ())]
