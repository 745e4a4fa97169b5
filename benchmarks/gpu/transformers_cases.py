"""The same shape of model in transformers: `generate` in a batch, and its continuous batching."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from forktree.backend.model.config import ModelConfig
from forktree.benchmarks.gpu.engine_cases import Loads, Measured, prompt

_PATIENCE_S = 120.0


def transformers_cases(
    config: ModelConfig, loads: Loads, device: torch.device, dtype: torch.dtype
) -> Iterator[Measured | str]:
    """Loads that both can carry out; a text says what could not be run, and why."""
    model = _random_model(config, device, dtype)
    for batch in loads.batches:
        work = partial(_generate, model, config, loads, batch)
        yield _attempt(f"decode, batch {batch}", "transformers generate", work)
    if device.type != "cuda":
        yield "transformers continuous batching, W4-shaped: not run on a CPU"
        return
    yield _attempt(
        f"W4-shaped: {loads.programs} programs",
        "transformers continuous batching",
        lambda: _continuous(model, config, loads),
    )


def _random_model(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.q_heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        tie_word_embeddings=config.tie_embeddings,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return LlamaForCausalLM(sizes).eval()
        finally:
            torch.set_default_dtype(before)


def _attempt(name: str, engine: str, work: Callable[[], tuple[int, int]]) -> Measured | str:
    """Once to warm up, once to measure. What a peer cannot do here is no fault of this run."""
    try:
        work()
        start = time.perf_counter()
        new, prompts = work()
        return Measured(name, engine, time.perf_counter() - start, new, prompts)
    except Exception as error:
        return f"{engine}, {name}: not run ({type(error).__name__}: {str(error).splitlines()[0][:160]})"


def _generate(model: Any, config: ModelConfig, loads: Loads, batch: int) -> tuple[int, int]:
    rng = random.Random(batch)
    prompts = [prompt(rng, loads.decode_prompt, config.vocab_size) for _ in range(batch)]
    ids = torch.tensor(prompts, device=model.device)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=loads.decode_tokens,
        min_new_tokens=loads.decode_tokens,
        do_sample=False,
    )
    _synchronize(model.device)
    return out.shape[1] * batch - ids.numel(), ids.numel()


def _continuous(model: Any, config: ModelConfig, loads: Loads) -> tuple[int, int]:
    """Branches as requests of their own, since it shares no prefix by itself; then the summaries."""
    from transformers import GenerationConfig

    rng = random.Random(4)
    contexts = [prompt(rng, loads.context, config.vocab_size) for _ in range(loads.programs)]
    settings = GenerationConfig(
        max_new_tokens=loads.branch_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=True
    )
    requests = [[*context, branch] for context in contexts for branch in range(loads.branches)]
    written = _batch(model, requests, settings)
    joined = [
        context + [token for ids in written[i * loads.branches : (i + 1) * loads.branches] for token in ids]
        for i, context in enumerate(contexts)
    ]
    summaries = _batch(model, joined, settings)
    return sum(map(len, written + summaries)), sum(map(len, requests + joined))


def _batch(model: Any, requests: list[list[int]], settings: Any) -> list[list[int]]:
    pool = ThreadPoolExecutor(1)
    try:  # its manager's thread may die and leave the caller waiting
        answers = pool.submit(model.generate_batch, inputs=requests, generation_config=settings).result(_PATIENCE_S)
    finally:
        pool.shutdown(wait=False)
    if len(answers) != len(requests):
        raise RuntimeError(f"{len(answers)} of {len(requests)} requests were answered")
    in_order = sorted(answers.values(), key=lambda answer: int(str(answer.request_id).rsplit("_", 1)[-1]))
    return [list(answer.generated_tokens) for answer in in_order]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
