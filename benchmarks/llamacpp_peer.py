"""The same workloads through llama.cpp's own batches, on the model file as it is shipped, prefixes shared by hand.

`python -m forktree.benchmarks.llamacpp_peer [-w W1,W3]`, or `forktree bench --against llama.cpp`. It needs
llama-cpp-python; the GGUF file is fetched once and kept beside forktree's models. Greedy, all cores.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from forktree.backend.model.fetch import SMOLLM2_135M, fetch_gguf
from forktree.backend.model.store import cache_root
from forktree.benchmarks import harness
from forktree.benchmarks import workloads as W

MAX_BATCH = 2048
MAX_UBATCH = 512


class Entry(NamedTuple):
    """One token to compute; `wants_logits` for those that are followed by a drawn one."""

    token: int
    position: int
    sequence: int
    wants_logits: bool


class Context:
    """Sequences in one context of llama.cpp."""

    def __init__(self, model: Any, num_sequences: int, num_tokens: int, *, shares_cells: bool) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = num_tokens, MAX_BATCH, MAX_UBATCH
        params.n_seq_max, params.kv_unified = num_sequences, shares_cells
        params.n_threads = params.n_threads_batch = os.cpu_count() or 1
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp made no context of {num_tokens} tokens and {num_sequences} sequences")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(MAX_BATCH, 0, 1)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(self._memory, True)

    def share(self, source: int, target: int) -> None:
        """`target` begins with all that `source` holds; the cells are the same."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def drop(self, sequence: int) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)

    def compute(self, entries: list[Entry]) -> NDArray[np.float32]:
        """Logits [wanted, vocab], in the order of the entries that want them."""
        rows = [np.empty((0, self._vocab_size), dtype=np.float32)]
        for start in range(0, len(entries), MAX_BATCH):
            part = entries[start : start + MAX_BATCH]
            self._fill(part)
            code = llama_cpp.llama_decode(self._context, self._batch)
            if code != 0:
                raise RuntimeError(f"llama_decode returned {code}")
            num_wanted = sum(entry.wants_logits for entry in part)
            if num_wanted:
                shape = (num_wanted, self._vocab_size)
                rows.append(np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), shape).copy())
        return np.concatenate(rows)

    def _fill(self, entries: list[Entry]) -> None:
        for index, entry in enumerate(entries):
            self._batch.token[index] = entry.token
            self._batch.pos[index] = entry.position
            self._batch.n_seq_id[index] = 1
            self._batch.seq_id[index][0] = entry.sequence
            self._batch.logits[index] = entry.wants_logits
        self._batch.n_tokens = len(entries)

    def generate(self, prompts: dict[int, tuple[int, list[int]]], num_new: int) -> dict[int, list[int]]:
        """Greedy continuations of {sequence: (tokens that it holds, tokens to add)}."""
        entries = [
            Entry(token, held + index, sequence, index == len(tokens) - 1)
            for sequence, (held, tokens) in prompts.items()
            for index, token in enumerate(tokens)
        ]
        ends = {sequence: held + len(tokens) for sequence, (held, tokens) in prompts.items()}
        made: dict[int, list[int]] = {sequence: [] for sequence in prompts}
        for step in range(num_new):
            drawn = self.compute(entries).argmax(-1).tolist()
            for sequence, token in zip(made, drawn, strict=True):
                made[sequence].append(token)
            entries = [Entry(tokens[-1], ends[sequence] + step, sequence, True) for sequence, tokens in made.items()]
        return made


def run_w1(bench: harness.Bench, model: Any) -> None:
    for n in (1, 4, 16, 64):
        batch = W.w1(n)
        context = Context(model, n, n * 256, shares_cells=False)
        bench.case(f"W1/{n}", lambda batch=batch, context=context: _generate(context, batch), units=n)
        context.close()


def run_w2(bench: harness.Bench, model: Any) -> None:
    for name, batch in (("W2/1x2048", W.w2_long()), ("W2/16x512", W.w2_many())):
        num_prompt = sum(map(len, batch.prompts))
        context = Context(model, len(batch.prompts), num_prompt + 64 * len(batch.prompts), shares_cells=False)

        def case(batch: W.Batch = batch, context: Context = context, num_prompt: int = num_prompt) -> dict[str, Any]:
            _generate(context, batch)
            return {"tokens": num_prompt}

        bench.case(name, case, units=len(batch.prompts))
        context.close()


def run_w3(bench: harness.Bench, model: Any) -> None:
    few = W.w3()
    num = len(few.questions)
    room = len(few.prefix) + sum(len(question) + few.max_new + 16 for question in few.questions)
    context = Context(model, num + 1, room, shares_cells=True)

    def case() -> dict[str, Any]:
        context.clear()
        context.compute([Entry(token, index, num, False) for index, token in enumerate(few.prefix)])
        for sequence in range(num):
            context.share(num, sequence)
        held = len(few.prefix)
        made = context.generate({i: (held, question) for i, question in enumerate(few.questions)}, few.max_new)
        return {"tokens": sum(map(len, made.values()))}

    bench.case("W3/gen8", case, units=num)
    context.close()
    run_select(bench, model)


def run_select(bench: harness.Bench, model: Any) -> None:
    """A fork by hand, 16 questions at a time: each question behind the prefix once, each option behind its question."""
    few, at_once = W.w3(), 16
    num, num_options = len(few.questions), len(few.choices[0])
    longest = max(len(question) for question in few.questions)
    room = len(few.prefix) + at_once * (longest + num_options * 8) + 64
    context = Context(model, 1 + at_once * (1 + num_options), room, shares_cells=True)

    def case() -> dict[str, Any]:
        context.clear()
        context.compute([Entry(token, index, 0, False) for index, token in enumerate(few.prefix)])
        for start in range(0, num, at_once):
            _choose(
                context, len(few.prefix), few.questions[start : start + at_once], few.choices[start : start + at_once]
            )
        return {}

    bench.case("W3/select", case, units=num)
    context.close()


def _choose(context: Context, held: int, questions: list[list[int]], options: list[list[list[int]]]) -> list[int]:
    """The likeliest option of each question; sequence 0 holds the prefix, and holds it alone afterwards."""
    heads = range(1, 1 + len(questions))
    entries = []
    for head, question in zip(heads, questions, strict=True):
        context.share(0, head)
        entries += [Entry(token, held + i, head, i == len(question) - 1) for i, token in enumerate(question)]
    first = context.compute(entries)
    branches = [(head, tokens) for head, tails in zip(heads, options, strict=True) for tokens in tails]
    entries = []
    for branch, (head, tokens) in enumerate(branches, 1 + len(questions)):
        context.share(head, branch)
        at = held + len(questions[head - 1])
        entries += [Entry(token, at + i, branch, True) for i, token in enumerate(tokens[:-1])]
    rows = iter(context.compute(entries))
    scores = [
        sum(
            _log_probability(row, token)
            for row, token in zip((first[head - 1], *_take(rows, tokens)), tokens, strict=True)
        )
        for head, tokens in branches
    ]
    for sequence in range(1, 1 + len(questions) + len(branches)):
        context.drop(sequence)
    return np.reshape(scores, (len(questions), -1)).argmax(-1).tolist()


def _take(rows: Iterator[NDArray[np.float32]], tokens: list[int]) -> list[NDArray[np.float32]]:
    return list(itertools.islice(rows, len(tokens) - 1))


def _log_probability(row: NDArray[np.float32], token: int) -> float:
    top = row.max()
    return float(row[token] - top - np.log(np.exp(row - top).sum()))


def run_w6(bench: harness.Bench, model: Any) -> None:
    chats = W.w6()
    context = Context(model, len(chats), len(chats) * 512, shares_cells=False)

    def case() -> dict[str, Any]:
        context.clear()
        held, last, num_tokens = [0] * len(chats), [list[int]() for _ in chats], 0
        for turn in range(len(chats[0].turns)):
            added = [before + chat.turns[turn] for before, chat in zip(last, chats, strict=True)]
            prompts = {i: (held[i], tokens) for i, tokens in enumerate(added)}
            made = context.generate(prompts, chats[0].new)
            held = [at + len(tokens) + len(made[i]) - 1 for i, (at, tokens) in enumerate(zip(held, added, strict=True))]
            last = [made[i][-1:] for i in range(len(chats))]  # drawn, and not fed yet
            num_tokens += sum(map(len, made.values()))
        return {"tokens": num_tokens}

    bench.case("W6", case, units=sum(len(chat.turns) for chat in chats))
    context.close()


def _generate(context: Context, batch: W.Batch) -> dict[str, Any]:
    context.clear()
    made = context.generate({i: (0, prompt) for i, prompt in enumerate(batch.prompts)}, batch.max_new)
    return {"tokens": sum(map(len, made.values()))}


def model_file() -> Path:
    """The built-in model's GGUF file, fetched on first use."""
    path = cache_root() / "smollm2-135m.Q4_1.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            fetch_gguf(SMOLLM2_135M, Path(scratch)).replace(path)
    return path


WORKLOADS = {"W1": run_w1, "W2": run_w2, "W3": run_w3, "W6": run_w6}


def main() -> None:
    args = harness.arguments("llama.cpp on the file as shipped (it has no W4 and W5 here)")
    print(harness.HEADER)
    bench = harness.bench_for("llama.cpp", args)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(model_file()).encode(), llama_cpp.llama_model_default_params())
    for name in args.workloads.split(","):
        if name in WORKLOADS:
            WORKLOADS[name](bench, model)
    harness.write_json(args.json, bench.rows)


if __name__ == "__main__":
    main()
