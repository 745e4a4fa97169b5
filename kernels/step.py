"""A whole forward pass of a Llama-like model over packed weights, as one native call.

Between the linear layers of a small model there is little to compute and much to start: of ten operations a layer,
each started from Python, most of a step at one row is the starting. Here all layers are one job of a team of threads,
which also leaves the interpreter's lock to others for the whole step.

The plain twin is the model's own forward pass over the single operations (`gemm`, `norm`, `rotary`, `attention`,
`activation`), which has the same bits: both are made of the same native functions.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from forktree.kernels import structs
from forktree.kernels.attention import native_plan
from forktree.kernels.attention_plan import AttentionPlan
from forktree.kernels.checks import ShapeError, check_tensor
from forktree.kernels.gemm import Activations, native_linear
from forktree.kernels.gemm_weights import BLOCK_SIZE, Panels
from forktree.kernels.native import Native
from forktree.kernels.rotary import HeadNorms, RotaryTable

_ROW_BLOCK = 32
"""Rows whose attention may be one piece of work (ROW_BLOCK of step_cpu.cpp)."""


@dataclass(frozen=True, slots=True, eq=False)
class StepLinear:
    """A linear layer over panels; bias [out] float32."""

    weights: Panels
    bias: torch.Tensor | None
    activations: Activations

    def native(self) -> structs.Linear:
        return native_linear(self.weights, self.bias, self.activations)


@dataclass(frozen=True, slots=True, eq=False)
class StepLayer:
    """One layer; q, k and v are one linear layer, gate and up another. Norm weights are [hidden] float32."""

    attention_norm: torch.Tensor
    qkv: StepLinear
    head_norms: HeadNorms | None
    output: StepLinear
    mlp_norm: torch.Tensor
    gate_up: StepLinear
    down: StepLinear

    def native(self) -> structs.StepLayer:
        norms = self.head_norms
        return structs.StepLayer(
            attention_norm=self.attention_norm.data_ptr(),
            q_norm=None if norms is None else norms.q_weight.data_ptr(),
            k_norm=None if norms is None else norms.k_weight.data_ptr(),
            mlp_norm=self.mlp_norm.data_ptr(),
            qkv=self.qkv.native(),
            output=self.output.native(),
            gate_up=self.gate_up.native(),
            down=self.down.native(),
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepShape:
    """Sizes that all layers share."""

    hidden: int
    inner: int
    q_heads: int
    kv_heads: int
    head_dim: int
    eps: float


class StepOutput(NamedTuple):
    """Logits [rows, vocab], and final states [rows, hidden] (behind the last norm), both float32, of the rows that
    were asked for."""

    logits: torch.Tensor
    hidden: torch.Tensor


class NativeStep:
    """The layers of one model as the native library reads them, and the memory that a step works in.

    The memory grows to the largest step so far and is kept: one step at a time.

    Args:
        embedding: [vocab, hidden] float32
        norm:      [hidden] float32, before the head
    Raises:
        ShapeError: a tensor that does not fit, no layers, or a width that is no multiple of 32.
    """

    def __init__(
        self,
        shape: StepShape,
        *,
        embedding: torch.Tensor,
        layers: Sequence[StepLayer],
        norm: torch.Tensor,
        head: StepLinear,
        rotary: RotaryTable,
        native: Native,
    ) -> None:
        _check_model(shape, embedding, layers, norm, head, rotary)
        self._shape = shape
        self._native = native
        self._kept = (embedding, tuple(layers), norm, head, rotary)  # what the addresses below point to
        self._layers = (structs.StepLayer * len(layers))(*(layer.native() for layer in layers))
        self._model = structs.StepModel(
            layers=ctypes.addressof(self._layers),
            embedding=embedding.data_ptr(),
            norm=norm.data_ptr(),
            cos=rotary.cos.data_ptr(),
            sin=rotary.sin.data_ptr(),
            head=head.native(),
            num_layers=len(layers),
            hidden=shape.hidden,
            inner=shape.inner,
            q_heads=shape.q_heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            eps=shape.eps,
            scale=shape.head_dim**-0.5,
        )
        self._vocab = head.weights.num_outputs
        self._teams: dict[int, int] = {}  # by their size; those that were asked for
        self._num_threads = native.num_threads
        self._team()
        self._workspace = torch.empty(0)

    def run(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        plan: AttentionPlan,
        logit_rows: torch.Tensor,
        hidden_rows: torch.Tensor,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
    ) -> StepOutput:
        """Write the new tokens' keys and values, and compute the logits and final states that are asked for.

        Args:
            ids, positions, slots: [tokens] int64, in range; each slot written once
            plan:       of these rows, from `plan_attention`
            logit_rows: [rows] int64; hidden_rows the same
            k_pool:     [layers, pages, page_size, kv_heads, head_dim] float32, written; `v_pool` the same
        Raises:
            ShapeError: shapes or types that do not fit.
        """
        tokens = plan.num_rows
        for name, tensor in (("ids", ids), ("positions", positions), ("slots", slots)):
            check_tensor(name, tensor, (tokens,), torch.int64)
        check_tensor("logit_rows", logit_rows, (None,), torch.int64)
        check_tensor("hidden_rows", hidden_rows, (None,), torch.int64)
        pages = (len(self._layers), None, plan.page_size, self._shape.kv_heads, self._shape.head_dim)
        check_tensor("k_pool", k_pool, pages, torch.float32)
        check_tensor("v_pool", v_pool, tuple(k_pool.shape), torch.float32)
        if plan.max_slot >= k_pool.shape[1] * plan.page_size:
            raise ShapeError(f"slots must be below {k_pool.shape[1] * plan.page_size}, not {plan.max_slot}")
        out = StepOutput(torch.empty(len(logit_rows), self._vocab), torch.empty(len(hidden_rows), self._shape.hidden))
        given = structs.StepInput(
            ids=ids.data_ptr(),
            positions=positions.data_ptr(),
            slots=slots.data_ptr(),
            logit_rows=logit_rows.data_ptr(),
            k_pages=k_pool.data_ptr(),
            v_pages=v_pool.data_ptr(),
            logits=out.logits.data_ptr(),
            workspace=self._memory_for(plan, len(logit_rows)),
            hidden_rows=hidden_rows.data_ptr(),
            hidden=out.hidden.data_ptr(),
            plan=native_plan(plan),
            rows=tokens,
            pairs=plan.num_pairs,
            most_pairs=_most_pairs(plan),
            num_logits=len(logit_rows),
            num_hidden=len(hidden_rows),
            layer_floats=k_pool.stride(0),
        )
        self._native.library.ft_step(ctypes.byref(self._model), ctypes.byref(given), self._team())
        return out

    def use_threads(self, count: int) -> None:
        """Let so many threads carry out the next steps, at most those of the library. Changes no bit.

        Raises:
            ValueError: a count out of range.
        """
        if not 1 <= count <= self._native.num_threads:
            raise ValueError(f"a step takes 1 to {self._native.num_threads} threads, not {count}")
        self._num_threads = count

    def _team(self) -> int:
        """The team of the size in use, made when it is first needed; it sleeps while another works."""
        team = self._teams.get(self._num_threads)
        if team is None:
            free, team = self._native.library.ft_team_free, self._native.library.ft_team_new(self._num_threads)
            weakref.finalize(self, free, team).atexit = False  # a step may run at exit
            self._teams[self._num_threads] = team
        return team

    def _memory_for(self, plan: AttentionPlan, num_logits: int) -> int:
        """The address of enough memory for a step."""
        floats = self._native.library.ft_step_floats(
            ctypes.byref(self._model),
            plan.num_rows,
            plan.num_pairs,
            _most_pairs(plan),
            num_logits,
            plan.split,
            self._native.num_threads,
        )
        if floats > len(self._workspace):
            self._workspace = torch.empty(0)  # the old goes before the new comes
            self._workspace = torch.empty(floats)
        return self._workspace.data_ptr()


def _most_pairs(plan: AttentionPlan) -> int:
    """Partial results of the block of rows that has most of them."""
    starts = plan.row_pair_start
    edges = torch.cat([starts[::_ROW_BLOCK], starts[-1:]])
    return int(edges.diff().max()) if len(edges) > 1 else 0


def _check_model(
    shape: StepShape,
    embedding: torch.Tensor,
    layers: Sequence[StepLayer],
    norm: torch.Tensor,
    head: StepLinear,
    rotary: RotaryTable,
) -> None:
    hidden, heads = shape.hidden, shape.q_heads * shape.head_dim
    for name, width in (("hidden", hidden), ("inner", shape.inner), ("q_heads · head_dim", heads)):
        if width % BLOCK_SIZE:
            raise ShapeError(f"{name} must be a multiple of {BLOCK_SIZE}, not {width}")
    if not layers or shape.q_heads % shape.kv_heads or shape.head_dim % 2:
        raise ShapeError(f"no layers, or heads that do not fit: {len(layers)} layers, {shape}")
    check_tensor("embedding", embedding, (None, hidden), torch.float32)
    check_tensor("norm", norm, (hidden,), torch.float32)
    check_tensor("rotary.cos", rotary.cos, (None, shape.head_dim // 2), torch.float32)
    check_tensor("rotary.sin", rotary.sin, tuple(rotary.cos.shape), torch.float32)
    _check_linear("head", head, embedding.shape[0], hidden)
    for layer in layers:
        check_tensor("attention_norm", layer.attention_norm, (hidden,), torch.float32)
        check_tensor("mlp_norm", layer.mlp_norm, (hidden,), torch.float32)
        _check_linear("qkv", layer.qkv, heads + 2 * shape.kv_heads * shape.head_dim, hidden)
        _check_linear("output", layer.output, hidden, heads)
        _check_linear("gate_up", layer.gate_up, 2 * shape.inner, hidden)
        _check_linear("down", layer.down, hidden, shape.inner)
        if layer.head_norms is not None:
            check_tensor("q_norm", layer.head_norms.q_weight, (shape.head_dim,), torch.float32)
            check_tensor("k_norm", layer.head_norms.k_weight, (shape.head_dim,), torch.float32)


def _check_linear(name: str, linear: StepLinear, outputs: int, inputs: int) -> None:
    weights = linear.weights
    if (weights.num_outputs, weights.num_inputs) != (outputs, inputs):
        raise ShapeError(f"{name} must be [{outputs}, {inputs}], not [{weights.num_outputs}, {weights.num_inputs}]")
    if linear.bias is not None:
        check_tensor(f"bias of {name}", linear.bias, (outputs,), torch.float32)
