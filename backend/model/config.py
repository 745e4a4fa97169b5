"""What the native forward pass needs to know about a model, checked when it is read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forktree.lang.errors import ModelError

FAMILIES: dict[str, str] = {
    "llama": "Llama, SmolLM and others of its shape",
    "mistral": "Mistral",
    "qwen2": "Qwen 2 and 2.5",
    "qwen3": "Qwen 3",
}
"""`model_type` of every family with a native forward pass."""

_LLAMA_FIELDS = {
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "vocab_size",
}
"""What a whole configuration of the family says; its other fields default to what `convert_config` takes."""


_MAX_SIZE = 1 << 31


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions: `kind` is "default", "linear" or "llama3"; the rest belongs to the last two."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_positions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and variants of one decoder of the Llama family.

    Attributes:
        max_positions: most tokens of one sequence.
        qkv_bias, o_bias, mlp_bias: which linear layers have biases.
        qk_norm: each query and key head is normalised before the rotation (Qwen 3).
        tie_embeddings: the output layer is the input embedding.
        eos_ids: every id that ends a sequence.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    rope: RopeConfig
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False
    eos_ids: frozenset[int] = frozenset()


def read_config(folder: Path) -> ModelConfig:
    """The configuration in a model folder.

    Raises:
        ModelError: no readable configuration, a family without a native forward pass, or a variant of one
            that is not computed here; the message names the setting.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json; give a folder that transformers can read")
    config = _read_plainly(folder / "config.json") or _read_config(folder)
    return convert_config(config, eos_ids=_eos_ids(folder, config))


def _read_plainly(path: Path) -> Any | None:
    """The configuration as it stands, where it leaves nothing to a family's defaults; None elsewhere.

    transformers' own classes are imported for most of a second.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    is_whole = isinstance(data, dict) and data.get("model_type") == "llama" and data.keys() >= _LLAMA_FIELDS
    return SimpleNamespace(**data) if is_whole else None


def _read_config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds here
        raise ModelError(f"cannot read the configuration in {folder}: {error}") from error


def convert_config(config: Any, *, eos_ids: frozenset[int]) -> ModelConfig:
    """From transformers' configuration. Raises ModelError as `read_config` does."""
    try:
        converted = _convert(config, eos_ids)
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ModelError(f"the model's configuration is not sound: {error}") from error
    _check_numbers(converted)
    return converted


def _convert(config: Any, eos_ids: frozenset[int]) -> ModelConfig:
    family = config.model_type
    if family not in FAMILIES:
        known = ", ".join(f"{name} ({what})" for name, what in FAMILIES.items())
        raise ModelError(f"models of type {family!r} have no native forward pass; these have: {known}")
    _refuse_variants(config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention_bias = bool(getattr(config, "attention_bias", False))
    return ModelConfig(
        family=family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        q_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=head_dim,
        max_positions=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope=_rope(config),
        qkv_bias=family == "qwen2" or attention_bias,
        o_bias=attention_bias and family in ("llama", "qwen3"),
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        qk_norm=family == "qwen3",
        tie_embeddings=bool(config.tie_word_embeddings),
        eos_ids=eos_ids,
    )


def _check_numbers(config: ModelConfig) -> None:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "q_heads", "kv_heads", "head_dim")
    for name in (*sizes, "max_positions"):
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_SIZE:
            raise ModelError(f"the model's configuration is not sound: {name} is {str(value)[:40]}")
    rope = config.rope
    for name, number in (("norm_eps", config.norm_eps), ("rope_theta", rope.theta), ("rope factor", rope.factor)):
        if not isinstance(number, int | float) or not 0 < number < math.inf:
            raise ModelError(f"the model's configuration is not sound: {name} is {str(number)[:40]}")


def _refuse_variants(config: Any) -> None:
    """What would silently give other logits is an error."""
    if config.hidden_act not in ("silu", "swish"):
        raise ModelError(f"hidden_act must be 'silu', not {config.hidden_act!r}")
    window = getattr(config, "sliding_window", None)
    if window is not None and window < config.max_position_embeddings:
        raise ModelError(
            f"a sliding window of {window} tokens is not computed here; set sliding_window to null in config.json "
            f"and max_position_embeddings to {window} to use the model within its window"
        )
    if config.num_attention_heads % (config.num_key_value_heads or config.num_attention_heads):
        raise ModelError(
            f"num_attention_heads ({config.num_attention_heads}) must be a multiple of "
            f"num_key_value_heads ({config.num_key_value_heads})"
        )


def _rope(config: Any) -> RopeConfig:
    given = dict(getattr(config, "rope_parameters", None) or {})
    kind = given.get("rope_type", "default")
    partial = given.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    if kind not in ("default", "linear", "llama3"):
        raise ModelError(f"rotary positions of type {kind!r} are not computed here, only default, linear and llama3")
    if partial not in (None, 1.0):
        raise ModelError(f"partial_rotary_factor must be 1, not {partial}")
    try:
        return RopeConfig(
            theta=float(given.get("rope_theta", getattr(config, "rope_theta", 10000.0))),
            kind=kind,
            factor=float(given["factor"]) if kind != "default" else 1.0,
            low_freq_factor=float(given["low_freq_factor"]) if kind == "llama3" else 1.0,
            high_freq_factor=float(given["high_freq_factor"]) if kind == "llama3" else 1.0,
            original_max_positions=int(given["original_max_position_embeddings"]) if kind == "llama3" else 0,
        )
    except KeyError as error:
        raise ModelError(f"rope_parameters of type {kind!r} lack {error}") from error


def _eos_ids(folder: Path, config: Any) -> frozenset[int]:
    """The generation configuration's end tokens, else the model's."""
    path = folder / "generation_config.json"
    ids = None
    if path.is_file():
        try:
            ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        except (ValueError, AttributeError, RecursionError) as error:
            raise ModelError(f"{path} is no JSON object: {error}") from error
    if ids is None:
        ids = getattr(config, "eos_token_id", None)
    listed = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(isinstance(id, int) and not isinstance(id, bool) for id in listed):
        raise ModelError(f"eos_token_id must be a token id or a list of them, not {str(ids)[:80]}")
    return frozenset(listed)
