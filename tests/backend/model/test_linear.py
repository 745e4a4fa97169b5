"""Every linear kind on offer is row-invariant to the bit, and close to the plain product."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from forktree.backend.model.linear import (
    QUANTIZE,
    BlockLinear,
    Fp16Linear,
    Linear,
    LinearFactory,
    PackedLinear,
    Quantize,
    RowwiseLinear,
    is_row_invariant,
)
from forktree.backend.model.store import cache_root
from forktree.kernels.gemm_weights import Format
from forktree.kernels.native import Native, load_native
from forktree.lang.errors import ModelError

SHAPES = [(576, 960), (576, 576), (576, 3072), (1536, 576), (48, 80), (7, 3), (1, 1)]


def kinds() -> list[type[Fp16Linear] | type[PackedLinear] | type[RowwiseLinear]]:
    found: list[type[Fp16Linear] | type[PackedLinear] | type[RowwiseLinear]] = [RowwiseLinear]
    if "fbgemm" in torch.backends.quantized.supported_engines:
        found.append(Fp16Linear)
    if torch.backends.mkldnn.is_available():
        found.append(PackedLinear)
    return found


def weight_and_bias(width: int, out: int) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(width * out)
    return torch.randn(out, width, generator=noise) * 0.05, torch.randn(out, generator=noise)


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize(("width", "out"), SHAPES)
def test_each_row_has_the_same_bits_beside_any_others(kind: type, width: int, out: int) -> None:
    linear = kind(*weight_and_bias(width, out))
    x = torch.randn(512, width, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([linear(x[i : i + 1]) for i in range(64)])
    for rows in [*range(1, 65), 65, 100, 127, 128, 129, 200, 511, 512]:
        assert torch.equal(linear(x[:rows])[:64], alone[: min(rows, 64)]), rows
    assert torch.equal(linear(x[30:50]), alone[30:50])


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize(("width", "out"), SHAPES)
def test_each_kind_is_the_product(kind: type, width: int, out: int) -> None:
    weight, bias = weight_and_bias(width, out)
    x = torch.randn(70, width, generator=torch.Generator().manual_seed(1))
    expected = (x.double() @ weight.double().t() + bias).float()
    tolerance = 2e-3 if kind is Fp16Linear else 1e-5
    torch.testing.assert_close(kind(weight, bias)(x), expected, atol=tolerance, rtol=1e-5)
    torch.testing.assert_close(kind(weight, None)(x), expected - bias, atol=tolerance, rtol=1e-5)
    assert kind(weight, bias)(x[:0]).shape == (0, out)


@pytest.fixture(scope="module", params=["native", "plain"])
def library(request: pytest.FixtureRequest) -> Native | None:
    found = load_native(cache_root() / "native", num_threads=1) if request.param == "native" else None
    if request.param == "native" and found is None:
        pytest.skip("no native kernels here")
    return found


def four_bit_weight(width: int, out: int) -> torch.Tensor:
    q = torch.arange(out * width).view(out, width) * 7 % 16
    return q * 0.0078125 - 0.0625


@pytest.mark.parametrize("quantize", QUANTIZE)
def test_what_the_factory_makes_is_row_invariant(quantize: Quantize, library: Native | None) -> None:
    factory = LinearFactory(quantize, library)
    for width, out in SHAPES:
        assert is_row_invariant(factory.make(*weight_and_bias(width, out)), width)


def test_a_path_that_looks_at_its_neighbours_is_found_out() -> None:
    def leaky(x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 + 1e-6 * (len(x) > 40))

    assert not is_row_invariant(leaky, 8)


def test_where_no_packed_path_holds_rows_are_computed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forktree.backend.model.linear.is_row_invariant", _never)
    assert isinstance(LinearFactory("auto").make(*weight_and_bias(8, 4)), RowwiseLinear)
    with pytest.raises(ModelError, match="use quantize='none'"):
        LinearFactory("fp16").make(*weight_and_bias(8, 4))


_never: Callable[[Linear, int], bool] = lambda linear, in_features: False  # noqa: E731


def test_weights_beyond_fp16_stay_fp32(library: Native | None) -> None:
    weight = torch.full((4, 32), 1e5)
    made = LinearFactory("auto", library).make(weight)
    assert isinstance(made, BlockLinear if library else PackedLinear)
    torch.testing.assert_close(made(torch.eye(32)), weight.t())
    with pytest.raises(ModelError, match="a weight exceeds 65504"):
        LinearFactory("fp16", library).make(weight)


@pytest.mark.parametrize(("quantize", "format"), [("none", Format.FLOAT), ("fp16", Format.HALF), ("auto", Format.HALF)])
def test_floats_go_through_the_native_library_where_there_is_one(
    quantize: Quantize, format: Format, library: Native | None
) -> None:
    made = LinearFactory(quantize, library).make(*weight_and_bias(64, 20))
    if library is None:
        assert isinstance(made, PackedLinear if quantize == "none" else Fp16Linear)
    else:
        assert isinstance(made, BlockLinear)
        assert made.format is format


def test_q4_keeps_four_bit_blocks_and_rounds_other_weights_to_eight(library: Native | None) -> None:
    factory = LinearFactory("q4", library)
    made, other = factory.make(four_bit_weight(64, 20)), factory.make(weight_and_bias(64, 20)[0])
    assert isinstance(made, BlockLinear)
    assert isinstance(other, BlockLinear)
    assert (made.format, other.format) == (Format.FOUR_BIT, Format.EIGHT_BIT)


def test_auto_keeps_blocks_where_there_is_the_native_library(library: Native | None) -> None:
    factory = LinearFactory("auto", library)
    made, other = factory.make(four_bit_weight(64, 20)), factory.make(weight_and_bias(64, 20)[0])
    if library is None:
        assert isinstance(made, Fp16Linear)
        assert isinstance(other, Fp16Linear)
    else:
        assert isinstance(made, BlockLinear)
        assert isinstance(other, BlockLinear)
        assert (made.format, other.format) == (Format.FOUR_BIT, Format.HALF)


def test_int8_is_near_the_product(library: Native | None) -> None:
    weight, bias = weight_and_bias(576, 80)
    linear = LinearFactory("int8", library).make(weight, bias)
    assert isinstance(linear, BlockLinear)
    x = torch.randn(70, 576, generator=torch.Generator().manual_seed(1))
    error = linear(x) - (x @ weight.t() + bias)
    assert error.pow(2).mean().sqrt() < 0.01 * (x @ weight.t()).pow(2).mean().sqrt()


@pytest.mark.parametrize("quantize", QUANTIZE)
def test_widths_that_are_no_multiple_of_32_are_left_to_other_libraries(
    quantize: Quantize, library: Native | None
) -> None:
    assert not isinstance(LinearFactory(quantize, library).make(*weight_and_bias(48, 80)), BlockLinear)


@pytest.mark.parametrize("quantize", ["int8", "mixed", "q4"])
def test_weights_too_large_for_a_scale_are_not_quantised(quantize: Quantize, library: Native | None) -> None:
    made = LinearFactory(quantize, library).make(torch.full((4, 64), 1e7))
    assert not isinstance(made, BlockLinear) or made.format is Format.FLOAT


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(
        ValueError, match='quantize must be "auto", "none", "fp16", "int8", "mixed" or "q4", not \'int3\''
    ):
        LinearFactory("int3")  # type: ignore[arg-type]
