"""The eleven kinds of program that prefix caching was measured on first (SGLang's paper, section 6), in small.

Each kind is a program and its rows. What the rows share is what makes the kind: worked examples, a growing
conversation, a tree of attempts, a document. Texts come with the package (`data/README.md`) or are written here;
outputs are greedy and their lengths fixed where nothing constrains them, so a run does the same work every time.

    kind               what is shared
    ────────────────────────────────────────────────────────────────────────────────
    mmlu, hellaswag    worked examples before every question; a select's options behind each
    react              the agent's example, and each agent's own growing transcript
    agents             the rules of the simulation, and what a person remembers
    tree-of-thought    the puzzle and every attempt that others go on from
    skeleton           the question and its outline, under which points are written side by side
    judge              the rules, and the answer that several aspects of are judged side by side
    json               the instruction; the output is held to a schema
    chat-short, -long  each conversation's own past; short answers, long answers
    rag                the instruction and the passages, where questions find the same ones
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forktree as ft
from forktree.benchmarks import workloads as W

DATA = Path(__file__).parent / "data"
LETTERS = ("A", "B", "C", "D")
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A program, its rows, and what one row is called."""

    name: str
    program: ft.Function
    rows: Rows
    unit: str = "rows"


def load(name: str) -> Rows:
    """One of the data files."""
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def _answer(name: str, num_tokens: int) -> Any:
    return ft.gen(name, max_tokens=num_tokens, temperature=0, ignore_eos=True)


# --- behind worked examples ---------------------------------------------------------------------------------


@ft.function
def multiple_choice(s: ft.State, shots: str, question: str, options: list[str]) -> str:
    s += shots
    s += question + ft.select("answer", options)
    return s["answer"]


def mmlu(num_rows: int) -> Kind:
    found = load("mmlu")
    subjects = list(dict.fromkeys(row["subject"] for row in found))[:2]
    rows = []
    for subject in subjects:
        of = [row for row in found if row["subject"] == subject]
        shots = f"Questions about {subject.replace('_', ' ')}, with answers.\n\n"
        shots += "".join(f"{_listed(row)} {LETTERS[row['answer']]}\n\n" for row in of if row["split"] == "dev")
        tests = [row for row in of if row["split"] != "dev"][: max(1, num_rows // len(subjects))]
        rows += [{"shots": shots, "question": _listed(row), "options": [f" {one}" for one in LETTERS]} for row in tests]
    return Kind("mmlu", multiple_choice, rows, "questions")


def _listed(row: dict[str, Any]) -> str:
    choices = "".join(f"{letter}. {text}\n" for letter, text in zip(LETTERS, row["choices"], strict=True))
    return f"Question: {row['question']}\n{choices}Answer:"


def hellaswag(num_rows: int) -> Kind:
    found = load("hellaswag")
    shots = "".join(f"{row['query']} {row['choices'][row['gold']]}\n\n" for row in found[:8])
    rows = [
        {"shots": shots, "question": row["query"], "options": [f" {text}" for text in row["choices"]]}
        for row in found[8 : 8 + num_rows]
    ]
    return Kind("hellaswag", multiple_choice, rows, "questions")


# --- agents -------------------------------------------------------------------------------------------------

CLAIMS = (
    "The Danube flows through four capitals.",
    "Marie Curie was born in Paris.",
    "Mount Etna is a volcano in Sicily.",
    "The violin has six strings.",
    "Helsinki hosted the Olympic Games in 1952.",
    "The penguin is a mammal.",
    "Tea was first grown in Peru.",
    "The Moon has no atmosphere to speak of.",
)
FOUND = "The search found three short articles; the first says that the matter was settled in the year 1952."


@ft.function
def check_claim(s: ft.State, example: str, claim: str, num_steps: int) -> None:
    s += example
    s += f"Claim: {claim}\n"
    for step in range(1, num_steps + 1):
        s += f"Thought {step}:" + _answer(f"thought{step}", 16)
        s += f"\nAction {step}: Search[" + _answer(f"action{step}", 6)
        s += f"]\nObservation {step}: {FOUND}\n"
    s += f"Thought {num_steps + 1}:" + _answer("last", 12)


def react(num_rows: int) -> Kind:
    example = load("react")[0]["prompt"].strip() + "\n\n"
    rows = [{"example": example, "claim": claim, "num_steps": 3} for claim in CLAIMS[:num_rows]]
    return Kind("react", check_claim, rows, "agents")


PEOPLE = ("Ada", "Boris", "Chiara", "Dmitri", "Elif", "Femi", "Greta", "Hugo")
RULES = (
    "This is a simulation of a small town. Each person has a memory of the day, wants something, and answers in the "
    "first person. People know only what they saw or were told. They are friendly, busy and a little forgetful.\n\n"
)
ASKED = ("What do you do next?", "Whom do you talk to, and about what?", "How important was this day, from 1 to 10?")


@ft.function
def live(s: ft.State, name: str, memory: str) -> None:
    s += RULES
    s += f"{name} remembers: {memory}\n"
    for branch, question in zip(s.fork(len(ASKED)), ASKED, strict=True):
        branch += f"\nQuestion to {name}: {question}\nAnswer:" + _answer("answer", 20)


def agents(num_rows: int) -> Kind:
    rows = [{"name": name, "memory": W.text(W.prose(7000 + i, 120))} for i, name in enumerate(PEOPLE[:num_rows])]
    return Kind("agents", live, rows, "people")


# --- trees --------------------------------------------------------------------------------------------------

GAME = (
    "Use the four numbers and the signs + - * / to make 24. Every number is used once.\n"
    "Numbers: 4 4 6 8\nStep: 4 + 8 = 12 (left: 4 6 12)\nStep: 6 - 4 = 2 (left: 2 12)\nStep: 2 * 12 = 24 (left: 24)\n\n"
)


@ft.function
def search(s: ft.State, numbers: str, width: int, depth: int) -> None:
    """Of some proposed steps the likeliest to succeed is followed, and others are proposed behind it."""
    s += GAME
    s += f"Numbers: {numbers}\n"
    at = s
    for _ in range(depth):
        tries = at.fork(width)
        for index, one in enumerate(tries):
            one += "Step:" + ft.gen("step", max_tokens=14, temperature=0.8, seed=index, ignore_eos=True)
            one += "\nCan this reach 24?" + ft.select("verdict", [" no", " yes"])
        chosen = max(tries, key=lambda one: one.meta("verdict").probabilities[" yes"])
        at = at.copy()
        at += "Step:" + chosen["step"] + "\n"


def tree_of_thought(num_rows: int) -> Kind:
    rows = [{"numbers": row["numbers"], "width": 3, "depth": 3} for row in load("game24")[:num_rows]]
    return Kind("tree-of-thought", search, rows, "puzzles")


@ft.function
def outline(s: ft.State, question: str, num_points: int) -> None:
    s += ft.system("You answer in two rounds: first an outline of short points, then each point in a sentence or two.")
    s += ft.user(f"{question}\nGive an outline of {num_points} points.")
    s += ft.assistant(_answer("outline", 32))
    for number, branch in enumerate(s.fork(num_points), start=1):
        branch += ft.user(f"Now write out point {number}.")
        branch += ft.assistant(_answer("point", 32))


def skeleton(num_rows: int) -> Kind:
    rows = [{"question": row["turns"][0], "num_points": 3} for row in load("questions")[:num_rows]]
    return Kind("skeleton", outline, rows, "questions")


ASPECTS = ("clear", "correct", "complete", "kind")


@ft.function
def grade(s: ft.State, question: str, answer: str) -> None:
    s += ft.system("You judge answers strictly and fairly. You look at one aspect at a time and then give one grade.")
    s += ft.user(f"The question was: {question}\nThe answer was: {answer}\nJudge the answer.")
    branches = s.fork(len(ASPECTS))
    for branch, aspect in zip(branches, ASPECTS, strict=True):
        branch += ft.assistant(f"Is it {aspect}?" + _answer("verdict", 16))
    verdicts = [f"Is it {a}?{b['verdict']}\n" for a, b in zip(ASPECTS, branches, strict=True)]
    s += ft.assistant("".join(verdicts) + "The grade, from A to D:" + ft.select("grade", [f" {x}" for x in LETTERS]))


def judge(num_rows: int) -> Kind:
    rows = [
        {"question": row["turns"][0], "answer": W.text(W.prose(7100 + i, 80))}
        for i, row in enumerate(load("questions")[:num_rows])
    ]
    return Kind("judge", grade, rows, "answers")


# --- structure, conversations, documents --------------------------------------------------------------------


def json_kind(num_rows: int) -> Kind:
    from forktree.tutorials.receipts import load_scans, read_receipt

    return Kind("json", read_receipt, [{"text": scan.text} for scan in load_scans()[:num_rows]], "receipts")


FOLLOW_UPS = ("Why is that?", "Give an example.")


@ft.function
def converse(s: ft.State, turns: list[str], num_tokens: int) -> None:
    s += ft.system("You are a helpful assistant.")
    for number, turn in enumerate(turns):
        s += ft.user(turn)
        s += ft.assistant(_answer(f"answer{number}", num_tokens))


def _chat(name: str, num_rows: int, num_tokens: int) -> Kind:
    rows = [{"turns": [*row["turns"], *FOLLOW_UPS], "num_tokens": num_tokens} for row in load("questions")[:num_rows]]
    return Kind(name, converse, rows, "conversations")


def chat_short(num_rows: int) -> Kind:
    return _chat("chat-short", num_rows, 12)


def chat_long(num_rows: int) -> Kind:
    return _chat("chat-long", num_rows, 64)


@ft.function
def read_passages(s: ft.State, passages: list[str], question: str) -> None:
    s += ft.system("You answer from the passages that are given, and say which one you used.")
    s += ft.user("\n\n".join(passages) + f"\n\nQuestion: {question}")
    s += ft.assistant(_answer("answer", 24))


def rag(num_rows: int) -> Kind:
    passages = [f"Passage {i + 1}: {W.text(W.prose(7200 + i, 100))}" for i in range(4)]
    picked = [(0, 1, 2), (0, 1, 3), (2, 3, 0)]  # what the questions find, best first
    rows = [
        {"passages": [passages[n] for n in picked[i % 3]], "question": f"Who paid for it, as reader {i + 1} asks?"}
        for i in range(num_rows)
    ]
    return Kind("rag", read_passages, rows, "questions")


KINDS: dict[str, Callable[[int], Kind]] = {
    "mmlu": mmlu,
    "hellaswag": hellaswag,
    "react": react,
    "agents": agents,
    "tree-of-thought": tree_of_thought,
    "skeleton": skeleton,
    "judge": judge,
    "json": json_kind,
    "chat-short": chat_short,
    "chat-long": chat_long,
    "rag": rag,
}
