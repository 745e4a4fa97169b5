"""What a precision of the linear layers costs in quality: `python benchmarks/quality.py [--precisions fp16,auto]`.

Everything is compared with float32 of the same weights (quantize="none"):

    answers    20 chat prompts, 64 greedy tokens each by float32; the others read the same tokens (teacher forced).
               Mean and 99th percentile of KL(float32 ‖ other) in nats, and how often the likeliest token is the same.
    few-shot   200 questions of MMLU behind five exemplars of their subject: the same at the place of the answer,
               and how many answers are right (the likeliest of A to D).

The budget of quantize="auto" is a mean KL of 0.01 and 95 % equal tokens; docs/performance.md has the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from forktree.backend.engine.messages import ForwardBatch
from forktree.backend.model.runner import ModelRunner, load_runner
from forktree.backend.model.store import resolve_model

sys.path.insert(0, str(Path(__file__).parent))
import workloads as W

NUM_NEW = 64
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Explain photosynthesis in two sentences.",
    "List three fruits.",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "What is 12 times 7?",
    "Give me a recipe for pancakes.",
    "Who wrote Hamlet?",
    "Name the planets of the solar system.",
    "Describe a cat to an alien.",
    "What is machine learning?",
    "Tell me a short story about a lighthouse.",
    "How do I boil an egg?",
    "What causes tides?",
    "Write an email asking for a day off.",
    "Summarise the story of Cinderella.",
    "What is the difference between a lake and a sea?",
    "Give three tips for better sleep.",
    "Write a JSON object that describes a book.",
)


@dataclass(frozen=True, slots=True)
class FewShotRow:
    """One question behind its exemplars; `answer` indexes the four letters."""

    exemplars: tuple[int, ...]
    question: tuple[int, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class Quality:
    """One line of the table. KL in nats, shares in percent."""

    precision: str
    mean_kl: float
    p99_kl: float
    same_token: float
    few_shot_mean_kl: float
    few_shot_same_token: float
    few_shot_accuracy: float
    seconds: float


class Pass:
    """Forward passes over sequences that own equal shares of the runner's pool."""

    def __init__(self, runner: ModelRunner, num_seqs: int) -> None:
        self._runner = runner
        share = runner.num_pages // num_seqs
        self._tables = [list(range(i * share, (i + 1) * share)) for i in range(num_seqs)]

    def extend(self, seqs: Sequence[Sequence[int]], starts: Sequence[int], num_wanted: int) -> torch.Tensor:
        """Log-probabilities [seqs · num_wanted, vocab] behind the last ids of each; `seqs[i]` begins at `starts[i]`."""
        batch = ForwardBatch([], [], [], self._tables[: len(seqs)], [])
        for seq, (ids, start) in enumerate(zip(seqs, starts, strict=True)):
            batch.ids.extend(ids)
            batch.positions.extend(range(start, start + len(ids)))
            batch.seq_of_row.extend(seq for _ in ids)
            batch.logit_rows.extend(range(len(batch.ids) - num_wanted, len(batch.ids)))
        return self._runner.forward(batch).log_softmax(-1)


def answer_greedily(runner: ModelRunner, prompts: list[list[int]]) -> list[list[int]]:
    """NUM_NEW tokens for every prompt, all in one batch: rows do not know each other."""
    run, lengths = Pass(runner, len(prompts)), [len(prompt) for prompt in prompts]
    steps = [run.extend(prompts, [0] * len(prompts), 1).argmax(-1).tolist()]
    for step in range(NUM_NEW - 1):
        last = [[token] for token in steps[-1]]
        steps.append(run.extend(last, [length + step for length in lengths], 1).argmax(-1).tolist())
    return [list(answer) for answer in zip(*steps, strict=True)]


def read_answers(runner: ModelRunner, prompts: list[list[int]], answers: list[list[int]]) -> torch.Tensor:
    """Log-probabilities [prompts · NUM_NEW, vocab] of every answer's places."""
    run = Pass(runner, 1)
    return torch.cat([run.extend([p + a[:-1]], [0], NUM_NEW) for p, a in zip(prompts, answers, strict=True)])


def read_few_shot(runner: ModelRunner, rows: list[FewShotRow]) -> torch.Tensor:
    """Log-probabilities [rows, vocab] at the place of the answer; neighbours share their exemplars' pass."""
    run, out = Pass(runner, 1), []
    shared: tuple[int, ...] = ()
    for row in rows:
        if row.exemplars != shared:
            shared = row.exemplars
            run.extend([shared], [0], 1)
        out.append(run.extend([row.question], [len(shared)], 1))
    return torch.cat(out)


def load_few_shot(path: Path) -> Iterator[FewShotRow]:
    """The questions of `path` in order, each behind the exemplars ("dev") of its subject, which come first."""
    shots: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        subject = entry["subject"]
        if entry["split"] == "dev":
            shots.setdefault(subject, []).append(f"{_ask(entry)} {'ABCD'[entry['answer']]}\n\n")
            continue
        head = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"
        yield FewShotRow(tuple(W.ids(head + "".join(shots[subject]))), tuple(W.ids(_ask(entry))), entry["answer"])


def _ask(entry: dict[str, Any]) -> str:
    options = "".join(f"\n{letter}. {choice}" for letter, choice in zip("ABCD", entry["choices"], strict=True))
    return f"{entry['question']}{options}\nAnswer:"


def divergence(base: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """KL(base ‖ other) of each row, in nats, from log-probabilities."""
    return (base.exp() * (base - other)).sum(-1)


def _percent_same(base: torch.Tensor, other: torch.Tensor) -> float:
    return 100.0 * float((base.argmax(-1) == other.argmax(-1)).float().mean())


def _accuracy(logprobs: torch.Tensor, rows: list[FewShotRow]) -> float:
    letters = torch.tensor([W.ids(f" {letter}")[0] for letter in "ABCD"])
    right = logprobs[:, letters].argmax(-1) == torch.tensor([row.answer for row in rows])
    return 100.0 * float(right.float().mean())


Load = Callable[[str], ModelRunner]


def measure(precisions: Sequence[str], load: Load, rows: list[FewShotRow]) -> Iterator[Quality]:
    """One line for each precision, float32 first."""
    prompts = [W.ids(f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n") for q in QUESTIONS]
    exact = load("none")
    answers = answer_greedily(exact, prompts)
    base = read_answers(exact, prompts, answers)
    base_few = read_few_shot(exact, rows)
    del exact
    for precision in precisions:
        began = time.perf_counter()
        runner = load(precision)
        other = read_answers(runner, prompts, answers)
        few = read_few_shot(runner, rows)
        kl = divergence(base, other)
        yield Quality(
            precision,
            float(kl.mean()),
            float(kl.quantile(0.99)),
            _percent_same(base, other),
            float(divergence(base_few, few).mean()),
            _percent_same(base_few, few),
            _accuracy(few, rows),
            time.perf_counter() - began,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precisions", default="none,fp16,int8,q4,auto", help="comma-separated (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=200, help="few-shot questions (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the lines to this file")
    args = parser.parse_args()
    folder = resolve_model(args.model)
    rows = list(load_few_shot(Path(__file__).parent / "data" / "mmlu.jsonl"))[: args.rows]
    print("| precision | mean KL | p99 KL | same token | few-shot KL | few-shot same | few-shot right | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    lines = []

    def load(precision: str) -> ModelRunner:
        return load_runner(folder, quantize=precision, kv_tokens=8192)  # type: ignore[arg-type]

    for line in measure(args.precisions.split(","), load, rows):
        lines.append(asdict(line))
        print(
            f"| {line.precision} | {line.mean_kl:.2e} | {line.p99_kl:.2e} | {line.same_token:.1f} % "
            f"| {line.few_shot_mean_kl:.2e} | {line.few_shot_same_token:.1f} % | {line.few_shot_accuracy:.1f} % "
            f"| {line.seconds:.0f} |",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
