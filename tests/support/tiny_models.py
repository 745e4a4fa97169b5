"""Random models of a few layers, written as transformers writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from forktree.kernels.gemm_weights import Format


def write_tiny_model(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """A two-layer model of `family` in `folder`; `changes` replace fields of its configuration."""
    import transformers

    names = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    sizes: dict[str, Any] = {
        "vocab_size": 131,
        "hidden_size": 48,
        "intermediate_size": 88,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "pad_token_id": 0,
    }
    if family == "mistral":
        sizes["sliding_window"] = None
    config = getattr(transformers, f"{names[family]}Config")(**(sizes | changes))
    torch.manual_seed(7)
    model = getattr(transformers, f"{names[family]}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:  # their fresh values are 0 and 1, which hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.3)
            else:
                parameter.mul_(6.0)
    model.save_pretrained(folder)
    return folder


def oracle_logits(folder: Path, ids: list[int]) -> torch.Tensor:
    """[tokens, vocab]: transformers' own logits, float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


BLOCK_SIZES: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 64, "head_dim": 16}


def write_block_model(folder: Path, family: str = "llama", **changes: object) -> Path:
    """A tiny model whose weights lie on 4-bit blocks, and those of its output layer on 8-bit ones."""
    write_tiny_model(folder, family, **{**BLOCK_SIZES, **changes})
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name, weight in weights.items():
        if weight.dim() == 2 and "embed" not in name:
            weights[name] = _on_blocks(weight, Format.EIGHT_BIT if "lm_head" in name else Format.FOUR_BIT)
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def _on_blocks(weight: torch.Tensor, format: Format) -> torch.Tensor:
    blocks = weight.view(len(weight), -1, 32)
    if format is Format.EIGHT_BIT:
        d = (blocks.abs().amax(-1, keepdim=True) / 127).half().float()
        return ((blocks / d).round().clamp(-127, 127) * d).view_as(weight)
    least = blocks.amin(-1, keepdim=True).half().float()
    d = ((blocks.amax(-1, keepdim=True) - least) / 15).half().float()
    return (((blocks - least) / d).round().clamp(0, 15) * d + least).view_as(weight)
