"""forktree on the six workloads: `python -m forktree.benchmarks.run [-w W1,W3]`.

Prompts go in as ids where the workload is about the engine (W1, W2, W3 gen8), and as programs where it is about
programs (W3 select, W4, W5, W6). The cache is flushed before every repetition.
"""

from __future__ import annotations

import argparse
from typing import Any

import forktree as ft
from forktree.benchmarks import harness
from forktree.benchmarks import workloads as W


def run_w1(bench: harness.Bench, local: ft.Local) -> None:
    for n in (1, 4, 16, 64):
        batch = W.w1(n)
        bench.case(f"W1/{n}", lambda batch=batch: _generate(local, batch.prompts, batch.max_new), units=n)


def run_w2(bench: harness.Bench, local: ft.Local) -> None:
    for name, batch in (("W2/1x2048", W.w2_long()), ("W2/16x512", W.w2_many())):
        num_prompt = sum(map(len, batch.prompts))

        def case(batch: W.Batch = batch, num_prompt: int = num_prompt) -> dict[str, Any]:
            facts = _generate(local, batch.prompts, batch.max_new)
            return {**facts, "tokens": num_prompt}

        bench.case(name, case, units=len(batch.prompts))


def run_w3(bench: harness.Bench, local: ft.Local) -> None:
    few = W.w3()
    prompts = [few.prefix + question for question in few.questions]
    bench.case("W3/gen8", lambda: _generate(local, prompts, few.max_new), units=len(prompts))

    @ft.function
    def choose(s: ft.State, question: str, options: list[str]) -> str:
        s += ft.markup(W.text(few.prefix))
        s += ft.markup(question) + ft.select("pick", options)
        return s["pick"]

    rows = [
        {"question": W.text(q), "options": [W.text(c) for c in choices]}
        for q, choices in zip(few.questions, few.choices, strict=True)
    ]
    bench.case("W3/select", lambda: _map(local, choose, rows), units=len(rows))


def run_w4(bench: harness.Bench, local: ft.Local) -> None:
    @ft.function
    def survey(s: ft.State, context: str, heads: list[str], join: str) -> None:
        s += ft.markup(context)
        branches = s.fork(len(heads))
        for branch, head in zip(branches, heads, strict=True):
            branch += head + ft.gen("aspect", max_tokens=48, ignore_eos=True)
        texts = [branch["aspect"] for branch in branches]
        s += "".join(head + text for head, text in zip(heads, texts, strict=True)) + join
        s += ft.gen("summary", max_tokens=64, ignore_eos=True)

    rows = [
        {"context": W.text(p.context), "heads": [W.text(b) for b in p.branches], "join": W.text(p.join)} for p in W.w4()
    ]
    bench.case("W4", lambda: _map(local, survey, rows), units=len(rows))


def run_w5(bench: harness.Bench, local: ft.Local) -> None:
    for name in ("bounded", "free"):
        task = W.w5(bounded=name == "bounded")
        lengths: list[int] = []
        bench.case(
            f"W5/{name}", lambda task=task, lengths=lengths: _extract(local, task, lengths), units=len(task.docs)
        )
        if lengths:  # as many tokens as each object took, with nothing to obey
            plain = list(zip(task.prompts, lengths, strict=True))
            bench.case(f"W5/{name}, no schema", lambda plain=plain: _continue(local, plain), units=len(plain))


def _extract(local: ft.Local, task: W.JsonTask, lengths: list[int]) -> dict[str, Any]:
    @ft.function
    def extract(s: ft.State, prompt: str) -> None:
        s += ft.markup(prompt)
        s += ft.gen("json", schema=task.schema, max_tokens=task.max_new)

    rows = [{"prompt": W.text(prompt)} for prompt in task.prompts]
    local.flush_cache()
    states = [result.state for result in extract.map(rows)]
    lengths[:] = [state.meta("json").completion_tokens for state in states]
    outputs = [state.text()[len(row["prompt"]) :] for state, row in zip(states, rows, strict=True)]
    valid = sum(W.json_valid(output, task.schema) for output in outputs)
    return {"tokens": sum(lengths), "valid_pct": round(100 * valid / len(rows), 1)}


def _continue(local: ft.Local, plain: list[tuple[list[int], int]]) -> dict[str, Any]:
    @ft.function
    def write(s: ft.State, prompt: str, num_tokens: int) -> None:
        s += ft.markup(prompt)
        s += ft.gen("text", max_tokens=num_tokens, ignore_eos=True)

    rows = [{"prompt": W.text(prompt), "num_tokens": num_tokens} for prompt, num_tokens in plain]
    local.flush_cache()
    results = write.map(rows, on_error="raise")
    return {"tokens": sum(result.state.meta("text").completion_tokens for result in results)}


def run_w6(bench: harness.Bench, local: ft.Local) -> None:
    @ft.function
    def chat(s: ft.State, turns: list[str], new: int) -> None:
        for i, turn in enumerate(turns):
            s += ft.markup(turn)
            s += ft.gen(f"answer{i}", max_tokens=new, ignore_eos=True)

    chats = W.w6()
    rows = [{"turns": [W.text(turn) for turn in c.turns], "new": c.new} for c in chats]
    bench.case("W6", lambda: _map(local, chat, rows), units=sum(len(c.turns) for c in chats))


def _generate(local: ft.Local, prompts: list[list[int]], max_new: int) -> dict[str, Any]:
    local.flush_cache()
    done = local.generate(prompts, ft.Sampling(max_tokens=max_new, temperature=0, ignore_eos=True))
    return {"tokens": sum(len(c.tokens) for c in done)}


def _map(local: ft.Local, program: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    local.flush_cache()
    before = local.stats()
    results = program.map(rows, on_error="raise")
    assert all(r.ok for r in results)
    after = local.stats()
    return {
        "tokens": after.decode_tokens + after.forced_tokens - before.decode_tokens - before.forced_tokens,
        "prefill": after.prefill_tokens - before.prefill_tokens,
        "cached": after.cached_tokens - before.cached_tokens,
    }


WORKLOADS = {"W1": run_w1, "W2": run_w2, "W3": run_w3, "W4": run_w4, "W5": run_w5, "W6": run_w6}


def main() -> None:
    args: argparse.Namespace = harness.arguments("forktree on the six workloads")
    print(harness.HEADER)
    bench = harness.bench_for(f"forktree {args.quantize}", args)
    with ft.Local(quantize=args.quantize) as local:
        ft.use(local.load())
        for name in args.workloads.split(","):
            WORKLOADS[name](bench, local)
    harness.write_json(args.json, bench.rows)


if __name__ == "__main__":
    main()
