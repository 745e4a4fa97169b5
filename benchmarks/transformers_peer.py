"""The same workloads through transformers' `generate` with a prefix cache kept by hand.

`python -m forktree.benchmarks.transformers_peer [-w W1,W3]`, or `forktree bench --against transformers`.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from forktree.backend.model.store import resolve_model
from forktree.benchmarks import harness
from forktree.benchmarks import workloads as W


class HandCached:
    """transformers in fp32, greedy; the caller keeps the prefix caches."""

    def __init__(self) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(resolve_model("smollm2-135m"), dtype=torch.float32).eval()
        self.eos = self.model.config.eos_token_id

    @torch.inference_mode()
    def generate(
        self, prompts: list[list[int]], num_new: int, past: DynamicCache | None = None
    ) -> tuple[list[list[int]], DynamicCache]:
        """Left-padded; with `past` the prompts are whole prompts whose head is in the cache."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[self.eos] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        out = self.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=num_new,
            min_new_tokens=num_new,
            do_sample=False,
            past_key_values=past,
            pad_token_id=self.eos,
            return_dict_in_generate=True,
        )
        return out.sequences[:, longest:].tolist(), out.past_key_values

    @torch.inference_mode()
    def prefill(self, ids: list[int]) -> DynamicCache:
        cache = DynamicCache(config=self.model.config)
        self.model(torch.tensor([ids]), past_key_values=cache, logits_to_keep=1)
        return cache

    def fan_out(self, cache: DynamicCache, n: int) -> DynamicCache:
        many = copy.deepcopy(cache)
        many.batch_repeat_interleave(n)
        return many

    @torch.inference_mode()
    def score(self, cache: DynamicCache, prefix: list[int], question: list[int], choices: list[list[int]]) -> int:
        """Index of the likeliest choice, by summed log-probability."""
        past = self.fan_out(cache, len(choices))
        ids = torch.tensor([question + choice for choice in choices])
        mask = torch.ones(len(choices), len(prefix) + ids.shape[1], dtype=torch.long)
        kept = len(choices[0]) + 1
        logits = self.model(ids, past_key_values=past, attention_mask=mask, logits_to_keep=kept).logits[:, :-1]
        chosen = logits.log_softmax(-1).gather(-1, torch.tensor(choices)[..., None])
        return int(chosen[..., 0].sum(-1).argmax())


def run_w1(bench: harness.Bench, peer: HandCached) -> None:
    for n in (1, 4, 16, 64):
        batch = W.w1(n)

        def case(batch: W.Batch = batch) -> dict[str, Any]:
            return {"tokens": sum(map(len, peer.generate(batch.prompts, batch.max_new)[0]))}

        bench.case(f"W1/{n}", case, units=n)


def run_w2(bench: harness.Bench, peer: HandCached) -> None:
    for name, batch in (("W2/1x2048", W.w2_long()), ("W2/16x512", W.w2_many())):

        def case(batch: W.Batch = batch) -> dict[str, Any]:
            peer.generate(batch.prompts, 1)
            return {"tokens": sum(map(len, batch.prompts))}

        bench.case(name, case, units=len(batch.prompts))


def run_w3(bench: harness.Bench, peer: HandCached) -> None:
    few = W.w3()

    def gen8() -> dict[str, Any]:
        cache, num_tokens = peer.prefill(few.prefix), 0
        for start in range(0, len(few.questions), 16):
            part = [few.prefix + q for q in few.questions[start : start + 16]]
            num_tokens += sum(map(len, peer.generate(part, few.max_new, peer.fan_out(cache, len(part)))[0]))
        return {"tokens": num_tokens}

    def select() -> dict[str, Any]:
        cache = peer.prefill(few.prefix)
        for question, choices in zip(few.questions, few.choices, strict=True):
            peer.score(cache, few.prefix, question, choices)
        return {}

    bench.case("W3/gen8", gen8, units=len(few.questions), warmup=0)
    bench.case("W3/select", select, units=len(few.questions), warmup=0)


def run_w4(bench: harness.Bench, peer: HandCached) -> None:
    programs = W.w4()[:4]

    def case() -> dict[str, Any]:
        num_tokens = 0
        for p in programs:
            cache = peer.prefill(p.context)
            heads = [p.context + b for b in p.branches]
            branches, _ = peer.generate(heads, p.branch_new, peer.fan_out(cache, len(heads)))
            summary, _ = peer.generate([p.join_prompt(branches)], p.summary_new, cache)
            num_tokens += sum(map(len, branches)) + len(summary[0])
        return {"tokens": num_tokens, "part": "4 of 8"}

    bench.case("W4", case, units=len(programs), warmup=0)


def run_w6(bench: harness.Bench, peer: HandCached) -> None:
    chats = W.w6()

    def case() -> dict[str, Any]:
        histories: list[list[int]] = [[] for _ in chats]
        past, num_tokens = None, 0
        for turn in range(len(chats[0].turns)):
            histories = [h + c.turns[turn] for h, c in zip(histories, chats, strict=True)]
            out, past = peer.generate(histories, chats[0].new, past)
            histories = [h + o for h, o in zip(histories, out, strict=True)]
            num_tokens += sum(map(len, out))
        return {"tokens": num_tokens}

    bench.case("W6", case, units=sum(len(c.turns) for c in chats), warmup=0)


WORKLOADS = {"W1": run_w1, "W2": run_w2, "W3": run_w3, "W4": run_w4, "W6": run_w6}


def main() -> None:
    warnings.filterwarnings("ignore")
    args = harness.arguments("transformers, with a prefix cache kept by hand (it has no W5)")
    print(harness.HEADER)
    bench = harness.bench_for("transformers", args)
    peer = HandCached()
    for name in args.workloads.split(","):
        if name in WORKLOADS:
            WORKLOADS[name](bench, peer)
    harness.write_json(args.json, bench.rows)


if __name__ == "__main__":
    main()
