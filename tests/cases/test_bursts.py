"""Bursts of programs on a cold engine compute each distinct token once; whatever happens, every page comes back."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterable

import pytest
from real_parts import assert_idle, let_cancelled_work_end

import forktree as ft
from forktree.backend.local import Local
from forktree.runtime.map import Result

pytestmark = pytest.mark.model

SHOTS = [
    ("The river Nile flows through Egypt.", "geography"),
    ("Water boils at one hundred degrees.", "physics"),
    ("Bach wrote fugues for the organ.", "music"),
    ("The Treaty of Rome was signed in 1957.", "history"),
    ("A whale is a mammal.", "biology"),
    ("Seven is a prime number.", "mathematics"),
]
HEAD = "Name the subject of each sentence.\n\n" + "".join(f"Sentence: {s}\nSubject: {a}\n\n" for s, a in SHOTS * 3)
PLACES = ("Oslo", "Lima", "Cairo", "Kyoto", "Perth", "Quito", "Turin", "Accra")
WEATHER = ("sunny", "cold", "wet", "windy", "dry", "mild", "foggy", "hot")
SENTENCES = [f"{place} was {kind} all through the week." for place in PLACES for kind in WEATHER]


def num_distinct(prompts: Iterable[tuple[int, ...]]) -> int:
    """Nodes of the prompts' token trie."""
    return len({prompt[: size + 1] for prompt in prompts for size in range(len(prompt))})


def prompts_of(results: list[Result], *names: str) -> list[tuple[int, ...]]:
    """What each generation continued, without the generated tokens of its own."""
    assert all(result.ok for result in results)
    return [result.state.tokens()[: result.state.meta(name).prompt_tokens] for result in results for name in names]


@ft.function
def in_one_text(s, sentence):
    s += HEAD + f"Sentence: {sentence}\nSubject: " + ft.gen("a", max_tokens=4)


@ft.function
def in_turns(s, sentence):
    s += ft.system(HEAD)
    s += ft.user(f"Sentence: {sentence}")
    s += ft.assistant("Subject:" + ft.gen("a", max_tokens=4))


@pytest.mark.parametrize("program", [in_one_text, in_turns], ids=["text", "turns"])
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_a_cold_burst_of_64_programs_computes_each_distinct_token_once(wild: Local, program, is_shuffled) -> None:
    sentences = list(SENTENCES)
    if is_shuffled:
        random.Random(1).shuffle(sentences)
    before = wild.stats()
    results = program.using(backend=wild).map([{"sentence": sentence} for sentence in sentences])
    prompts = prompts_of(results, "a")
    computed = wild.stats().prefill_tokens - before.prefill_tokens
    assert computed <= 1.02 * num_distinct(prompts)
    assert sum(map(len, prompts)) > 5 * computed  # and there was much to share


def test_branches_of_many_programs_share_every_trunk(wild: Local) -> None:
    """A trunk for all, a trunk for each row, and branches that differ at once."""

    @ft.function
    def program(s, sentence):
        s += HEAD + f"Sentence: {sentence}\n"
        with s.fork([f"{key}:" for key in ("Subject", "Mood", "Length")]) as branches:
            branches += ft.gen("a", max_tokens=3)
        return [branch.tokens() for branch in branches]

    before = wild.stats()
    results = program.using(backend=wild).map([{"sentence": sentence} for sentence in SENTENCES[:32]])
    assert all(result.ok for result in results), [result.error for result in results]
    prompts = []
    for result in results:
        sizes = [meta.prompt_tokens for meta in result.state.meta("a").samples]
        prompts += [ids[:size] for ids, size in zip(result.value, sizes, strict=True)]
    assert wild.stats().prefill_tokens - before.prefill_tokens <= 1.02 * num_distinct(prompts)


@pytest.mark.parametrize("method", ["token_length_normalized", "unconditional_likelihood_normalized"])
def test_a_cold_burst_of_64_selects_computes_no_token_twice(wild: Local, method: str) -> None:
    """Prompts once, options as far as something follows them; without a prompt, once more for each select."""
    options = ["geography", "history of art", "history of science", "the natural sciences"]

    @ft.function
    def program(s, sentence):
        s += HEAD + f"Sentence: {sentence}\nSubject: "
        trunk = s.tokens()
        s += ft.select("a", options, method=method)
        return trunk

    wild.flush_cache()
    before = wild.stats()
    results = program.using(backend=wild).map([{"sentence": sentence} for sentence in SENTENCES])
    assert all(result.ok for result in results), [result.error for result in results]
    wholes = [ids for result in results for ids in whole_options(wild, result.value, options)]
    computed = wild.stats().prefill_tokens - before.prefill_tokens
    num_alone = 0 if method == "token_length_normalized" else 64 * sum(len(wild.tokenize(" " + o)) for o in options)
    assert computed <= 1.02 * num_distinct(wholes) + num_alone
    if num_alone == 0:
        assert computed == num_distinct(ids[:-1] for ids in wholes)
        assert wild.stats().num_finished - before.num_finished == 64


def whole_options(local: Local, trunk: tuple[int, ...], options: list[str]) -> list[tuple[int, ...]]:
    """Prompt and option as one text, which the prompt's last token may not be a token of."""
    text = local.detokenize(trunk)
    return [tuple(local.tokenize(text + option)) for option in options]


def test_a_second_burst_computes_next_to_nothing(wild: Local) -> None:
    rows = [{"sentence": sentence} for sentence in SENTENCES[:16]]
    first = [result.state["a"] for result in in_one_text.using(backend=wild).map(rows)]
    before = wild.stats()
    results = in_one_text.using(backend=wild).map(rows)
    assert [result.state["a"] for result in results] == first
    assert wild.stats().prefill_tokens - before.prefill_tokens == len(rows)  # the last token of each


# --- whatever happens --------------------------------------------------------------------------------------------


@ft.function
def endless(s, prompt):
    s += prompt + ft.gen("v", max_tokens=3000, ignore_eos=True)
    s["v"]


@ft.function
def mixed(s, kind, i):
    s += HEAD + f"Row {i}:"
    if kind == "good":
        s += ft.gen("v", max_tokens=6, temperature=1.0)
    elif kind == "raises while generating":
        s += ft.gen("v", max_tokens=3000, ignore_eos=True)
        raise LookupError(f"row {i}")
    elif kind == "bad constraint":
        s += ft.gen("v", schema={"$ref": "#/$defs/none"})
    elif kind == "too long":
        s += "long " * 5000 + ft.gen("v", max_tokens=1)
    elif kind == "bad token":
        s += ft.gen("v", stop_token_ids=[10**9])
    elif kind == "cut":
        s += ft.gen("v", regex="[a-z]{300}", max_tokens=5)
        s["v"]
    elif kind == "select":
        s += ft.select("v", ["yes", "no", "maybe so"])
    else:
        left, right = s.fork(2)
        left += ft.gen("w", max_tokens=3000, ignore_eos=True)
        right += ft.gen("v", regex="(")
        s.join(left, right)
    return s["v"]


KINDS = {
    "good": None,
    "raises while generating": LookupError,
    "bad constraint": ft.ConstraintError,
    "too long": ft.ContextLengthError,
    "bad token": ft.BackendError,
    "cut": ft.IncompleteError,
    "select": None,
    "branch fails": ft.ConstraintError,
}


def test_successes_and_failures_of_every_kind_leave_nothing_behind(wild: Local) -> None:
    rows = [{"kind": kind, "i": i} for i in range(6) for kind in KINDS]
    for row, result in zip(rows, mixed.using(backend=wild).map(rows), strict=True):
        expected = KINDS[row["kind"]]
        if expected is None:
            assert result.ok, result.error
        else:
            assert isinstance(result.error, expected), (row, result.error)
    let_cancelled_work_end(wild)
    assert_idle(wild)


def test_an_interrupt_leaves_nothing_behind(wild: Local, interruptible: None) -> None:
    @ft.function
    def interrupted(s, i):
        s += f"Row {i}:" + ft.gen("v", max_tokens=4 if i < 4 else 3000, ignore_eos=i >= 4)
        if i == 12:
            branch = s.fork(1)[0]
            branch += ft.gen("w", max_tokens=1)
            os.kill(os.getpid(), signal.SIGINT)
        return s["v"]

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted.using(backend=wild).map([{"i": i} for i in range(16)], concurrency=16)
    assert [result.index for result in caught.value.results] == list(range(len(caught.value.results)))
    let_cancelled_work_end(wild)
    assert_idle(wild)


def test_streams_left_early_and_tasks_cancelled_leave_nothing_behind(wild: Local) -> None:
    async def cancel_when_running() -> None:
        states = [endless.stream(f"Row {i}", backend=wild) for i in range(4)]
        for state in states:
            async for piece in state.text_async_iter("v"):
                assert piece
                break
        task = asyncio.ensure_future(endless.arun("Row", backend=wild))
        while wild.stats().num_running == 0 and not task.done():
            await asyncio.to_thread(wild.generate, ["."], ft.Sampling(max_tokens=1))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = wild.stats()
    for _ in range(3):
        for piece in endless.stream("Once", backend=wild).text_iter("v"):
            assert piece
            break
    asyncio.run(cancel_when_running())
    results = endless.using(backend=wild).imap([{"prompt": f"{i}"} for i in range(8)], concurrency=4)
    pending = in_one_text.using(backend=wild).run("x")["a"]
    results.close()
    assert pending is not None
    let_cancelled_work_end(wild)
    assert wild.stats().num_failed > before.num_failed
    assert_idle(wild)
