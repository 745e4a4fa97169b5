"""A configuration is read whole, or refused with the setting that is not computed here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from forktree.backend.model.config import RopeConfig, convert_config, read_config
from forktree.backend.model.rope import inverse_frequencies
from forktree.lang.errors import ModelError

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def convert(config: Any) -> Any:
    return convert_config(config, eos_ids=frozenset())


def test_the_tiny_model_is_read(tiny_model_dir: Path) -> None:
    config = read_config(tiny_model_dir)
    assert (config.num_layers, config.q_heads, config.kv_heads, config.head_dim) == (2, 6, 2, 8)
    assert config.eos_ids == {2}
    assert config.rope.kind == "default"


@pytest.mark.parametrize(("given", "expected"), [(5, {5}), ([5, 9], {5, 9}), (None, {2})])
def test_end_tokens_come_from_the_generation_configuration(tmp_path: Path, given: Any, expected: set[int]) -> None:
    LlamaConfig(eos_token_id=2).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": given}))
    assert read_config(tmp_path).eos_ids == expected


def test_biases_and_head_norms_follow_the_family() -> None:
    assert convert(Qwen2Config()).qkv_bias
    assert not convert(Qwen2Config()).o_bias
    assert convert(Qwen3Config()).qk_norm
    assert convert(LlamaConfig(attention_bias=True)).o_bias


def test_llama3_frequencies_equal_transformers() -> None:
    config = LlamaConfig(hidden_size=512, num_attention_heads=4, rope_parameters=LLAMA3)
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    assert torch.equal(inverse_frequencies(convert(config).rope, 128), theirs)


def test_linear_frequencies_are_divided() -> None:
    plain = inverse_frequencies(RopeConfig(10000.0), 64)
    assert torch.equal(inverse_frequencies(RopeConfig(10000.0, "linear", factor=4.0), 64), plain / 4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPT2Config(), "models of type 'gpt2' have no native forward pass; these have: llama"),
        (MistralConfig(sliding_window=1024), "a sliding window of 1024 tokens is not computed here"),
        (LlamaConfig(hidden_act="gelu"), "hidden_act must be 'silu', not 'gelu'"),
        (
            LlamaConfig(
                rope_parameters={
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 4.0,
                    "original_max_position_embeddings": 2048,
                }
            ),
            "rotary positions of type 'yarn'",
        ),
    ],
)
def test_what_is_not_computed_is_refused(config: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        convert(config)


def test_a_folder_without_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot read the configuration"):
        read_config(tmp_path)


def test_a_whole_configuration_reads_as_transformers_has_it(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=96,
        num_attention_heads=6,
        num_key_value_heads=2,
        attention_bias=True,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e4},
        eos_token_id=[2, 7],
    )
    whole = {key: value for key, value in config.to_dict().items() if key != "transformers_version"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(whole))
    expected = convert_config(config, eos_ids=frozenset({2, 7}))
    assert read_config(tmp_path) == expected
    for left_out in ("rope_parameters", "num_key_value_heads", "tie_word_embeddings"):
        path.write_text(json.dumps({key: value for key, value in whole.items() if key != left_out}))
        assert isinstance(read_config(tmp_path), type(expected))  # by transformers' own defaults


@pytest.mark.model
def test_the_built_in_model_needs_no_class_of_transformers(model_dir: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model_dir)
    assert read_config(model_dir) == convert_config(config, eos_ids=frozenset({2}))
    script = f"""
import sys
from pathlib import Path
from forktree.backend.model.config import read_config
read_config(Path({str(model_dir)!r}))
assert "transformers" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
