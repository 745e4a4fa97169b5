"""Random models of a few layers, written as transformers writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


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
