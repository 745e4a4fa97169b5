"""Masks over logits and log-probabilities of tokens, for a GPU."""

from __future__ import annotations

import math

import pytest
import torch

from forktree.kernels.bitmask import apply_bitmask
from forktree.kernels.bitmask_triton import apply_bitmask as apply_on_device
from forktree.kernels.logits import logsumexp_rows as plain_norms
from forktree.kernels.logits_triton import gather_pairs, logsumexp_rows

pytestmark = pytest.mark.usefixtures("interpreter")
INF = float("inf")


def _mask(width: int, *legal: int) -> torch.Tensor:
    words = [0] * -(-width // 32)
    for token in legal:
        words[token // 32] |= 1 << token % 32
    return torch.tensor([word - (1 << 32) if word >> 31 else word for word in words], dtype=torch.int32)


@pytest.mark.parametrize("apply", [apply_bitmask, apply_on_device])
def test_a_mask_leaves_what_it_names(apply) -> None:
    logits = torch.arange(70.0).repeat(2, 1)
    masks = torch.stack([_mask(70, 0, 31, 32, 69), torch.full((3,), -1, dtype=torch.int32)])
    assert apply(logits, masks, vocab_size=68) is logits
    assert (logits[0] > -INF).nonzero().flatten().tolist() == [0, 31, 32]
    assert (logits[1] > -INF).nonzero().flatten().tolist() == list(range(68))


@pytest.mark.parametrize("apply", [apply_bitmask, apply_on_device])
def test_ids_that_a_mask_is_too_narrow_for_are_forbidden(apply) -> None:
    logits = torch.zeros(1, 100, dtype=torch.bfloat16)
    apply(logits, torch.full((1, 2), -1, dtype=torch.int32), vocab_size=100)
    assert (logits[0] > -INF).sum() == 64


def test_log_probabilities_equal_a_log_softmax() -> None:
    logits = 5 * torch.randn(4, 5000, generator=torch.Generator().manual_seed(0))
    rows, tokens = [2, 0, 2, 3, 2], [4999, 17, 0, 4100, 4999]
    right = logits.double().log_softmax(-1)[rows, tokens]
    assert gather_pairs(logits, rows, tokens) == pytest.approx(right.tolist(), abs=2e-6)


def test_a_row_has_the_same_normaliser_whatever_stands_beside_it() -> None:
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(1))
    assert logsumexp_rows(logits, [0, 1, 2])[1] == logsumexp_rows(logits[1:2].clone(), [0])[0]
    assert logsumexp_rows(logits, [2, 0]) == pytest.approx(plain_norms(logits, [2, 0]), abs=1e-6)


def test_broken_rows_and_empty_rows_are_told_apart() -> None:
    logits = torch.zeros(4, 10)
    logits[0, 3], logits[1, 3], logits[2] = torch.nan, INF, -INF
    nan, inf, empty, plain = logsumexp_rows(logits, [0, 1, 2, 3])
    assert math.isnan(nan)
    assert math.isnan(inf)
    assert empty == -INF
    assert plain == pytest.approx(math.log(10))
