"""Every linear kind on offer is row-invariant to the bit, and close to the plain product."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from forktree.backend.model.linear import (
    Fp16Linear,
    Linear,
    LinearFactory,
    PackedLinear,
    RowwiseLinear,
    is_row_invariant,
)
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


@pytest.mark.parametrize("quantize", ["auto", "none", "fp16"])
def test_what_the_factory_makes_is_row_invariant(quantize: str) -> None:
    factory = LinearFactory(quantize)  # type: ignore[arg-type]
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


def test_weights_beyond_fp16_stay_fp32() -> None:
    weight = torch.full((4, 4), 1e5)
    assert not isinstance(LinearFactory("auto").make(weight), Fp16Linear)
    with pytest.raises(ModelError, match="a weight exceeds 65504"):
        LinearFactory("fp16").make(weight)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match='quantize must be "auto", "none" or "fp16", not \'int3\''):
        LinearFactory("int3")  # type: ignore[arg-type]
