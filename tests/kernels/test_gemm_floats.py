"""Weights that stay floats: the product in float32, fp16 rounded to nearest, and each row for itself."""

from __future__ import annotations

import math

import pytest
import torch

from forktree.kernels.checks import ShapeError
from forktree.kernels.gemm import Activations, multiply_blocks
from forktree.kernels.gemm_weights import Dense, Format, Panels, keep_weights, round_weights
from forktree.kernels.native import Native

FLOATS = [Format.HALF, Format.FLOAT]
SHAPES = [(1, 32), (17, 64), (50, 96), (576, 1536)]


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product(
    x: torch.Tensor, weight: torch.Tensor, format: Format, path: Native | None, bias: torch.Tensor | None = None
) -> torch.Tensor:
    packed = keep_weights(weight, format, native=path)
    return multiply_blocks(x, packed, bias, activations=Activations.FLOAT, native=path)


@pytest.mark.parametrize("format", FLOATS)
def test_small_integers_come_out_exactly(format: Format, path: Native | None) -> None:
    random = torch.Generator().manual_seed(1)
    weight, x = (torch.randint(-50, 50, shape, generator=random).float() for shape in ((33, 96), (20, 96)))
    bias = torch.arange(33.0)
    assert torch.equal(product(x, weight, format, path, bias), x @ weight.t() + bias)


@pytest.mark.parametrize("format", FLOATS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_the_result_is_the_product(outputs: int, inputs: int, format: Format, path: Native | None) -> None:
    weight, x, bias = noise(outputs, inputs), noise(130, inputs, seed=1), noise(outputs, seed=2)
    kept = weight.half().double() if format is Format.HALF else weight.double()
    error = product(x, weight, format, path, bias) - (x.double() @ kept.t() + bias)
    size = x.double().abs() @ kept.abs().t() + bias.abs()
    assert (error.abs() / size).max() < 1e-6


@pytest.mark.parametrize("format", FLOATS)
@pytest.mark.parametrize(("outputs", "inputs"), [(17, 64), (50, 1536)])
def test_each_row_has_the_same_bits_beside_any_others(
    outputs: int, inputs: int, format: Format, native: Native
) -> None:
    packed, bias = keep_weights(noise(outputs, inputs), format, native=native), noise(outputs, seed=2)
    x = noise(241, inputs, seed=1)

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        return multiply_blocks(rows, packed, bias, activations=Activations.FLOAT, native=native)

    alone = torch.cat([multiply(row) for row in x.split(1)])
    for rows in [*range(1, 65), 119, 120, 121, 132, 240, 241]:
        assert torch.equal(multiply(x[:rows]), alone[:rows]), rows
    assert torch.equal(multiply(x[30:50]), alone[30:50])


@pytest.mark.parametrize("format", FLOATS)
@pytest.mark.parametrize("broken", [math.inf, math.nan])
def test_a_broken_value_stays_in_its_row(format: Format, broken: float, path: Native | None) -> None:
    weight, x = noise(20, 96), noise(30, 96, seed=1)
    fine = product(x, weight, format, path)
    x[7, 40] = broken
    out = product(x, weight, format, path)
    assert not out[7].isfinite().any()
    out[7] = fine[7]
    assert torch.equal(out, fine)


@pytest.mark.parametrize("weight", [1e-8, 6e-8, 1e-5, 0.1, 1.0, 2049.0, 65504.0, -0.0, -1e-7])
def test_fp16_weights_are_rounded_to_nearest(weight: float, path: Native | None) -> None:
    weights = torch.full((3, 32), weight)
    identity = torch.eye(32)
    found = product(identity, weights, Format.HALF, path)
    assert torch.equal(found, weights.half().float().t().expand(32, 3))


def test_weights_are_kept_as_the_path_reads_them(native: Native) -> None:
    weight = noise(20, 64)
    plain, packed = keep_weights(weight, Format.HALF), keep_weights(weight, Format.HALF, native=native)
    assert isinstance(plain, Dense)
    assert isinstance(packed, Panels)
    assert (plain.format, plain.num_outputs, plain.num_inputs) == (packed.format, 20, 64)


@pytest.mark.parametrize("weight", [65536.0, -1e5, math.inf, math.nan])
def test_what_fp16_does_not_reach_is_refused(weight: float, path: Native | None) -> None:
    with pytest.raises(ValueError, match="fp16 weights must be finite and at most 65504; one has magnitude"):
        keep_weights(torch.full((4, 32), weight), Format.HALF, native=path)


def test_kinds_that_do_not_go_together_are_named(path: Native | None) -> None:
    blocks, floats = round_weights(noise(4, 32), native=path), keep_weights(noise(4, 32), Format.FLOAT, native=path)
    with pytest.raises(ValueError, match="EIGHT_BIT weights do not go with FLOAT activations"):
        multiply_blocks(noise(2, 32), blocks, activations=Activations.FLOAT, native=path)
    with pytest.raises(ValueError, match="FLOAT weights do not go with SIXTEEN_BIT activations"):
        multiply_blocks(noise(2, 32), floats, activations=Activations.SIXTEEN_BIT, native=path)
    with pytest.raises(ValueError, match="FOUR_BIT weights are blocks: recover or round them"):
        keep_weights(noise(4, 32), Format.FOUR_BIT, native=path)
    with pytest.raises(ShapeError, match="in a multiple of 32"):
        keep_weights(noise(4, 33), Format.FLOAT, native=path)


def test_older_processors_compute_the_same_products(older: Native, native: Native) -> None:
    for format in FLOATS:
        x, weight = noise(17, 576), noise(33, 576, seed=1)
        out = product(x, weight, format, older)
        torch.testing.assert_close(out, product(x, weight, format, native), rtol=1e-5, atol=1e-4)
        assert torch.equal(product(x[3:4], weight, format, older), out[3:4])
