"""The built-in model computes what transformers computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import oracle_logits

from forktree.backend.engine.messages import ForwardBatch, SampleRow, SamplerParams
from forktree.backend.model.runner import ModelRunner, load_runner

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):\n",
    "Once upon a time, in a village by the sea,",
    "The three primary colours are",
    "To make bread you need flour,",
    '{"name": "Ada", "age":',
    "In 1969, the first",
    "The opposite of hot is",
    "Roses are red,",
    "SELECT name FROM users WHERE",
    "A good way to learn a language is",
    "Question: What is 7 times 8?\nAnswer:",
    "The sun rises in the",
    "My favourite book is",
    "import numpy as np\n\nx = np.",
    "Total 12.40 EUR\nCash 20.00 EUR\nChange",
    "Dear Sir or Madam,\n\nI am writing to",
    "Photosynthesis is the process by which",
    "List of planets: Mercury, Venus,",
]


@pytest.fixture(scope="module")
def runner(model_dir: Path) -> ModelRunner:
    return load_runner(model_dir, quantize="none", kv_tokens=4096)


def test_logits_equal_transformers_for_prefill_and_decode(
    runner: ModelRunner, model_dir: Path, smol_tokenizer: Any
) -> None:
    ids = smol_tokenizer("\n".join(PROMPTS))["input_ids"][:170]
    pages = list(range(11))
    oracle = oracle_logits(model_dir, ids)
    prefill = runner.forward(ForwardBatch(ids[:160], list(range(160)), [0] * 160, [pages], list(range(160))))
    decode = [runner.forward(ForwardBatch([ids[p]], [p], [0], [pages], [0])) for p in range(160, len(ids))]
    assert (torch.cat([prefill, *decode]) - oracle).abs().max() < 1e-3


@pytest.mark.slow
def test_greedy_tokens_equal_those_of_generate(runner: ModelRunner, model_dir: Path, smol_tokenizer: Any) -> None:
    """20 prompts × 64 tokens; a divergence is allowed only where transformers' own top two are within 1e-3."""
    prompts = [smol_tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    ours = generate(runner, prompts, 64)
    for ids, mine in zip(prompts, ours, strict=True):
        logits = oracle_logits(model_dir, ids + mine)[len(ids) - 1 : -1]
        theirs = logits.argmax(-1).tolist()
        differ = [i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b]
        for i in differ:
            best, second = logits[i].topk(2).values.tolist()
            print(f"{smol_tokenizer.decode(ids)!r} token {i}: {mine[i]} against {theirs[i]}, {best - second:.2g} apart")
            assert best - second < 1e-3


def generate(runner: ModelRunner, prompts: list[list[int]], num: int) -> list[list[int]]:
    """Greedy continuations, all sequences in one batch; the end token does not stop them."""
    tables = [list(range(12 * i, 12 * i + 12)) for i in range(len(prompts))]
    new = [list(ids) for ids in prompts]
    lengths = [0] * len(prompts)
    outputs: list[list[int]] = [[] for _ in prompts]
    for _ in range(num):
        last = [sum(len(part) for part in new[: i + 1]) - 1 for i in range(len(new))]
        batch = ForwardBatch(
            [token for part in new for token in part],
            [lengths[i] + j for i, part in enumerate(new) for j in range(len(part))],
            [i for i, part in enumerate(new) for _ in part],
            tables,
            last,
        )
        rows = [(i, SampleRow(SamplerParams(), len(outputs[i]), prompts[i], outputs[i])) for i in range(len(new))]
        drawn = [info.token for info in runner.sample(runner.forward(batch), rows)]
        lengths = [length + len(part) for length, part in zip(lengths, new, strict=True)]
        new = [[token] for token in drawn]
        for output, token in zip(outputs, drawn, strict=True):
            output.append(token)
    return outputs
