"""Lesson 6: a few-shot evaluation.

Questions of MMLU behind shared worked examples: every question is a row, the examples are the trunk of them all,
and `select` scores the answers. Accuracy stands beside the chance level, and what the cache saved beside what was
computed.

    python tutorials/06_few_shot_evaluation.py
"""

import json
from collections import Counter
from pathlib import Path

import forktree as ft

# --- Questions ----------------------------------------------------------------------------------------------
#
# Two subjects, each with five worked examples ("dev") and a dozen questions with four answers.

LETTERS = ["A", "B", "C", "D"]
CHANCE = 1 / len(LETTERS)

lines = (Path(__file__).parent / "data" / "mmlu.jsonl").read_text(encoding="utf-8").splitlines()
questions = [json.loads(line) for line in lines]
subjects = list(dict.fromkeys(question["subject"] for question in questions))


def of(subject, split):
    return [each for each in questions if each["subject"] == subject and each["split"] == split]


# --- Two ways to ask ----------------------------------------------------------------------------------------
#
# By letter the model sees all answers and says which; by text it sees none, and the likeliest continuation wins.
# Both are one `select`, with its options' log-probabilities scored exactly.


def listed(question):
    return "".join(f"{letter}. {text}\n" for letter, text in zip(LETTERS, question["choices"], strict=True))


@ft.function
def by_letter(s, question):
    for shot in of(question["subject"], "dev"):
        s += f"Question: {shot['question']}\n{listed(shot)}Answer: {LETTERS[shot['answer']]}\n\n"
    s += f"Question: {question['question']}\n{listed(question)}Answer: " + ft.select("answer", LETTERS)
    return LETTERS.index(s["answer"])


@ft.function
def by_text(s, question):
    for shot in of(question["subject"], "dev"):
        s += f"Question: {shot['question']}\nAnswer: {shot['choices'][shot['answer']]}\n\n"
    s += f"Question: {question['question']}\nAnswer: " + ft.select("answer", question["choices"])
    return question["choices"].index(s["answer"])


# --- Evaluation ---------------------------------------------------------------------------------------------
#
# One `map` a program and subject. The backend's counters, taken before and after, tell the cost: tokens of
# prompts that were computed, and those that the cache had.


def accuracy(results):
    return sum(result.value == result.row["question"]["answer"] for result in results) / len(results)


backend = ft.Local()
ft.use(backend)

print("program    subject             rows  accuracy  chance  computed  cached  hit rate")
for program in (by_letter, by_text):
    for subject in subjects:
        before = backend.stats()
        rows = [{"question": question} for question in of(subject, "test")]
        results = program.map(rows, on_error="raise")
        after = backend.stats()
        computed = after.prefill_tokens - before.prefill_tokens
        cached = after.cached_tokens - before.cached_tokens
        print(
            f"{program.name:9}  {subject:18}  {len(rows):4}  {accuracy(results):8.0%}  {CHANCE:6.0%}  "
            f"{computed:8}  {cached:6}  {cached / (computed + cached):8.1%}"
        )

# --- Self-consistency ---------------------------------------------------------------------------------------
#
# One line of thought may go astray where most of several do not. The branches of a fork share the question, think
# apart and vote. One seed makes it all repeatable, and still each row and branch has draws of its own. Greedy selection
# takes the answer token by token, as a text that follows from the thought; the default would compare means, which
# favours long and predictable answers.

NUM_SAMPLES = 4


@ft.function
def vote(s, question):
    s += ft.system("You explain in one short sentence, then answer.")
    s += ft.user("\n- ".join([question["question"], *question["choices"]]))
    thought = ft.gen("thought", stop="\n", max_tokens=24, temperature=0.7, top_p=0.9)
    answer = ft.select("answer", question["choices"], method="greedy_token_selection")
    branches = s.fork(NUM_SAMPLES)
    branches += ft.assistant(thought + "\nSo the answer is: " + answer)
    s.join(*branches)
    return Counter(s["answer"]).most_common(1)[0]


rows = [{"question": question} for question in of(subjects[0], "test")]
before = backend.stats()
results = vote.using(seed=0).map(rows, on_error="raise")
after = backend.stats()

num_right_samples = num_right_majorities = 0
for result in results:
    question = result.row["question"]
    right = question["choices"][question["answer"]]
    majority, num_votes = result.value
    num_right_samples += result.state["answer"].count(right)
    num_right_majorities += majority == right
    if result.index < 3:
        print(f"\n{question['question']}")
        for thought, answer in zip(result.state["thought"], result.state["answer"], strict=True):
            print(f"  {answer}  <- {thought}")
        print(f"  {num_votes} of {NUM_SAMPLES} say {majority!r}; right is {right!r}")

num_samples = NUM_SAMPLES * len(rows)
print(f"\n{num_samples} samples, {num_right_samples / num_samples:.0%} of them right")
print(f"{len(rows)} majorities, {num_right_majorities / len(rows):.0%} of them right")
print(f"{after.decode_tokens - before.decode_tokens} tokens generated")
