"""A GGUF file becomes a folder that transformers reads, with the weights in transformers' order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from forktree.backend.model.gguf_file import convert_gguf
from forktree.lang.errors import ModelError

HIDDEN, HEADS, KV_HEADS, LAYERS, FFN = 64, 4, 2, 2, 96
TOKENS = ["<|end|>", *bytes_to_unicode().values(), "ab"]


@pytest.fixture
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=len(TOKENS),
        max_position_embeddings=128,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """The row order in which llama.cpp stores query and key weights."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path: Path, model: LlamaForCausalLM, *, quantization: GGMLQuantizationType, arch: str = "llama") -> None:
    writer = GGUFWriter(str(path), arch)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (len(TOKENS) - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}")
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    for name, array in gguf_tensors(state).items():
        if array.ndim == 2 and array.shape[1] % 32 == 0 and quantization is not GGMLQuantizationType.F32:
            writer.add_tensor(name, quantize(array, quantization), raw_dtype=quantization)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    names = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}
    for layer in range(LAYERS):
        for ours, theirs in names.items():
            array = state[f"model.layers.{layer}.{theirs}.weight"]
            tensors[f"blk.{layer}.{ours}.weight"] = interleave(array, heads[ours]) if ours in heads else array
    return tensors


def converted(path: Path) -> Path:
    folder = path.parent / "out"
    folder.mkdir()
    convert_gguf(path, folder)
    return folder


def test_an_unquantised_file_gives_the_same_logits_as_the_model_it_was_made_from(tmp_path: Path, llama) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama, quantization=GGMLQuantizationType.F32)
    again = AutoModelForCausalLM.from_pretrained(converted(tmp_path / "tiny.gguf"))
    ids = torch.tensor([[1, 5, 9, 200, 3]])
    with torch.inference_mode():
        assert torch.equal(again(ids).logits, llama(ids).logits)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q4_0", "F16"])
def test_quantised_blocks_are_dequantised_as_the_format_says(tmp_path: Path, llama, kind: str) -> None:
    quantization = GGMLQuantizationType[kind]
    write_gguf(tmp_path / "tiny.gguf", llama, quantization=quantization)
    again = AutoModelForCausalLM.from_pretrained(converted(tmp_path / "tiny.gguf"))
    weight = llama.state_dict()["model.layers.1.mlp.gate_proj.weight"].numpy()
    want = dequantize(quantize(weight, quantization), quantization).astype(np.float32)
    assert np.array_equal(again.state_dict()["model.layers.1.mlp.gate_proj.weight"].numpy(), want)


def test_the_tokenizer_and_its_chat_template_come_along(tmp_path: Path, llama) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama, quantization=GGMLQuantizationType.F32)
    tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path / "tiny.gguf"))
    assert tokenizer.tokenize("abé 12") == ["ab", "Ã", "©", "Ġ", "1", "2"]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi<|end|>"
    assert tokenizer.eos_token == "<|end|>"


def test_float32_settings_are_written_as_the_decimals_that_they_were(tmp_path: Path, llama) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama, quantization=GGMLQuantizationType.F32)
    config = json.loads((converted(tmp_path / "tiny.gguf") / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-6


def test_every_file_can_be_read_by_whoever_can_read_the_others(tmp_path: Path, llama) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama, quantization=GGMLQuantizationType.F32)
    assert len({path.stat().st_mode for path in converted(tmp_path / "tiny.gguf").iterdir()}) == 1


def test_progress_counts_every_tensor(tmp_path: Path, llama) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama, quantization=GGMLQuantizationType.F32)
    (tmp_path / "out").mkdir()
    seen: list[tuple[int, int]] = []
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out", on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, 20) for n in range(1, 21)]


def test_an_unknown_architecture_is_named_with_those_that_are_read(tmp_path: Path, llama) -> None:
    write_gguf(tmp_path / "odd.gguf", llama, quantization=GGMLQuantizationType.F32, arch="rwkv9")
    with pytest.raises(ModelError, match=r"'rwkv9'.*llama, qwen2, qwen3"):
        converted(tmp_path / "odd.gguf")


@pytest.mark.parametrize("keep", [0, 3, 40, 900])
def test_a_file_cut_short_is_named_as_such(tmp_path: Path, llama, keep: int) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama, quantization=GGMLQuantizationType.F32)
    whole = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:keep])
    with pytest.raises(ModelError, match=r"cut\.gguf is not a readable GGUF file"):
        converted(tmp_path / "cut.gguf")


def test_tensors_cut_off_at_the_end_are_noticed(tmp_path: Path, llama) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama, quantization=GGMLQuantizationType.F32)
    whole = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        converted(tmp_path / "cut.gguf")
