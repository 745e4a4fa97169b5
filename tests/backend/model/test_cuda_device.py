"""What only a device can show: graphs repeat plain passes to the bit, and no row knows another.

Run with `TRITON_INTERPRET=0 pytest -m gpu`.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed here")

from forktree.backend.engine.messages import ForwardBatch, SampleRow, SamplerParams
from forktree.backend.model.cuda_load import make_device_runner, random_model
from forktree.backend.model.cuda_runner import DeviceRunner
from forktree.benchmarks.gpu.engine_cases import TOY_CONFIG
from forktree.kernels.matmul import multiply
from forktree.kernels.triton_mode import is_interpreted

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.skipif(is_interpreted(), reason="kernels are interpreted here: run with TRITON_INTERPRET=0"),
]


@pytest.fixture(scope="module")
def runners() -> tuple[DeviceRunner, DeviceRunner]:
    """With graphs, and without."""
    device = torch.device("cuda")
    model = random_model(TOY_CONFIG, device=device, dtype=torch.bfloat16)
    with_graphs = make_device_runner(model, kv_tokens=4096)
    without = DeviceRunner(model, with_graphs._pool, vocab_size=TOY_CONFIG.vocab_size, capture=None)
    return with_graphs, without


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_row_of_a_product_has_the_same_bits_in_any_number_of_rows(dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(300, 4096, device="cuda", generator=generator).to(dtype)
    for outputs in (1024, 6144):
        weight = torch.randn(outputs, 4096, device="cuda", generator=generator).to(dtype)
        prompt = multiply(x, weight)
        for rows in (*range(1, 65), 65, 128, 129):
            assert torch.equal(multiply(x[:rows], weight), prompt[:rows]), rows


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 8, 9, 16, 17])
def test_a_graph_repeats_the_plain_pass_to_the_bit(runners: tuple[DeviceRunner, DeviceRunner], num_rows: int) -> None:
    tables = [[2 * row, 2 * row + 1] for row in range(num_rows)]
    for position in (0, 1, 15, 16):  # captured at a short context, replayed at a longer one
        batch = ForwardBatch(
            [row % 90 for row in range(num_rows)],
            [position] * num_rows,
            list(range(num_rows)),
            tables,
            list(range(num_rows)),
        )
        right = runners[1].forward(batch).clone()
        assert torch.equal(runners[0].forward(batch)[:num_rows], right)


def test_captured_draws_are_the_plain_ones(runners: tuple[DeviceRunner, DeviceRunner]) -> None:
    batch = ForwardBatch([1, 2, 3], [0, 0, 0], [0, 1, 2], [[1], [2], [3]], [0, 1, 2])
    params = [SamplerParams(), SamplerParams(temperature=1.0, seed=3), SamplerParams(temperature=0.7, top_p=0.9)]
    rows = [(row, SampleRow(each, 0, (), ())) for row, each in enumerate(params)]
    found = [runner.sample(runner.forward(batch), rows) for runner in runners]
    assert found[0] == found[1]
