"""All layers in one native call: the bits of one operation after another, for any rows, threads and company."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import BLOCK_SIZES, oracle_logits, write_block_model, write_tiny_model

from forktree.backend.engine.messages import ForwardBatch
from forktree.backend.model.linear import BlockLinear, Fp16Linear
from forktree.backend.model.runner import ModelRunner, load_runner
from forktree.kernels.gemm import Activations

IDS = [1, *(int(i) for i in torch.randint(3, 131, (299,), generator=torch.Generator().manual_seed(5)))]
FAMILIES = [("llama", {"attention_bias": True, "mlp_bias": True}), ("qwen2", {}), ("qwen3", {"head_dim": 32})]


def batch_of(parts: list[tuple[int, int, int]], page_size: int = 16) -> ForwardBatch:
    """(first position, new tokens, first page) of each sequence, all of them beginnings of IDS; every row's logits."""
    batch = ForwardBatch([], [], [], [], [])
    for seq, (start, num, page) in enumerate(parts):
        batch.ids.extend(IDS[start : start + num])
        batch.positions.extend(range(start, start + num))
        batch.seq_of_row.extend([seq] * num)
        batch.page_tables.append(list(range(page, page - (-(start + num) // page_size))))
    batch.logit_rows.extend(range(len(batch.ids)))
    batch.hidden_rows.extend(range(0, len(batch.ids), 3))
    return batch


def load(folder: Path, quantize: str = "auto", **options: object) -> ModelRunner:
    runner = load_runner(folder, quantize=quantize, kv_tokens=4096, **options)  # type: ignore[arg-type]
    if runner._model.native is None:
        pytest.skip("no native kernels here")
    assert runner._model.step is not None
    return runner


@pytest.fixture(scope="module", params=["auto", "mixed", "int8"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    return load(write_block_model(tmp_path_factory.mktemp("blocks")), request.param)


def poison(runner: ModelRunner) -> None:
    runner._pool.k.fill_(float("nan"))
    runner._pool.v.fill_(float("nan"))


def both_ways(runner: ModelRunner, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits by the native step and by one operation after another; each writes its keys and values anew."""
    step = runner._step(batch)
    with torch.inference_mode():
        plain = runner._model.forward_plainly(step, runner._pool)
        kept = runner._pool.k.clone()
        fused = runner._model.forward(step, runner._pool)
    assert torch.equal(kept.nan_to_num(7.0), runner._pool.k.nan_to_num(7.0))
    assert torch.equal(fused.hidden, plain.hidden)
    return fused.logits, plain.logits


@pytest.mark.parametrize(("family", "changes"), FAMILIES)
@pytest.mark.parametrize("quantize", ["auto", "mixed", "int8", "fp16", "none"])
def test_every_family_has_the_bits_of_its_single_operations(
    tmp_path: Path, family: str, changes: dict[str, object], quantize: str
) -> None:
    runner = load(write_block_model(tmp_path, family, **changes), quantize)
    poison(runner)
    for parts in ([(0, 1, 0)], [(0, 150, 0), (0, 3, 20)], [(1, 1, 0), (150, 1, 0), (3, 130, 20)]):
        fused, plain = both_ways(runner, batch_of(parts))
        assert torch.equal(fused, plain)
        assert fused.isfinite().all()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_many_rows_are_attended_block_by_block_with_the_same_bits(tmp_path: Path, num_threads: int) -> None:
    runner = load(write_block_model(tmp_path), num_threads=num_threads)
    poison(runner)
    both_ways(runner, batch_of([(0, 290, 0), (0, 5, 100)]))
    shared = [(5, 1, 100), (5, 1, 100)]  # two rows write the same slot alike, and read together what lies before
    batch = batch_of([*shared, (0, 290, 20), (5, 7, 100), (10, 280, 0)])  # blocks of 32 rows begin amid splits
    blocks = -(-len(batch.ids) // 32) * runner.config.kv_heads
    assert blocks >= 8 * num_threads  # PIECES of step_cpu.cpp
    fused, plain = both_ways(runner, batch)
    assert torch.equal(fused, plain)
    assert fused.isfinite().all()
    few, _ = both_ways(runner, batch_of([(10, 20, 0)]))  # too few rows for blocks
    assert torch.equal(few, fused[299:319])


def test_auto_is_as_near_to_transformers_as_float32_is(tmp_path: Path) -> None:
    folder = write_block_model(tmp_path)
    oracle = oracle_logits(folder, IDS)
    logits = load(folder).forward(batch_of([(0, len(IDS), 0)]))
    assert (logits - oracle).abs().max() < 1e-3 * oracle.abs().max()


def test_auto_keeps_the_blocks_that_weights_were_made_of(tmp_path: Path) -> None:
    model = load(write_block_model(tmp_path))._model
    linears = [model.layers[0].qkv, model.layers[1].down, model.head]
    assert [linear.format for linear in linears if isinstance(linear, BlockLinear)] == [4, 4, 8]
    assert {linear.activations for linear in linears if isinstance(linear, BlockLinear)} == {Activations.SIXTEEN_BIT}


def test_auto_keeps_weights_that_were_never_blocks_in_fp16(tmp_path: Path) -> None:
    model = load_runner(write_tiny_model(tmp_path, **BLOCK_SIZES), kv_tokens=512)._model  # type: ignore[arg-type]
    assert isinstance(model.head, BlockLinear)
    assert model.head.format == 16
    assert model.step is not None


def test_auto_is_fp16_without_native_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKTREE_NATIVE", "0")
    model = load_runner(write_block_model(tmp_path), kv_tokens=512)._model
    assert isinstance(model.head, Fp16Linear)
    assert model.step is None


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 299), max_size=6, unique=True), beside=st.integers(0, 140))
def test_a_prompt_has_the_same_bits_in_any_chunks_beside_any_work(
    runner: ModelRunner, cuts: list[int], beside: int
) -> None:
    expected = runner.forward(batch_of([(0, 300, 0)]))
    poison(runner)
    begin, found = 0, []
    for end in [*sorted(cuts), 300]:
        parts = [(begin, end - begin, 0), *([(0, beside, 100)] if beside else [])]
        found.append(runner.forward(batch_of(parts))[: end - begin])
        begin = end
    assert torch.equal(torch.cat(found), expected)


@pytest.mark.parametrize("num_threads", [1, 3, 16])
def test_the_number_of_threads_changes_no_bit(tmp_path: Path, num_threads: int) -> None:
    """With far more threads than cores most come late to most phases."""
    folder = write_block_model(tmp_path)
    some, two = load(folder, num_threads=num_threads), load(folder, num_threads=2)
    for parts in [[(0, 1, 0)], [(0, 200, 0), (0, 40, 20)], *([(i, 1, 0)] for i in range(1, 30))]:
        assert torch.equal(some.forward(batch_of(parts)), two.forward(batch_of(parts)))


def test_the_number_of_threads_may_change_between_passes(tmp_path: Path) -> None:
    runner, two = load(write_block_model(tmp_path), num_threads=3), load(write_block_model(tmp_path), num_threads=2)
    for count in (3, 1, 2, 3):
        runner.use_threads(count)
        assert torch.equal(runner.forward(batch_of([(0, 50, 0)])), two.forward(batch_of([(0, 50, 0)])))
    with pytest.raises(ValueError, match="a step takes 1 to 3 threads, not 4"):
        runner.use_threads(4)


def test_a_model_that_is_dropped_ends_its_threads(tmp_path: Path) -> None:
    runner = load(write_block_model(tmp_path), num_threads=7)
    runner.forward(batch_of([(0, 5, 0)]))
    before = len(list(Path("/proc/self/task").iterdir()))
    del runner
    gc.collect()
    assert len(list(Path("/proc/self/task").iterdir())) <= before - 6


def test_rows_are_told_apart_when_asked_for_in_part_and_twice(runner: ModelRunner) -> None:
    batch = batch_of([(0, 20, 0)])
    expected = runner.forward(batch)
    step = runner._step(batch)
    step.logit_rows.resize_(3).copy_(torch.tensor([3, 19, 3]))
    assert torch.equal(runner._model.forward(step, runner._pool).logits, expected[[3, 19, 3]])


def test_a_small_step_behind_a_large_one_is_not_disturbed(runner: ModelRunner) -> None:
    poison(runner)
    before = runner.forward(batch_of([(0, 2, 0)]))
    runner.forward(batch_of([(0, 250, 40)]))
    assert torch.equal(runner.forward(batch_of([(0, 2, 0)])), before)
