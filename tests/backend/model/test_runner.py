"""The runner's logits are transformers', and no batch, chunk, page or sharing changes a bit of them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import oracle_logits, write_tiny_model

from forktree.backend.engine.messages import ForwardBatch, SampleRow, SamplerParams
from forktree.backend.model.runner import ModelRunner, load_runner
from forktree.lang.errors import EngineError, ModelError

IDS = [1, *(int(i) for i in torch.randint(3, 131, (299,), generator=torch.Generator().manual_seed(5)))]


def batch_of(parts: list[tuple[list[int], int, list[int]]]) -> ForwardBatch:
    """(new ids, position of the first, page table) of each sequence; logits of every row."""
    ids = [token for new, _, _ in parts for token in new]
    positions = [start + i for new, start, _ in parts for i in range(len(new))]
    seqs = [seq for seq, (new, _, _) in enumerate(parts) for _ in new]
    return ForwardBatch(ids, positions, seqs, [table for _, _, table in parts], list(range(len(ids))))


def whole(runner: ModelRunner, ids: list[int]) -> torch.Tensor:
    return runner.forward(batch_of([(ids, 0, list(range(-(-len(ids) // runner.page_size))))]))


def poison(runner: ModelRunner) -> None:
    runner._pool.k.fill_(float("nan"))
    runner._pool.v.fill_(float("nan"))


@pytest.fixture(scope="module", params=["native", "reference"])
def exact_runner(request: pytest.FixtureRequest, tiny_model_dir: Path) -> ModelRunner:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORKTREE_NATIVE", "1" if request.param == "native" else "0")
        runner = load_runner(tiny_model_dir, quantize="none", kv_tokens=2048, page_size=8)
    if request.param == "native" and runner._model.native is None:
        pytest.skip("no native kernels on this machine")
    return runner


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 20}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
        ("mistral", {"num_key_value_heads": 6}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 16}),
    ],
)
def test_logits_equal_transformers(tmp_path: Path, family: str, changes: dict[str, object]) -> None:
    folder = write_tiny_model(tmp_path, family, **changes)
    logits = whole(load_runner(folder, quantize="none", kv_tokens=512), IDS)
    oracle = oracle_logits(folder, IDS)
    assert (logits - oracle).abs().max() < 1e-4 * oracle.abs().max()


def test_fp16_weights_stay_close_to_transformers(tiny_model_dir: Path) -> None:
    oracle = oracle_logits(tiny_model_dir, IDS[:50])
    logits = whole(load_runner(tiny_model_dir, quantize="auto", kv_tokens=512), IDS[:50])
    assert (logits - oracle).abs().max() < 0.02 * oracle.abs().max()


@given(cuts=st.lists(st.integers(1, 299), max_size=5), seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_chunking_over_any_pages_gives_the_same_bits(exact_runner: ModelRunner, cuts: list[int], seed: int) -> None:
    expected = whole(exact_runner, IDS)
    poison(exact_runner)
    pages = torch.randperm(exact_runner.num_pages, generator=torch.Generator().manual_seed(seed)).tolist()[:38]
    bounds = [0, *sorted(set(cuts)), len(IDS)]
    chunks = [exact_runner.forward(batch_of([(IDS[a:b], a, pages)])) for a, b in itertools.pairwise(bounds)]
    assert torch.equal(torch.cat(chunks), expected)


@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sequences_that_share_pages_have_the_bits_they_have_alone(
    exact_runner: ModelRunner, data: st.DataObject
) -> None:
    num_shared = data.draw(st.sampled_from([0, 8, 120, 128, 136]))
    tails = data.draw(st.lists(st.lists(st.integers(3, 130), min_size=1, max_size=20), min_size=2, max_size=5))
    alone = [whole(exact_runner, IDS[:num_shared] + tail)[num_shared:] for tail in tails]
    poison(exact_runner)
    trunk = list(range(num_shared // 8))
    if trunk:
        exact_runner.forward(batch_of([(IDS[:num_shared], 0, trunk)]))
    tables = [trunk + list(range(20 + 3 * i, 23 + 3 * i)) for i in range(len(tails))]
    parts = [(tail, num_shared, table) for tail, table in zip(tails, tables, strict=True)]
    together = exact_runner.forward(batch_of(parts)).split([len(tail) for tail in tails])
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)


def test_decoding_one_by_one_equals_prefill_beside_other_work(exact_runner: ModelRunner) -> None:
    expected = whole(exact_runner, IDS[:140])
    poison(exact_runner)
    exact_runner.forward(batch_of([(IDS[:120], 0, list(range(15)))]))
    for position in range(120, 140):
        other = (IDS[: 7 * (position - 119)], 0, list(range(100, 130)))
        logits = exact_runner.forward(batch_of([(IDS[position : position + 1], position, list(range(18))), other]))
        assert torch.equal(logits[0], expected[position])


@pytest.mark.parametrize("page_size", [1, 16, 128])
def test_the_page_size_changes_no_bit(exact_runner: ModelRunner, tiny_model_dir: Path, page_size: int) -> None:
    if exact_runner._model.native is None:
        pytest.skip("compared on the native path")
    other = load_runner(tiny_model_dir, quantize="none", kv_tokens=512, page_size=page_size)
    assert torch.equal(whole(other, IDS[:150]), whole(exact_runner, IDS[:150]))


def test_only_the_rows_asked_for_come_back(exact_runner: ModelRunner) -> None:
    expected = whole(exact_runner, IDS[:20])
    batch = batch_of([(IDS[:20], 0, [0, 1, 2])])
    some = exact_runner.forward(replace(batch, logit_rows=[3, 19]))
    assert torch.equal(some, expected[[3, 19]])
    assert exact_runner.forward(replace(batch, logit_rows=[])).shape == (0, 131)


def test_a_copied_page_holds_the_first_tokens_and_no_more(exact_runner: ModelRunner) -> None:
    expected = whole(exact_runner, IDS[:12])
    exact_runner._pool.k[:, 9] = float("nan")
    exact_runner.copy_page(1, 9, 2)
    assert exact_runner._pool.k[:, 9, 2:].isnan().all()
    logits = exact_runner.forward(batch_of([(IDS[10:12], 10, [0, 9])]))
    assert torch.equal(logits, expected[10:12])


def test_gathered_logprobs_are_those_of_log_softmax(exact_runner: ModelRunner) -> None:
    logits = whole(exact_runner, IDS[:9])
    tokens = [5, 130, 7]
    found = exact_runner.gather_logprobs(logits, [0, 8, 8], tokens)
    expected = torch.log_softmax(logits.double(), dim=-1)[[0, 8, 8], tokens]
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, atol=2e-5, rtol=0)
    assert exact_runner.gather_logprobs(logits[8:], [0], [7]) == found[2:]
    assert exact_runner.gather_logprobs(logits, [], []) == []


def test_greedy_sampling_takes_the_likeliest(exact_runner: ModelRunner) -> None:
    logits = whole(exact_runner, IDS[:9])
    what = SampleRow(SamplerParams(num_logprobs=0), 0, IDS[:9], ())
    drawn = exact_runner.sample(logits, [(8, what), (2, what)])
    assert [info.token for info in drawn] == logits.argmax(-1)[[8, 2]].tolist()
    assert drawn[0].logprob == exact_runner.gather_logprobs(logits, [8], [drawn[0].token])[0]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (ForwardBatch([131], [0], [0], [[0]], [0]), r"id 131, outside \[0, 131\)"),
        (ForwardBatch([1], [512], [0], [[0] * 65], [0]), r"position 512, outside \[0, 512\)"),
        (ForwardBatch([1], [0], [0], [[256]], [0]), r"page 256, outside \[0, 256\)"),
        (ForwardBatch([1], [0], [1], [[0]], [0]), r"sequence 1, outside \[0, 1\)"),
        (ForwardBatch([1], [0], [0], [[0]], [1]), r"row of logits 1, outside \[0, 1\)"),
        (ForwardBatch([1], [8], [0], [[0]], [0]), "position 8 beyond the page table of sequence 0"),
        (ForwardBatch([1, 2], [0], [0], [[0]], [0]), "2 ids, 1 positions"),
    ],
)
def test_a_wrong_batch_is_refused_before_anything_is_computed(
    exact_runner: ModelRunner, batch: ForwardBatch, message: str
) -> None:
    poison(exact_runner)
    with pytest.raises(EngineError, match=message):
        exact_runner.forward(batch)
    assert exact_runner._pool.k.isnan().all()


def test_wrong_arguments_are_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="page_size must be a power of two from 1 to 128, not 24"):
        load_runner(tiny_model_dir, page_size=24)
    with pytest.raises(ValueError, match="kv_tokens must be at least 1, not 0"):
        load_runner(tiny_model_dir, kv_tokens=0)
    with pytest.raises(ValueError, match='device must be "auto" or "cpu", not \'cuda\''):
        load_runner(tiny_model_dir, device="cuda")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_runner(tmp_path)
