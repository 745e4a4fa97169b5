"""Draws for a GPU: the CPU's sampler, the plain reference and the kernels choose the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.engine.messages import SampleRow, SamplerParams
from forktree.backend.sampler import Sampler, adjust_logits
from forktree.backend.sampler_inputs import make_edits, make_inputs
from forktree.kernels import sampling, sampling_triton
from forktree.kernels.sampling import BROKEN_ROW, DRAWN, NOTHING_LEFT

pytestmark = pytest.mark.usefixtures("interpreter")
VOCAB, WIDTH = 150, 153
WORDS = -(-WIDTH // 32)


def _row(index: int, *, mask: list[int] | None = None, **given) -> tuple[int, SampleRow]:
    fields = {name: given.pop(name) for name in ("position", "prompt_ids", "output_ids") if name in given}
    ends = {name: frozenset(given.pop(name)) for name in ("end_ids", "banned_ids") if name in given}
    packed = None
    if mask is not None:
        bits = np.zeros(VOCAB + 10, dtype=np.uint8)
        bits[mask] = 1
        packed = np.packbits(bits, bitorder="little").view("<i4")
    row = SampleRow(SamplerParams(**given), 0, (), (), packed)
    return index, row._replace(**fields, **ends)


def _draw(logits: torch.Tensor, rows: list[tuple[int, SampleRow]], *, block: int = 256) -> list[int]:
    """The kernels' tokens, which the reference's are too."""
    inputs = make_inputs(rows, words=WORDS)
    edits = make_edits(rows, WIDTH)
    adjusted = sampling.edit_logits(logits, inputs.rows, edits)
    copied = logits[inputs.rows.long()]
    assert torch.equal(sampling_triton.edit_logits_(copied, edits), adjusted)
    inputs.rows.copy_(torch.arange(len(rows)))
    plain = sampling.draw_tokens(adjusted, inputs, vocab_size=VOCAB)
    found = sampling_triton.draw_tokens(adjusted, inputs, vocab_size=VOCAB, block=block)
    assert found.status.tolist() == plain.status.tolist() == [DRAWN] * len(rows)
    assert found.token.tolist() == plain.token.tolist()
    torch.testing.assert_close(found.logit, plain.logit, rtol=1e-6, atol=1e-6)
    return found.token.tolist()


def _logits(seed: int, rows: int = 4) -> torch.Tensor:
    """Few distinct values, so that there are ties at every edge; two zeros of unlike sign."""
    logits = (3 * torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))).round(decimals=1)
    logits[:, 5], logits[:, 6] = 0.0, -0.0
    return logits


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_same_token_as_on_a_cpu_whatever_is_asked(data: st.DataObject) -> None:
    draw = data.draw
    logits = _logits(draw(st.integers(0, 20)))
    tokens = st.integers(0, VOCAB - 1)
    rows = []
    for index in range(draw(st.integers(1, 4))):
        mask = draw(st.none() | st.lists(tokens, min_size=1, max_size=60))
        rows.append(
            _row(
                index,
                mask=mask,
                temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.5])),
                top_k=draw(st.sampled_from([0, 1, 3, 40, 1000])),
                top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.01])),
                min_p=draw(st.sampled_from([0.0, 0.05, 1.0])),
                seed=draw(st.integers(0, 1 << 62)),
                position=draw(st.integers(0, 5)),
                end_ids=draw(st.lists(tokens, max_size=2)) if mask else [],
                repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
                frequency_penalty=draw(st.sampled_from([0.0, 0.7])),
                presence_penalty=draw(st.sampled_from([0.0, -0.2])),
                logit_bias=tuple(draw(st.dictionaries(tokens, st.sampled_from([-1.5, 2.0]), max_size=2)).items()),
                prompt_ids=tuple(draw(st.lists(tokens, max_size=3))),
                output_ids=tuple(draw(st.lists(tokens, max_size=4))),
            )
        )
    right = [info.token for info in Sampler(vocab_size=VOCAB).sample(logits, rows)]
    assert _draw(logits, rows) == right


def test_many_seeds_draw_the_same_tokens_as_on_a_cpu() -> None:
    logits = _logits(1)
    rows = [_row(i % 4, temperature=1.2, top_p=1.0 if i % 4 else 0.97, seed=i, position=i % 7) for i in range(16)]
    right = [info.token for info in Sampler(vocab_size=VOCAB).sample(logits, rows)]
    assert len(set(right)) > 5
    assert _draw(logits, rows, block=64) == right


def test_penalties_have_the_bits_of_the_cpu() -> None:
    logits = _logits(2)
    rows = [
        _row(0, repetition_penalty=1.37, prompt_ids=(3, 5, 3), output_ids=(7,)),
        _row(2),
        _row(
            1, frequency_penalty=0.3, presence_penalty=0.1, output_ids=(9, 9, 4, 5), logit_bias=((9, 1.7), (500, 1.0))
        ),
    ]
    edits = make_edits(rows, WIDTH)
    copied = logits[[0, 2, 1]]
    found = sampling_triton.edit_logits_(copied, edits)
    for row, (index, what) in zip(found, rows, strict=True):
        assert torch.equal(row, torch.from_numpy(adjust_logits(logits[index].numpy(), what)))


def test_a_draw_does_not_see_the_rows_beside_it() -> None:
    logits = _logits(3)
    rows = [_row(i, temperature=1.0, top_k=20, top_p=0.9, seed=7, position=3) for i in range(4)]
    together = _draw(logits, rows)
    assert [_draw(logits, [row])[0] for row in rows[1:3]] == together[1:3]


def test_banned_tokens_and_padding_ids_are_never_drawn() -> None:
    logits = torch.zeros(1, WIDTH)
    logits[0, 140], logits[0, 152] = 9.0, 99.0
    assert _draw(logits, [_row(0)]) == [140]
    assert _draw(logits, [_row(0, banned_ids=[140])]) == [0]


def test_the_end_weighs_all_that_would_leave_the_language() -> None:
    logits = torch.full((1, WIDTH), -4.0)
    logits[0, 10], logits[0, 60], logits[0, 61] = 1.0, 0.5, 0.9
    assert _draw(logits, [_row(0, mask=[10], end_ids=[60, 61])]) == [61]
    assert _draw(logits, [_row(0, mask=[10], end_ids=[60, 61], banned_ids=[61])]) == [60]


def test_broken_rows_and_rows_without_a_token_say_so_and_spoil_no_other() -> None:
    logits = torch.zeros(4, WIDTH)
    logits[0, 120], logits[1, 152] = torch.nan, torch.inf
    rows = [_row(0), _row(1), _row(2, mask=[3], banned_ids=[3]), _row(3, mask=[8], temperature=1.0)]
    inputs = make_inputs(rows, words=WORDS)
    for draw in (sampling.draw_tokens, sampling_triton.draw_tokens):
        found = draw(logits, inputs, vocab_size=VOCAB)
        assert found.status.tolist() == [BROKEN_ROW, BROKEN_ROW, NOTHING_LEFT, DRAWN]
        assert found.token[3] == 8


def test_no_draws_are_no_work() -> None:
    assert (
        sampling_triton.draw_tokens(
            torch.zeros(1, WIDTH), make_inputs([], words=WORDS), vocab_size=VOCAB
        ).token.tolist()
        == []
    )
