"""The block-quantised GEMM: exact where it can be, near its own operands in float64, and each row for itself."""

from __future__ import annotations

import ctypes
import itertools
import math

import pytest
import torch

from forktree.kernels.checks import ShapeError
from forktree.kernels.gemm import Activations, multiply_blocks, native_linear, quantize_rows
from forktree.kernels.gemm_weights import Blocks, Format, Panels, recover_weights, round_weights
from forktree.kernels.native import Native

SHAPES = [(16, 32), (1, 32), (17, 64), (50, 96), (576, 1536), (960, 576)]
FORMATS = [Format.FOUR_BIT, Format.EIGHT_BIT]
ROUNDED = [kind for kind in Activations if kind is not Activations.FLOAT]


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made_of_blocks(outputs: int, inputs: int, format: Format, *, d: float = 0.0, seed: int = 0) -> torch.Tensor:
    """Random weights that lie exactly on blocks; `d` fixes every scale and then m is zero."""
    random = torch.Generator().manual_seed(seed)
    low, high = (0, 16) if format is Format.FOUR_BIT else (-127, 128)
    q = torch.randint(low, high, (outputs, inputs // 32, 32), generator=random).float()
    q[..., 0], q[..., 1] = (0, 15) if format is Format.FOUR_BIT else (127, -127)
    if d:
        return (q * d).flatten(1)
    scale = (torch.rand(outputs, inputs // 32, 1, generator=random) * 0.02 + 0.001).half().float()
    least = -torch.rand(outputs, inputs // 32, 1, generator=random) * 0.15 * (format is Format.FOUR_BIT)
    return (q * scale + least.half()).flatten(1)


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    format: Format,
    path: Native | None,
    activations: Activations = Activations.EIGHT_BIT,
) -> torch.Tensor:
    packed = recover_weights(weight, format, native=path)
    assert packed is not None
    return multiply_blocks(x, packed, activations=activations, native=path)


@pytest.mark.parametrize("activations", ROUNDED)
@pytest.mark.parametrize("format", FORMATS)
def test_integers_with_scale_one_come_out_exactly(
    format: Format, activations: Activations, path: Native | None
) -> None:
    weight, top = made_of_blocks(33, 96, format, d=1.0), activations.top
    x = torch.randint(-top, top + 1, (20, 96), generator=torch.Generator().manual_seed(1)).float()
    x[:, ::32] = top
    blocks = torch.einsum("rbk,obk->bro", x.view(20, 3, 32).double(), weight.view(33, 3, 32).double()).float()
    assert torch.equal(product(x, weight, format, path, activations), blocks[0] + blocks[1] + blocks[2])


@pytest.mark.parametrize("value", [32512, -32512, 128, 127, -128, -129, 255, 256, -256, 1, -1])
def test_both_digits_of_a_value_count(value: int, path: Native | None) -> None:
    weight = torch.zeros(1, 32)
    weight[0, :2] = torch.tensor([15.0, 3.0])  # d = 1, m = 0
    x = torch.zeros(1, 32)
    x[0, 1], x[0, 2] = value, 32512.0
    found = product(x, weight, Format.FOUR_BIT, path, Activations.SIXTEEN_BIT)
    assert found.tolist() == [[3.0 * value]]


def test_a_block_by_hand(path: Native | None) -> None:
    weight = torch.zeros(1, 32)
    weight[0, :3] = torch.tensor([7.5, 0.5, 1.0])  # d = 0.5, m = 0
    x = torch.zeros(1, 32)
    x[0, :4] = torch.tensor([2.0, 254.0, 1.0, 3.0])  # scale 2: 1, 127, 0 (the tie goes to even), 2 (likewise)
    assert product(x, weight, Format.FOUR_BIT, path).tolist() == [[2.0 * (15 * 0.5 + 127 * 0.5)]]
    assert quantize_rows(x).q[0, 0, :4].tolist() == [1, 127, 0, 2]


@pytest.mark.parametrize("activations", ROUNDED)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_result_is_that_of_the_quantised_operands(
    outputs: int, inputs: int, format: Format, activations: Activations, path: Native | None
) -> None:
    weight, bias = made_of_blocks(outputs, inputs, format), noise(outputs, seed=2)
    x = noise(130, inputs, seed=3) * noise(130, 1, seed=4).exp()
    rows = quantize_rows(x, activations)
    exact = (rows.q.double() * rows.scales.double().unsqueeze(-1)).flatten(1) @ weight.double().t() + bias
    packed = recover_weights(weight, format, native=path)
    assert packed is not None
    out = multiply_blocks(x, packed, bias, activations=activations, native=path)
    size = (rows.q.double() * rows.scales.double().unsqueeze(-1)).flatten(1).abs() @ weight.double().abs().t()
    assert ((out - exact).abs() / (size + bias.abs())).max() < 1e-6


def test_quantised_activations_cost_half_a_percent(path: Native | None) -> None:
    weight, x = made_of_blocks(576, 576, Format.FOUR_BIT), noise(64, 576, seed=3)
    exact = x.double() @ weight.double().t()
    error = product(x, weight, Format.FOUR_BIT, path) - exact
    assert error.pow(2).mean().sqrt() / exact.pow(2).mean().sqrt() < 0.008


def test_sixteen_bit_activations_cost_next_to_nothing(path: Native | None) -> None:
    weight, x = made_of_blocks(576, 576, Format.FOUR_BIT), noise(64, 576, seed=3) * noise(576, seed=4).exp()
    exact = x.double() @ weight.double().t()
    error = product(x, weight, Format.FOUR_BIT, path, Activations.SIXTEEN_BIT) - exact
    assert error.pow(2).mean().sqrt() / exact.pow(2).mean().sqrt() < 1e-4


def test_mixed_activations_keep_the_low_digit_where_a_block_is_at_least_the_mean_square() -> None:
    x = torch.zeros(2, 96)
    x[:, ::32] = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 1.0]])  # squares 9, 1, 4: the mean is 4.67
    x[:, 1::32] = x[:, ::32] / 300  # 108.4 of 32512: the high digit alone makes it zero
    q = quantize_rows(x, Activations.MIXED).q[..., 1]
    assert q.tolist() == [[108, 0, 0], [108, 108, 108]]


def test_mixed_activations_lose_a_third_of_what_eight_bits_lose_where_few_inputs_are_large(path: Native | None) -> None:
    weight, x = made_of_blocks(576, 576, Format.FOUR_BIT), noise(64, 576, seed=3)
    x[:, ::192] *= 30
    exact = x.double() @ weight.double().t()
    eight, mixed = (
        (product(x, weight, Format.FOUR_BIT, path, kind) - exact).pow(2).mean().sqrt()
        for kind in (Activations.EIGHT_BIT, Activations.MIXED)
    )
    assert mixed < eight / 3


@pytest.mark.parametrize("activations", ROUNDED)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("outputs", "inputs"), [(17, 64), (50, 1536), (80, 576)])
def test_each_row_has_the_same_bits_beside_any_others(
    outputs: int, inputs: int, format: Format, activations: Activations, path: Native | None
) -> None:
    def multiply(x: torch.Tensor) -> torch.Tensor:
        return multiply_blocks(x, packed, bias, activations=activations, native=path)

    packed = recover_weights(made_of_blocks(outputs, inputs, format), format, native=path)
    assert packed is not None
    bias, x = noise(outputs, seed=2), noise(512 if path else 70, inputs, seed=1)
    alone = torch.cat([multiply(row) for row in x.split(1)])
    for rows in [*range(1, 65), 65, 100, 119, 120, 121, 124, 125, 240, 241, 511, 512]:
        if rows > len(x):
            break
        assert torch.equal(multiply(x[:rows]), alone[:rows]), rows
    assert torch.equal(multiply(x[30:50]), alone[30:50])


@pytest.mark.parametrize("activations", ROUNDED)
@pytest.mark.parametrize("format", FORMATS)
def test_zero_blocks_and_tiny_blocks_are_zero(format: Format, activations: Activations, path: Native | None) -> None:
    weight = made_of_blocks(3, 64, format)
    x = torch.zeros(3, 64)
    x[1], x[2, :32] = 1e-31, -1e-40
    assert torch.equal(product(x, weight, format, path, activations), torch.zeros(3, 3))


@pytest.mark.parametrize("activations", ROUNDED)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("broken", [math.inf, -math.inf, math.nan])
def test_a_broken_value_breaks_its_own_row_and_no_other(
    format: Format, activations: Activations, broken: float, path: Native | None
) -> None:
    weight, x = made_of_blocks(20, 96, format), noise(30, 96)
    fine = product(x, weight, format, path, activations)
    x[7, 40] = broken
    out = product(x, weight, format, path, activations)
    assert out[7].isnan().all()
    out[7] = fine[7]
    assert torch.equal(out, fine)


def test_huge_and_small_values_stay_finite(path: Native | None) -> None:
    weight = made_of_blocks(20, 32, Format.EIGHT_BIT)
    x = noise(2, 32) * torch.tensor([[1e30], [1e-25]])
    torch.testing.assert_close(
        product(x, weight, Format.EIGHT_BIT, path).double(), x.double() @ weight.double().t(), rtol=0.1, atol=1e27
    )
    assert product(x, weight, Format.EIGHT_BIT, path).isfinite().all()


@pytest.mark.parametrize("activations", ROUNDED)
@pytest.mark.parametrize("format", FORMATS)
def test_both_paths_quantise_alike(format: Format, activations: Activations, native: Native) -> None:
    weight, x = made_of_blocks(33, 576, format), noise(200, 576) * 5
    plain, fast = product(x, weight, format, None, activations), product(x, weight, format, native, activations)
    torch.testing.assert_close(fast, plain, rtol=2e-6, atol=2e-6 * float(plain.abs().max()))


def test_nothing_is_written_outside_the_result(native: Native) -> None:
    packed = recover_weights(made_of_blocks(17, 64, Format.FOUR_BIT), Format.FOUR_BIT, native=native)
    assert packed is not None
    x = noise(14, 64)
    expected = multiply_blocks(x, packed, native=native)
    memory = torch.full((16, 17), math.nan)
    assert isinstance(packed, Panels)
    layer = native_linear(packed, None, Activations.EIGHT_BIT)
    native.library.ft_gemm(x.data_ptr(), ctypes.byref(layer), memory[1].data_ptr(), 14, native.num_threads)
    assert torch.equal(memory[1:15], expected)
    assert memory[0].isnan().all()
    assert memory[15].isnan().all()


def test_no_rows_give_no_rows(path: Native | None) -> None:
    packed = round_weights(noise(20, 32), native=path)
    assert multiply_blocks(torch.empty(0, 32), packed, native=path).shape == (0, 20)


def test_wrong_inputs_are_named(native: Native) -> None:
    packed = round_weights(noise(4, 32), native=native)
    with pytest.raises(ShapeError, match=r"x must be \[\*, 32\], not \[2, 64\]"):
        multiply_blocks(torch.zeros(2, 64), packed, native=native)
    with pytest.raises(ShapeError, match=r"bias must be \[4\], not \[5\]"):
        multiply_blocks(torch.zeros(2, 32), packed, torch.zeros(5), native=native)
    with pytest.raises(ShapeError, match="packed for the native library"):
        multiply_blocks(torch.zeros(2, 32), packed)
    assert isinstance(round_weights(noise(4, 32)), Blocks)


def test_older_processors_compute_the_same_products(older: Native, native: Native) -> None:
    for format, activations in itertools.product(FORMATS, ROUNDED):
        whole, weight = made_of_blocks(17, 96, format, d=1.0), made_of_blocks(33, 576, format)
        x = torch.randint(-127, 128, (9, 96), generator=torch.Generator().manual_seed(1)).float()
        x[:, ::32] = 127.0
        assert torch.equal(product(x, whole, format, older, activations), x @ whole.t())
        rows = noise(17, 576) * 5
        expected, out = (
            product(rows, weight, format, native, activations),
            product(rows, weight, format, older, activations),
        )
        torch.testing.assert_close(out, expected, rtol=2e-6, atol=2e-6 * float(expected.abs().max()))
        assert torch.equal(product(rows[3:4], weight, format, older, activations), out[3:4])
