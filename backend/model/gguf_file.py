"""Turn a GGUF file into a folder that `transformers.from_pretrained` reads: fp32 safetensors, config, tokenizer.

GGUF (the format of llama.cpp) stores tensors in quantised blocks; they are dequantised once, here. Files of
architecture "llama" hold the query and key weights with the rows of each head interleaved for another rotary
convention; they are put back in the order that transformers expects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from forktree.backend.model.gguf_header import check_header
from forktree.lang.errors import ModelError

if TYPE_CHECKING:
    from gguf import GGUFReader

Progress = Callable[[int, int], None]
"""Called with (tensors done, tensors in all)."""


class _Family(NamedTuple):
    """How one GGUF architecture maps to transformers."""

    architecture: str
    model_type: str
    has_interleaved_heads: bool


_FAMILIES = {
    "llama": _Family("LlamaForCausalLM", "llama", has_interleaved_heads=True),
    "qwen2": _Family("Qwen2ForCausalLM", "qwen2", has_interleaved_heads=False),
    "qwen3": _Family("Qwen3ForCausalLM", "qwen3", has_interleaved_heads=False),
}

_TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IGNORED_TENSORS = {"rope_freqs.weight"}  # derived from the config


def convert_gguf(path: Path, folder: Path, *, on_progress: Progress | None = None) -> None:
    """Write `path` into `folder` (which exists) as config, tokenizer and fp32 `model.safetensors`.

    Raises:
        ModelError: the file is not a GGUF file, is cut short or damaged, or holds an architecture that has no mapping.
        OSError: the folder cannot be written.
    """
    check_header(path)
    try:
        _convert(path, folder, on_progress or (lambda done, total: None))
    except (ModelError, OSError):
        raise
    except Exception as error:  # gguf, tokenizers and transformers raise many kinds over damaged files
        raise ModelError(
            f"{path} cannot be converted ({type(error).__name__}: {error}). It may be damaged: download it again."
        ) from error


def _convert(path: Path, folder: Path, on_progress: Progress) -> None:
    from gguf import GGUFReader

    reader = GGUFReader(str(path))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    family = _family(path, fields)
    config = _config(family, fields, has_head=any(t.name == "output.weight" for t in reader.tensors))
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(fields))
    _write_tokenizer(path, folder, fields)
    _write_weights(reader, folder, family, config, on_progress)


def _family(path: Path, fields: dict[str, Any]) -> _Family:
    name = fields.get("general.architecture")
    if name not in _FAMILIES:
        known = ", ".join(sorted(_FAMILIES))
        raise ModelError(
            f"{path} holds a model of architecture {name!r}; GGUF files of these are read: {known}. "
            "Load the model's safetensors instead (a folder or a hub id)."
        )
    return _FAMILIES[name]


def _config(family: _Family, fields: dict[str, Any], *, has_head: bool) -> dict[str, Any]:
    arch = fields["general.architecture"]

    def get(key: str, default: Any = None) -> Any:
        value = fields.get(f"{arch}.{key}", default)
        if value is None:
            raise ModelError(f"the GGUF file lacks the field {arch}.{key}: it is damaged, download it again.")
        return value

    heads = int(get("attention.head_count"))
    hidden = int(get("embedding_length"))
    head_dim = int(get("attention.key_length", hidden // heads))
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "hidden_size": hidden,
        "intermediate_size": int(get("feed_forward_length")),
        "num_hidden_layers": int(get("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(get("attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "max_position_embeddings": int(get("context_length")),
        "rms_norm_eps": _shortest_float32(float(get("attention.layer_norm_rms_epsilon"))),
        "rope_parameters": {"rope_theta": float(get("rope.freq_base", 10000.0)), "rope_type": "default"},
        "rope_theta": float(get("rope.freq_base", 10000.0)),
        "vocab_size": int(fields.get(f"{arch}.vocab_size", len(fields["tokenizer.ggml.tokens"]))),
        "hidden_act": "silu",
        "tie_word_embeddings": not has_head,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def _shortest_float32(value: float) -> float:
    """The decimal that was written: 1e-05, not the 9.999999747378752e-06 that float32 made of it."""
    return float(str(np.float32(value)))


def _generation_config(fields: dict[str, Any]) -> dict[str, Any]:
    ids = {
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }
    return {name: value for name, value in ids.items() if value is not None}


def _write_tokenizer(path: Path, folder: Path, fields: dict[str, Any]) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, trust_remote_code=False)
    finally:
        transformers_logging.set_verbosity(verbosity)
    if fields.get("tokenizer.ggml.pre") == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.chat_template = fields.get("tokenizer.chat_template")
    tokenizer.save_pretrained(str(folder))


def _write_weights(
    reader: GGUFReader, folder: Path, family: _Family, config: dict[str, Any], on_progress: Progress
) -> None:
    from safetensors.numpy import save_file

    tensors: dict[str, np.ndarray] = {}
    total = len(reader.tensors)
    for done, (name, array) in enumerate(_dequantised(reader, family, config), start=1):
        tensors[name] = array
        on_progress(done, total)
    path = folder / "model.safetensors"
    save_file(tensors, str(path), metadata={"format": "pt"})
    path.chmod((folder / "config.json").stat().st_mode & 0o777)  # safetensors keeps it to its owner


def _dequantised(reader: GGUFReader, family: _Family, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    from gguf.quants import dequantize

    for tensor in reader.tensors:
        if tensor.name in _IGNORED_TENSORS:
            continue
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        array = array.reshape([int(n) for n in reversed(tensor.shape)])
        if family.has_interleaved_heads:
            array = _restore_heads(tensor.name, array, config)
        yield _transformers_name(tensor.name), np.ascontiguousarray(array)


def _restore_heads(name: str, array: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Undo the interleaving of each head's two rotary halves: [heads, head_dim / 2, 2] → [heads, 2, head_dim / 2]."""
    for suffix, key in ((".attn_q.weight", "num_attention_heads"), (".attn_k.weight", "num_key_value_heads")):
        if name.endswith(suffix):
            heads = config[key]
            rows, columns = array.shape
            return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    return array


def _transformers_name(name: str) -> str:
    if name in _TOP_TENSORS:
        return _TOP_TENSORS[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_TENSORS:
        return f"model.layers.{parts[1]}.{_LAYER_TENSORS[parts[2]]}.{parts[3]}"
    raise ModelError(f"the GGUF file holds a tensor {name!r} that its architecture does not have.")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
