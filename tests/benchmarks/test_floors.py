"""Floors: small cases by hand."""

from __future__ import annotations

import pytest

from forktree.benchmarks.floors import CASES, MODELS, Machine, Model, Passes, decode, prefill, seconds

TINY = Model(layer_bytes=1, head_bytes=2, rate=2, layer_weights=100, head_weights=10, num_layers=2, width=4, kv_bytes=8)


def test_one_row_takes_as_long_as_the_weights_take_to_be_read():
    one = [Passes(count=3, rows=1, logits=1, read=5, attended=0)]
    assert seconds(one, TINY, Machine(bytes_per_s=16, ops_per_s=1e9)) == pytest.approx(3 * (100 + 20 + 40) / 16)


def test_many_rows_take_as_long_as_their_products():
    many = [Passes(count=1, rows=50, logits=2, read=0, attended=100)]
    operations = (2 * 50 * 100 + 2 * 2 * 10) / 2 + 4 * 100 * 4 * 2
    assert seconds(many, TINY, Machine(bytes_per_s=1e9, ops_per_s=10)) == pytest.approx(operations / 10)


def test_a_trunk_is_read_once_and_attended_by_all():
    assert decode(4, 10, 2, trunk=100) == Passes(10, 4, 4, 100 + 4 * 7, 4 * 107)
    assert prefill(4, 10, 100, shared=True) == Passes(1, 40, 4, 100, 40 * 105)
    assert prefill(4, 10, 100).read == 400


def test_a_machine_twice_as_fast_halves_the_floor():
    slow, fast = Machine(1e10, 1e11), Machine(2e10, 2e11)
    for model in MODELS.values():
        passes = [prefill(1, 100), decode(4, 10, 100)]
        assert seconds(passes, model, slow) == pytest.approx(2 * seconds(passes, model, fast))


@pytest.mark.model
def test_every_case_has_passes(model_dir):
    for case, passes in CASES.items():
        assert all(min(one) >= 0 and one.count > 0 and one.rows > 0 for one in passes()), case
