"""The device's runner, with its kernels interpreted on the CPU: as the native runner, with graphs and without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_fakes import Driver

pytest.importorskip("triton", reason="triton is not installed here")

from forktree.backend.engine.messages import ForwardBatch, SampleRow, SamplerParams
from forktree.backend.model.config import read_config
from forktree.backend.model.cuda_graphs import Ladders
from forktree.backend.model.cuda_llama import DeviceModel, build_device_model
from forktree.backend.model.cuda_load import find_device, load_device_runner, make_device_runner
from forktree.backend.model.cuda_runner import DeviceRunner
from forktree.backend.model.runner import ModelRunner, load_runner
from forktree.backend.model.weights import open_weights
from forktree.kernels.triton_mode import is_interpreted
from forktree.lang.errors import EngineError, ModelError

needs_interpreter = pytest.mark.skipif(not is_interpreted(), reason="TRITON_INTERPRET is off")
SMALL = Ladders((2, 4), (2, 4), (2, 4))
CPU = torch.device("cpu")
GREEDY = SamplerParams()


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> DeviceModel:
    config = read_config(tiny_model_dir)
    with open_weights(tiny_model_dir) as weights:
        return build_device_model(config, weights, device=CPU, dtype=torch.float32)


@pytest.fixture
def plain(model: DeviceModel) -> DeviceRunner:
    return make_device_runner(model, kv_tokens=64, page_size=4)


@pytest.fixture
def graphs(model: DeviceModel) -> DeviceRunner:
    return make_device_runner(model, kv_tokens=64, page_size=4, capture=lambda run: run, ladders=SMALL)


@pytest.fixture
def native(tiny_model_dir: Path) -> ModelRunner:
    return load_runner(tiny_model_dir, quantize="none", kv_tokens=64, page_size=4)


def _batch(ids: list[int], start: int, table: list[int], seq: int = 0) -> ForwardBatch:
    positions = list(range(start, start + len(ids)))
    return ForwardBatch(ids, positions, [seq] * len(ids), [table], [len(ids) - 1])


def _two(first: int, second: int, position: int) -> ForwardBatch:
    return ForwardBatch([first, second], [position, position], [0, 1], [[1, 2], [5, 6]], [0, 1])


def _row(**given) -> SampleRow:
    return SampleRow(SamplerParams(**given), 0, (), ())


@needs_interpreter
def test_logits_are_those_of_the_native_runner(plain: DeviceRunner, native: ModelRunner) -> None:
    prompt = list(range(3, 20))
    for runner_input in (_batch(prompt, 0, [1, 2, 3, 4, 9]), _batch([7], 17, [1, 2, 3, 4, 9])):
        torch.testing.assert_close(plain.forward(runner_input), native.forward(runner_input), rtol=1e-4, atol=1e-4)


@needs_interpreter
def test_a_graph_gives_the_bits_of_the_plain_pass_whatever_pads_it(plain: DeviceRunner, graphs: DeviceRunner) -> None:
    for runner in (plain, graphs):
        runner.forward(_batch([5, 6, 7], 0, [1]))
        runner.forward(_batch([9, 8, 7], 0, [5]))
    right = plain.forward(_two(11, 12, 3))
    found = graphs.forward(_two(11, 12, 3))
    assert torch.equal(found[:2], right)
    three = ForwardBatch([1, 2, 3], [4, 4, 0], [0, 1, 2], [[1, 2], [5, 6], [8]], [0, 1, 2])
    assert torch.equal(graphs.forward(three)[:3], plain.forward(three))  # a size of four, one row of padding
    assert graphs.num_graphs > 0
    assert plain.num_graphs == 0


@needs_interpreter
def test_padding_writes_to_no_page(graphs: DeviceRunner) -> None:
    pool = graphs._pool
    pool.k.fill_(torch.nan)
    graphs.forward(_batch([5], 0, [7]))
    graphs.forward(ForwardBatch([5, 6, 7], [0, 0, 0], [0, 1, 2], [[1], [2], [3]], [0, 1, 2]))
    written = ~pool.k.isnan().flatten(3).all(-1)[0]
    assert written.nonzero().tolist() == [[1, 0], [2, 0], [3, 0], [7, 0]]


@needs_interpreter
def test_a_drawn_token_may_be_used_before_it_is_read(plain: DeviceRunner, graphs: DeviceRunner) -> None:
    for runner in (plain, graphs):
        logits = runner.forward(_two(11, 12, 0))
        pending = runner.begin_sample(logits, [(0, _row()), (1, _row(temperature=1.0, seed=3))])
        ahead = runner.forward(_two(-1, -2, 1)).clone()
        first, second = (info.token for info in pending.result())
        assert torch.equal(runner.forward(_two(first, second, 1))[:2], ahead[:2])


@needs_interpreter
def test_draws_and_log_probabilities_are_those_of_the_cpu(graphs: DeviceRunner, native: ModelRunner) -> None:
    batch = _two(11, 12, 0)
    rows = [
        (0, _row(temperature=0.8, top_k=9, seed=5, num_logprobs=3)),
        (1, _row(repetition_penalty=1.2, num_logprobs=0)._replace(prompt_ids=(12, 4))),
        (1, _row(temperature=1.3, top_p=0.8, seed=8)),
    ]
    found, right = graphs.sample(graphs.forward(batch), rows), native.sample(native.forward(batch), rows)
    assert [info.token for info in found] == [info.token for info in right]
    assert found[0].logprob == pytest.approx(right[0].logprob, abs=1e-4)
    assert [token for token, _ in found[0].top] == [token for token, _ in right[0].top]
    assert found[1].logprob == pytest.approx(right[1].logprob, abs=1e-4)
    assert found[2].logprob is None


@needs_interpreter
def test_scores_are_those_of_the_cpu(plain: DeviceRunner, native: ModelRunner) -> None:
    batch = ForwardBatch([4, 5, 6], [0, 1, 2], [0, 0, 0], [[1]], [0, 1, 2])
    wanted = ([2, 0, 2], [7, 5, 1])
    found = plain.gather_logprobs(plain.forward(batch), *wanted)
    assert found == pytest.approx(native.gather_logprobs(native.forward(batch), *wanted), abs=1e-4)


@needs_interpreter
def test_a_row_without_a_token_is_named(plain: DeviceRunner) -> None:
    logits = plain.forward(_two(11, 12, 0))
    nothing = _row()._replace(mask=torch.zeros(99, dtype=torch.int32).numpy())
    with pytest.raises(EngineError, match="row 1 has no token that may be drawn"):
        plain.sample(logits, [(0, _row()), (1, nothing)])


@needs_interpreter
def test_indices_out_of_range_are_refused_before_anything_is_launched(plain: DeviceRunner) -> None:
    with pytest.raises(EngineError, match="a batch has page 99"):
        plain.forward(_batch([1], 0, [99]))
    with pytest.raises(EngineError, match="a batch has id -5000"):
        plain.forward(_batch([-5000], 0, [1]))


def test_a_machine_without_a_device_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ModelError, match="torch finds no CUDA device here"):
        find_device("cuda")
    with pytest.raises(ValueError, match="dtype must be one of auto, bfloat16, float16, float32, not 'int4'"):
        load_device_runner("nowhere", dtype="int4", vocab_size=1)


@needs_interpreter
def test_a_sequence_has_the_same_bits_alone_together_and_in_chunks(plain: DeviceRunner) -> None:
    """Warm equals cold: rows of products, splits of attention and norms do not know what is beside them."""
    prompt, table = list(range(3, 21)), [1, 2, 3, 4, 5]
    alone = plain.forward(_batch(prompt, 0, table)).clone()
    other = [40, 41]
    together = ForwardBatch(
        [*other, *prompt],
        [*range(len(other)), *range(len(prompt))],
        [0] * len(other) + [1] * len(prompt),
        [[7], [12, 13, 14, 15, 0]],
        [len(other) + len(prompt) - 1],
    )
    assert torch.equal(plain.forward(together), alone)
    plain.forward(_batch(prompt[:1], 0, table))
    plain.forward(_batch(prompt[1:17], 1, table))
    assert torch.equal(plain.forward(_batch(prompt[17:], 17, table)), alone)


@needs_interpreter
def test_the_engine_writes_the_same_tokens_over_either_runner(graphs: DeviceRunner, native: ModelRunner) -> None:
    answers = []
    for runner in (graphs, native):
        one = Driver(runner, max_draft=0, max_step_tokens=64, fixed_rows=8.0)
        params = SamplerParams(temperature=0.9, seed=4)
        listeners = [one.submit([5, 6, 7], max_tokens=3), one.submit([5, 9], max_tokens=2, params=params)]
        while one.core.step():
            one.core.check()
        answers.append([listener.finished.ids for listener in listeners])
    assert answers[0] == answers[1]


@needs_interpreter
def test_a_graph_that_memory_is_wanting_for_costs_no_request(model: DeviceModel, native: ModelRunner, caplog) -> None:
    num_failed = 0

    def capture(run):
        nonlocal num_failed
        if num_failed < 2:  # launched ahead, and again when it was planned anew
            num_failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run

    answers = []
    for runner in (make_device_runner(model, kv_tokens=64, page_size=4, capture=capture, ladders=SMALL), native):
        one = Driver(runner, max_draft=0, max_step_tokens=64, fixed_rows=8.0)
        listeners = [one.submit(ids, max_tokens=3) for ids in ([5, 6], [8])]
        while one.core.step():
            one.core.check()
        answers.append([listener.finished.ids for listener in listeners])
    assert num_failed == 2
    assert answers[0] == answers[1]
