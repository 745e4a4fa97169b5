"""Tensors are found in one file or many, and what is wrong with a folder is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from forktree.backend.model.runner import load_runner
from forktree.backend.model.weights import open_weights
from forktree.lang.errors import ModelError


def write(folder: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, folder / "model.safetensors")
    return folder


def altered(tiny_model_dir: Path, folder: Path, **changes: torch.Tensor | None) -> Path:
    """A copy of the tiny model with tensors replaced, added or (None) removed."""
    shutil.copy(tiny_model_dir / "config.json", folder)
    tensors = load_file(tiny_model_dir / "model.safetensors") | changes
    return write(folder, **{name: tensor for name, tensor in tensors.items() if tensor is not None})


def test_every_type_is_read_as_float32(tmp_path: Path) -> None:
    with open_weights(write(tmp_path, a=torch.ones(2, dtype=torch.bfloat16))) as weights:
        assert weights.take("a", 2).dtype == torch.float32


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with open_weights(tmp_path) as weights:
        assert (weights.take("a", 1).item(), weights.take("b", 1).item()) == (0.0, 1.0)
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks the shard two\.safetensors"), open_weights(tmp_path):
        pass


def test_a_folder_without_safetensors_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no model\.safetensors"), open_weights(tmp_path):
        pass
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0junk")
    with pytest.raises(ModelError, match="broken or unreadable"), open_weights(tmp_path):
        pass


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("model.norm.weight", None, "has no tensor 'model.norm.weight'"),
        ("model.norm.weight", torch.zeros(3), r"has shape \[3\], but the configuration needs \[48\]"),
        ("model.layers.0.extra.weight", torch.zeros(3), "has 1 tensors that this family does not have: model.layers"),
        ("model.norm.weight", torch.zeros(48, dtype=torch.int8), "is torch.int8; quantised files are not read"),
    ],
)
def test_a_wrong_tensor_is_named(
    tiny_model_dir: Path, tmp_path: Path, name: str, tensor: torch.Tensor | None, message: str
) -> None:
    folder = altered(tiny_model_dir, tmp_path, **{name: tensor})
    with pytest.raises(ModelError, match=message):
        load_runner(folder, kv_tokens=64)
