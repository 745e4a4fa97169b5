"""The same workloads through vLLM's offline class, in float32, with its prefix cache on.

`python -m forktree.benchmarks.vllm_peer [-w W1,W3]`, or `forktree bench --against vllm`. Starting takes a minute or
two and is not in the figures. The cache is reset before every repetition; where many requests share a prefix, the
prefix is sent first, as one who knows the engine would do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from forktree.backend.model.store import resolve_model
from forktree.benchmarks import harness
from forktree.benchmarks import workloads as W


class Peer:
    """vLLM, greedy."""

    def __init__(self) -> None:
        self._llm = LLM(
            model=str(resolve_model("smollm2-135m")),
            dtype="float32",
            enable_prefix_caching=True,
            max_model_len=4096,
            max_num_seqs=64,
            seed=0,
            disable_log_stats=True,
        )

    def forget(self) -> None:
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache")

    def generate(self, prompts: list[list[int]], num_new: int, **options: Any) -> list[Any]:
        """One output a prompt, with `.token_ids` and `.text`."""
        sampling = SamplingParams(temperature=0, max_tokens=num_new, **({"ignore_eos": True} | options))
        done = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        return [one.outputs[0] for one in done]


def run_w1(bench: harness.Bench, peer: Peer) -> None:
    for n in (1, 4, 16, 64):
        batch = W.w1(n)
        bench.case(f"W1/{n}", lambda batch=batch: _tokens(_fresh(peer, batch)), units=n)


def run_w2(bench: harness.Bench, peer: Peer) -> None:
    for name, batch in (("W2/1x2048", W.w2_long()), ("W2/16x512", W.w2_many())):

        def case(batch: W.Batch = batch) -> dict[str, Any]:
            _fresh(peer, batch)
            return {"tokens": sum(map(len, batch.prompts))}

        bench.case(name, case, units=len(batch.prompts))


def run_w3(bench: harness.Bench, peer: Peer) -> None:
    few = W.w3()
    prompts = [few.prefix + question for question in few.questions]

    def case() -> dict[str, Any]:
        peer.forget()
        peer.generate([few.prefix], 1)
        return _tokens(peer.generate(prompts, few.max_new))

    bench.case("W3/gen8", case, units=len(prompts))


def run_w4(bench: harness.Bench, peer: Peer) -> None:
    programs = W.w4()

    def case() -> dict[str, Any]:
        peer.forget()
        peer.generate([program.context for program in programs], 1)
        heads = [program.context + branch for program in programs for branch in program.branches]
        made = [list(one.token_ids) for one in peer.generate(heads, programs[0].branch_new)]
        width = len(programs[0].branches)
        joined = [program.join_prompt(made[i * width : (i + 1) * width]) for i, program in enumerate(programs)]
        summaries = peer.generate(joined, programs[0].summary_new)
        return {"tokens": sum(map(len, made)) + _tokens(summaries)["tokens"]}

    bench.case("W4", case, units=len(programs))


def run_w5(bench: harness.Bench, peer: Peer) -> None:
    for name in ("bounded", "free"):
        task = W.w5(bounded=name == "bounded")
        held_to = StructuredOutputsParams(json=task.schema, disable_any_whitespace=True)

        def case(task: W.JsonTask = task, held_to: Any = held_to) -> dict[str, Any]:
            peer.forget()
            made = peer.generate(task.prompts, task.max_new, ignore_eos=False, structured_outputs=held_to)
            valid = sum(W.json_valid(one.text, task.schema) for one in made)
            return {**_tokens(made), "valid_pct": round(100 * valid / len(made), 1)}

        bench.case(f"W5/{name}", case, units=len(task.prompts))


def run_w6(bench: harness.Bench, peer: Peer) -> None:
    chats = W.w6()

    def case() -> dict[str, Any]:
        peer.forget()
        histories, num_tokens = [list[int]() for _ in chats], 0
        for turn in range(len(chats[0].turns)):
            histories = [past + chat.turns[turn] for past, chat in zip(histories, chats, strict=True)]
            made = peer.generate(histories, chats[0].new)
            histories = [past + list(one.token_ids) for past, one in zip(histories, made, strict=True)]
            num_tokens += _tokens(made)["tokens"]
        return {"tokens": num_tokens}

    bench.case("W6", case, units=sum(len(chat.turns) for chat in chats))


def _fresh(peer: Peer, batch: W.Batch) -> list[Any]:
    peer.forget()
    return peer.generate(batch.prompts, batch.max_new)


def _tokens(made: list[Any]) -> dict[str, Any]:
    return {"tokens": sum(len(one.token_ids) for one in made)}


WORKLOADS: dict[str, Callable[[harness.Bench, Peer], None]] = {
    "W1": run_w1,
    "W2": run_w2,
    "W3": run_w3,
    "W4": run_w4,
    "W5": run_w5,
    "W6": run_w6,
}


def main() -> None:
    args = harness.arguments("vLLM in float32 (it has no select by log-probability here)")
    print(harness.HEADER)
    bench = harness.bench_for("vllm fp32", args)
    peer = Peer()
    peer.generate(W.w1(4).prompts, 8)
    for name in args.workloads.split(","):
        WORKLOADS[name](bench, peer)
    harness.write_json(args.json, bench.rows)


if __name__ == "__main__":
    main()
