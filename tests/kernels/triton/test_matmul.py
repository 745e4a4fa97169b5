"""The row-invariant product for a GPU."""

from __future__ import annotations

import pytest
import torch

from forktree.kernels import matmul_triton
from forktree.kernels.checks import ShapeError
from forktree.kernels.matmul import BLOCK_K, segment_length
from forktree.kernels.matmul import multiply as plain
from forktree.kernels.matmul_triton import multiply

pytestmark = pytest.mark.usefixtures("interpreter")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(1, 5, 3), (17, 70, 100), (65, 130, 65), (3, 20, 1100)])
def test_it_equals_its_reference(dtype: torch.dtype, tokens: int, outputs: int, inputs: int) -> None:
    x, weight = _random(tokens, inputs, dtype=dtype), _random(outputs, inputs, dtype=dtype, seed=1)
    bias = _random(outputs, seed=2)
    found = multiply(x, weight, bias, dtype=torch.float32)
    right = plain(x.float(), weight.float(), bias)
    tolerance = TOLERANCE[dtype] * inputs**0.5
    torch.testing.assert_close(found, right, rtol=0, atol=tolerance)
    assert multiply(x, weight).dtype == dtype


def test_a_row_has_the_same_bits_alone_among_64_and_in_a_prompt() -> None:
    x, weight, bias = _random(130, 1100), _random(70, 1100, seed=1), _random(70, seed=2)
    assert segment_length(70, 1100) < 1100  # several segments: the two paths add them in one order
    prompt = multiply(x, weight, bias)
    for rows in (1, 2, 16, 17, 64):
        assert torch.equal(multiply(x[:rows], weight, bias), prompt[:rows])
    assert torch.equal(multiply(x[129:], weight, bias), prompt[129:])


def test_memory_behind_a_tensor_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = torch.full((300,), torch.nan)
    x, weight = pool[:30].view(3, 10), pool[100:170].view(7, 10)
    x.fill_(1.0)
    weight.fill_(2.0)
    assert torch.equal(multiply(x, weight), torch.full((3, 7), 20.0))


def test_a_token_with_a_nan_spoils_no_other() -> None:
    x = _random(3, 40)
    x[1, 0] = torch.nan
    assert multiply(x, _random(9, 40, seed=1)).isnan().any(1).tolist() == [False, True, False]


@pytest.mark.parametrize(("outputs", "inputs"), [(6144, 4096), (4096, 4096), (4096, 14336), (28672, 4096), (9, 30)])
def test_segments_are_whole_steps_and_give_enough_programs(outputs: int, inputs: int) -> None:
    length = segment_length(outputs, inputs)
    assert length % BLOCK_K == 0
    segments = -(-inputs // length)
    programs = segments * -(-outputs // matmul_triton.FEW.outputs)
    assert programs >= 132 or length <= 512 + BLOCK_K


def test_types_that_differ_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"weight must be torch\.bfloat16, not torch\.float32"):
        multiply(torch.ones(1, 2, dtype=torch.bfloat16), torch.ones(3, 2))
