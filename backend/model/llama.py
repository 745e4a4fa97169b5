"""The forward pass of the Llama family over paged keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forktree.backend.cache.kv_pool import KVPool
from forktree.backend.model.config import ModelConfig
from forktree.backend.model.linear import BlockLinear, Linear, LinearFactory
from forktree.backend.model.rope import build_rotary_table
from forktree.backend.model.weights import Weights
from forktree.kernels.activation import silu_mul
from forktree.kernels.attention import attend
from forktree.kernels.attention_plan import AttentionPlan
from forktree.kernels.gemm_weights import Panels, gather_panels
from forktree.kernels.native import Native
from forktree.kernels.norm import add_rms_norm
from forktree.kernels.rotary import HeadNorms, RotaryTable, rotate_and_write
from forktree.kernels.step import NativeStep, StepLayer, StepLinear, StepOutput, StepShape


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One forward pass as the layers see it.

    Attributes:
        ids:        [tokens] int64
        positions:  [tokens] int64
        slots:      [tokens] int64: where each token's keys and values go
        plan:       which keys and values each token sees
        logit_rows: [rows] int64: tokens whose logits are wanted
        hidden_rows: [rows] int64: tokens whose final states are wanted
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    plan: AttentionPlan
    logit_rows: torch.Tensor
    hidden_rows: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Weights of one layer; q, k and v are one linear layer, gate and up another."""

    attention_norm: torch.Tensor
    qkv: Linear
    head_norms: HeadNorms | None
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, eq=False)
class LlamaModel:
    """Weights, and the pass over them. It holds no state of any sequence: that lies in the pool."""

    config: ModelConfig
    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: Linear
    rotary: RotaryTable
    native: Native | None
    step: NativeStep | None = None

    def forward(self, step: Step, pool: KVPool) -> StepOutput:
        """Write the new tokens' keys and values to the pool; logits and final states of the wanted rows."""
        if self.step is None:
            return self.forward_plainly(step, pool)
        rows = (step.ids, step.positions, step.slots)
        return self.step.run(*rows, step.plan, step.logit_rows, step.hidden_rows, pool.k, pool.v)

    def forward_plainly(self, step: Step, pool: KVPool) -> StepOutput:
        """The same, one operation after another: what `NativeStep` must equal to the bit."""
        stream = self.embedding[step.ids]
        delta: torch.Tensor | None = None
        for layer, k_pages, v_pages in zip(self.layers, pool.k, pool.v, strict=True):
            delta = self._attention(layer, stream, delta, step, k_pages, v_pages)
            delta = self._mlp(layer, stream, delta)
        logits = self.head(self._last_norm(stream, delta, step.logit_rows))
        return StepOutput(logits, self._last_norm(stream, delta, step.hidden_rows))

    def _attention(
        self,
        layer: Layer,
        stream: torch.Tensor,
        delta: torch.Tensor | None,
        step: Step,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
    ) -> torch.Tensor:
        config = self.config
        q = rotate_and_write(
            layer.qkv(self._norm(stream, delta, layer.attention_norm)),
            self.rotary,
            step.positions,
            step.slots,
            k_pages,
            v_pages,
            q_heads=config.q_heads,
            norms=layer.head_norms,
            native=self.native,
        )
        out = attend(q, k_pages, v_pages, step.plan, scale=config.head_dim**-0.5, native=self.native)
        return layer.output(out.view(len(out), -1))

    def _mlp(self, layer: Layer, stream: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        return layer.down(silu_mul(layer.gate_up(self._norm(stream, delta, layer.mlp_norm)), native=self.native))

    def _last_norm(self, stream: torch.Tensor, delta: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor:
        """Final states of some rows; the stream stays as it is."""
        return self._norm(stream[rows], None if delta is None else delta[rows], self.norm)

    def _norm(self, stream: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        return add_rms_norm(stream, delta, weight, eps=self.config.norm_eps, native=self.native)


def build_llama(config: ModelConfig, weights: Weights, linears: LinearFactory, native: Native | None) -> LlamaModel:
    """Assemble a model from its tensors.

    Raises:
        ModelError: a tensor is missing, misshapen or unknown.
    """
    embedding = weights.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers = tuple(_build_layer(config, weights, linears, f"model.layers.{i}") for i in range(config.num_layers))
    norm = weights.take("model.norm.weight", config.hidden_size)
    output = embedding if config.tie_embeddings else weights.take("lm_head.weight", *embedding.shape)
    weights.finish(ignore=("rotary_emb.inv_freq", *(("lm_head.weight",) if config.tie_embeddings else ())))
    head, rotary = linears.make(output), build_rotary_table(config)
    step = _build_step(config, embedding, layers, norm, head, rotary, native)
    return LlamaModel(config, embedding, layers, norm, head, rotary, native, step)


def _build_step(
    config: ModelConfig,
    embedding: torch.Tensor,
    layers: tuple[Layer, ...],
    norm: torch.Tensor,
    head: Linear,
    rotary: RotaryTable,
    native: Native | None,
) -> NativeStep | None:
    """All layers as one native call, where every linear layer is in panels."""
    _gather([linear for layer in layers for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)] + [head])
    last = _step_linear(head)
    fused = [_step_layer(layer) for layer in layers]
    if native is None or last is None or not layers or any(layer is None for layer in fused):
        return None
    shape = StepShape(
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        q_heads=config.q_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        eps=config.norm_eps,
    )
    whole = [layer for layer in fused if layer is not None]
    return NativeStep(shape, embedding=embedding, layers=whole, norm=norm, head=last, rotary=rotary, native=native)


def _gather(linears: Sequence[Linear]) -> None:
    """Put the panels of all layers one behind another."""
    held = [linear for linear in linears if isinstance(linear, BlockLinear) and isinstance(linear.weights, Panels)]
    for linear, panels in zip(held, gather_panels([linear.weights for linear in held]), strict=True):  # type: ignore[misc]
        linear.weights = panels


def _step_layer(layer: Layer) -> StepLayer | None:
    linears = [_step_linear(linear) for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    qkv, output, gate_up, down = linears
    if qkv is None or output is None or gate_up is None or down is None:
        return None
    return StepLayer(layer.attention_norm, qkv, layer.head_norms, output, layer.mlp_norm, gate_up, down)


def _step_linear(linear: Linear) -> StepLinear | None:
    if isinstance(linear, BlockLinear) and isinstance(linear.weights, Panels):
        return StepLinear(linear.weights, linear.bias, linear.activations)
    return None


def _build_layer(config: ModelConfig, weights: Weights, linears: LinearFactory, name: str) -> Layer:
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.q_heads * head_dim, config.kv_heads * head_dim

    def linear(parts: dict[str, int], width: int, has_bias: bool) -> Linear:
        """One layer from the stacked outputs of `parts` (name → outputs)."""
        weight = torch.cat([weights.take(f"{name}.{part}.weight", out, width) for part, out in parts.items()])
        biases = [weights.take(f"{name}.{part}.bias", out) for part, out in parts.items()] if has_bias else []
        return linears.make(weight, torch.cat(biases) if biases else None)

    attention = {"self_attn.q_proj": q_width, "self_attn.k_proj": kv_width, "self_attn.v_proj": kv_width}
    head_norms = None
    if config.qk_norm:
        q_weight = weights.take(f"{name}.self_attn.q_norm.weight", head_dim)
        head_norms = HeadNorms(q_weight, weights.take(f"{name}.self_attn.k_norm.weight", head_dim), config.norm_eps)
    return Layer(
        attention_norm=weights.take(f"{name}.input_layernorm.weight", hidden),
        qkv=linear(attention, hidden, config.qkv_bias),
        head_norms=head_norms,
        output=linear({"self_attn.o_proj": hidden}, q_width, config.o_bias),
        mlp_norm=weights.take(f"{name}.post_attention_layernorm.weight", hidden),
        gate_up=linear({"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden, config.mlp_bias),
        down=linear({"mlp.down_proj": hidden}, inner, config.mlp_bias),
    )
