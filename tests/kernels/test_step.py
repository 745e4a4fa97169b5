"""What does not fit together is refused before the native library sees it. The bits are tested with a whole model
(tests/backend/model/test_native_step.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from forktree.kernels.attention_plan import plan_attention
from forktree.kernels.checks import ShapeError
from forktree.kernels.gemm import Activations
from forktree.kernels.gemm_weights import Panels, round_weights
from forktree.kernels.native import Native
from forktree.kernels.rotary import RotaryTable
from forktree.kernels.step import NativeStep, StepLayer, StepLinear, StepShape

SHAPE = StepShape(hidden=32, inner=64, q_heads=2, kv_heads=1, head_dim=16, eps=1e-5)


def linear(native: Native, outputs: int, inputs: int) -> StepLinear:
    weights = round_weights(torch.randn(outputs, inputs), native=native)
    assert isinstance(weights, Panels)
    return StepLinear(weights, None, Activations.SIXTEEN_BIT)


def layer(native: Native) -> StepLayer:
    return StepLayer(
        attention_norm=torch.ones(32),
        qkv=linear(native, 64, 32),
        head_norms=None,
        output=linear(native, 32, 32),
        mlp_norm=torch.ones(32),
        gate_up=linear(native, 128, 32),
        down=linear(native, 32, 64),
    )


def make(native: Native, shape: StepShape = SHAPE, *layers: StepLayer) -> NativeStep:
    return NativeStep(
        shape,
        embedding=torch.randn(50, 32),
        layers=layers or (layer(native),),
        norm=torch.ones(32),
        head=linear(native, 50, 32),
        rotary=RotaryTable(torch.ones(20, 8), torch.zeros(20, 8)),
        native=native,
    )


def test_layers_of_another_shape_are_named(native: Native) -> None:
    good = layer(native)
    with pytest.raises(ShapeError, match=r"down must be \[32, 64\], not \[32, 32\]"):
        make(native, SHAPE, replace(good, down=good.output))
    with pytest.raises(ShapeError, match="inner must be a multiple of 32, not 48"):
        make(native, replace(SHAPE, inner=48))
    with pytest.raises(ShapeError, match=r"mlp_norm must be \[32\], not \[31\]"):
        make(native, SHAPE, replace(good, mlp_norm=torch.ones(31)))
    biased = replace(good, qkv=replace(good.qkv, bias=torch.ones(3)))
    with pytest.raises(ShapeError, match=r"bias of qkv must be \[64\], not \[3\]"):
        make(native, SHAPE, biased)


def test_a_step_of_another_shape_is_refused(native: Native) -> None:
    step, pool = make(native), torch.zeros(1, 4, 4, 1, 16)
    one, none = torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    plan = plan_attention([[3]], [0], [0], 4, 16)
    assert step.run(one, one, one, plan, one, none, pool, pool.clone()).logits.shape == (1, 50)
    with pytest.raises(ShapeError, match=r"ids must be \[1\], not \[2\]"):
        step.run(torch.zeros(2, dtype=torch.int64), one, one, plan, one, none, pool, pool)
    with pytest.raises(ShapeError, match=r"k_pool must be \[1, \*, 4, 1, 16\], not \[2, 4, 4, 1, 16\]"):
        step.run(one, one, one, plan, one, none, torch.zeros(2, 4, 4, 1, 16), pool)
    with pytest.raises(ShapeError, match="slots must be below 8, not 15"):
        step.run(one, one, one, plan, one, none, pool[:, :2].contiguous(), pool[:, :2].contiguous())


def test_no_rows_of_logits_may_be_wanted(native: Native) -> None:
    step, pool = make(native), torch.zeros(1, 4, 4, 1, 16)
    one, none = torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    plan = plan_attention([[0]], [0], [0], 4, 16)
    assert step.run(one, one, one, plan, none, none, pool, pool.clone()).logits.shape == (0, 50)
    assert pool.abs().sum() > 0  # the key was written all the same
