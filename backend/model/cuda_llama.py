"""The forward pass of the Llama family on a device: dense weights of one type, every operation a kernel of ours.

The residual stream is float32 and everything between is the model's type (bfloat16 by default); sums are float32.
Nothing here waits for the device or reads a number from it, so that a pass can be captured as a graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from forktree.backend.model.config import ModelConfig
from forktree.backend.model.rope import build_rotary_table
from forktree.kernels.activation_triton import silu_mul
from forktree.kernels.attention_triton import attend_triton
from forktree.kernels.attention_triton_plan import TritonPlan
from forktree.kernels.matmul_triton import multiply
from forktree.kernels.norm_triton import add_rms_norm
from forktree.kernels.rotary import HeadNorms, RotaryTable
from forktree.kernels.rotary_triton import rotate_and_write


class TensorSource(Protocol):
    """Where weights come from: a model folder, or random numbers of the right shapes."""

    def has(self, name: str) -> bool: ...

    def take_to(self, name: str, *shape: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """The tensor `name`, once. Raises ModelError: it is missing or misshapen."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """One pass, all on one device.

    Attributes:
        ids:        [rows] int64; −1 − i stands for entry i of `last_tokens`
        positions:  [rows] int64
        slots:      [rows] int64; negative for a row of padding, whose result means nothing
        logit_rows: [logits] int64: rows whose logits are wanted
        last_tokens: [draws] int32 drawn by the step before
        plan:       of these rows
        attended:   [rows, q_heads, head_dim] of the model's type, zeros in rows of padding, which stay so; None
            takes fresh memory in each layer.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logit_rows: torch.Tensor
    last_tokens: torch.Tensor
    plan: TritonPlan
    attended: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DenseLinear:
    """weight [out, in]; bias [out] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        return multiply(x, self.weight, self.bias, dtype=dtype)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLayer:
    """Weights of one layer; q, k and v are one linear layer, gate and up another."""

    attention_norm: torch.Tensor
    qkv: DenseLinear
    head_norms: HeadNorms | None
    output: DenseLinear
    mlp_norm: torch.Tensor
    gate_up: DenseLinear
    down: DenseLinear


@dataclass(frozen=True, slots=True, eq=False)
class DeviceModel:
    """Weights on a device, and the pass over them."""

    config: ModelConfig
    dtype: torch.dtype
    embedding: torch.Tensor
    layers: tuple[DeviceLayer, ...]
    norm: torch.Tensor
    head: DenseLinear
    rotary: RotaryTable

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def num_weight_bytes(self) -> int:
        """What a step of one token reads of the weights: all but the embedding, or that too where it is the head."""
        return sum(tensor.numel() * tensor.element_size() for tensor in _step_weights(self))

    def forward(self, step: DeviceStep, k_pool: torch.Tensor, v_pool: torch.Tensor) -> torch.Tensor:
        """Write the rows' keys and values; logits [logits, vocab] float32.

        Args:
            k_pool: [layers, pages, page_size, kv_heads, head_dim] of the model's type, written; `v_pool` the same
        """
        return self._predict(self._last_norm(*self._run_layers(step, k_pool, v_pool), step.logit_rows, self.dtype))

    def forward_hidden(
        self, step: DeviceStep, hidden_rows: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, and final states [hidden_rows, hidden] float32 (behind the last norm)."""
        stream, delta = self._run_layers(step, k_pool, v_pool)
        logits = self._predict(self._last_norm(stream, delta, step.logit_rows, self.dtype))
        return logits, self._last_norm(stream, delta, hidden_rows, torch.float32)

    def _run_layers(
        self, step: DeviceStep, k_pool: torch.Tensor, v_pool: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The residual stream, and what the last layer adds to it."""
        stream = self.embedding[resolve_ids(step.ids, step.last_tokens)].float()
        delta: torch.Tensor | None = None
        for index, layer in enumerate(self.layers):
            delta = self._attention(layer, stream, delta, step, k_pool[index], v_pool[index])
            delta = layer.down(silu_mul(layer.gate_up(self._norm(stream, delta, layer.mlp_norm))))
        return stream, delta

    def _last_norm(
        self, stream: torch.Tensor, delta: torch.Tensor | None, rows: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        chosen, last = stream[rows], None if delta is None else delta[rows]
        return add_rms_norm(chosen, last, self.norm, eps=self.config.norm_eps, dtype=dtype)

    def _predict(self, states: torch.Tensor) -> torch.Tensor:
        return self.head(states, torch.float32)

    def _attention(
        self,
        layer: DeviceLayer,
        stream: torch.Tensor,
        delta: torch.Tensor | None,
        step: DeviceStep,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
    ) -> torch.Tensor:
        q = rotate_and_write(
            layer.qkv(self._norm(stream, delta, layer.attention_norm)),
            self.rotary,
            step.positions,
            step.slots,
            k_pages,
            v_pages,
            q_heads=self.config.q_heads,
            norms=layer.head_norms,
        )
        out = attend_triton(q, k_pages, v_pages, step.plan, scale=self.config.head_dim**-0.5, out=step.attended)
        return layer.output(out.view(len(out), -1))

    def _norm(self, stream: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        return add_rms_norm(stream, delta, weight, eps=self.config.norm_eps, dtype=self.dtype)


def resolve_ids(ids: torch.Tensor, last_tokens: torch.Tensor) -> torch.Tensor:
    """Put drawn tokens where an id is −1 − i."""
    if not len(last_tokens):
        return ids
    drawn = last_tokens[(-1 - ids).clamp(0, len(last_tokens) - 1)].long()
    return torch.where(ids < 0, drawn, ids)


def build_device_model(
    config: ModelConfig, source: TensorSource, *, device: torch.device, dtype: torch.dtype
) -> DeviceModel:
    """Assemble a model tensor by tensor, each straight to the device.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    def take(name: str, *shape: int) -> torch.Tensor:
        return source.take_to(name, *shape, device=device, dtype=dtype)

    embedding = take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers = tuple(_build_layer(config, take, f"model.layers.{index}") for index in range(config.num_layers))
    norm = take("model.norm.weight", config.hidden_size)
    head = embedding if config.tie_embeddings else take("lm_head.weight", *embedding.shape)
    rotary = build_rotary_table(config)
    table = RotaryTable(rotary.cos.to(device), rotary.sin.to(device))
    return DeviceModel(config, dtype, embedding, layers, norm, DenseLinear(head), table)


class _Take(Protocol):
    def __call__(self, name: str, *shape: int) -> torch.Tensor: ...


def _build_layer(config: ModelConfig, take: _Take, name: str) -> DeviceLayer:
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.q_heads * head_dim, config.kv_heads * head_dim

    def linear(parts: dict[str, int], width: int, has_bias: bool) -> DenseLinear:
        weight = torch.cat([take(f"{name}.{part}.weight", out, width) for part, out in parts.items()])
        biases = [take(f"{name}.{part}.bias", out) for part, out in parts.items()] if has_bias else []
        return DenseLinear(weight, torch.cat(biases) if biases else None)

    attention = {"self_attn.q_proj": q_width, "self_attn.k_proj": kv_width, "self_attn.v_proj": kv_width}
    norms = None
    if config.qk_norm:
        q_weight = take(f"{name}.self_attn.q_norm.weight", head_dim)
        norms = HeadNorms(q_weight, take(f"{name}.self_attn.k_norm.weight", head_dim), config.norm_eps)
    return DeviceLayer(
        attention_norm=take(f"{name}.input_layernorm.weight", hidden),
        qkv=linear(attention, hidden, config.qkv_bias),
        head_norms=norms,
        output=linear({"self_attn.o_proj": hidden}, q_width, config.o_bias),
        mlp_norm=take(f"{name}.post_attention_layernorm.weight", hidden),
        gate_up=linear({"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden, config.mlp_bias),
        down=linear({"mlp.down_proj": hidden}, inner, config.mlp_bias),
    )


def _step_weights(model: DeviceModel) -> Iterator[torch.Tensor]:
    yield model.head.weight
    yield model.norm
    for layer in model.layers:
        yield from (layer.attention_norm, layer.mlp_norm)
        for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
            yield linear.weight
