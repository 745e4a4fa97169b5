"""What the runtime tells the engine: a live program's prompts stay, a map's next rows are known, a pin is kept."""

from __future__ import annotations

import asyncio
import threading

import pytest
from local_fakes import fake_local, hashed
from local_runs import MERGES
from toy_tokenizers import byte_level

import forktree as ft
from forktree.backend.tokenizer import Tokenizer
from forktree.runtime.protocol import Branch, RoleBegin, Text

TRUNK = "What the branches of this program share is a text of some length, told once and kept. "


@pytest.fixture(scope="module")
def toy() -> Tokenizer:
    return Tokenizer(byte_level(MERGES))


@pytest.fixture
def local(toy):
    with fake_local(toy, hashed(toy), num_pages=64) as made:
        yield made


def flood(local):
    """Other traffic, more than the pool holds, a request at a time."""
    for number in range(8):
        local.generate([[65 + number] * 60], ft.Sampling(max_tokens=2, ignore_eos=True))


def count_cached(local, text):
    ids = tuple(local.tokenize(text))
    return local._model.count_cached([ids])[0]


@pytest.mark.parametrize("num_branches", [0, 2])
def test_a_trunk_stays_while_a_branch_waits_for_a_tool_and_goes_with_the_program(local, num_branches):
    waiting, answered = threading.Event(), threading.Event()

    @ft.function
    def talk(s):
        s += TRUNK
        s += ft.gen("first", max_tokens=3, ignore_eos=True)
        branches = list(s.fork(num_branches)) if num_branches else [s]
        for number, branch in enumerate(branches):
            branch += f"Branch {number}:"
            branch += ft.gen(f"before{number}", max_tokens=3, ignore_eos=True)
        for number, branch in enumerate(branches):
            _ = branch[f"before{number}"]
        waiting.set()
        assert answered.wait(30)
        for number, branch in enumerate(branches):
            branch += " The tool says 7."
            branch += ft.gen(f"after{number}", max_tokens=3, ignore_eos=True)
        return [branch.meta(f"after{number}").cached_tokens for number, branch in enumerate(branches)]

    state = talk.stream(backend=local)
    assert waiting.wait(30)
    flood(local)
    answered.set()
    assert all(cached >= len(local.tokenize(TRUNK)) for cached in state.ret_value)
    flood(local)
    assert count_cached(local, TRUNK) < 4


def test_a_pin_keeps_a_turn_computed_and_changes_no_answer(local):
    @ft.function
    def ask(s, question):
        s += TRUNK + question
        s += ft.gen("answer", max_tokens=4, ignore_eos=True)

    alone = ask.run("Why?", backend=local)["answer"]
    local.flush_cache()
    with ft.pin(TRUNK, backend=local) as pin:
        assert pin.num_tokens > 40
        flood(local)
        local.flush_cache()
        state = ask.run("Why?", backend=local)
        assert state["answer"] == alone
        assert state.meta("answer").cached_tokens >= pin.num_tokens
        assert local.stats().pages_pinned == pin.num_tokens // 4
    local.flush_cache()  # behind the pin's end
    assert local.stats().pages_pinned == 0


def test_the_raw_door_pins_ids_and_text(local):
    with local.pin(list(range(65, 85))) as ids, local.pin(TRUNK) as text:
        assert ids.num_tokens == 20
        assert text.num_tokens == len(local.tokenizer.encode_prompt(TRUNK)) // 4 * 4
        local.flush_cache()
        (done,) = local.generate([[*range(65, 85), 7]], ft.Sampling(max_tokens=1, ignore_eos=True))
        assert done.usage.cached_tokens == 20


def test_what_cannot_be_pinned_is_refused(local):
    with pytest.raises(ft.EngineError, match="at most 192 may be"):
        local.pin([65] * 200)
    with pytest.raises(ValueError, match="whole pages of 4 tokens"):
        local.pin([65])
    with pytest.raises(ft.LanguageError, match="Gen is not"):
        ft.pin(TRUNK + ft.gen("x"), backend=local)
    with pytest.raises(ft.LanguageError, match="empty"):
        ft.pin("", backend=local)
    with pytest.raises(ft.UnsupportedError, match="pins nothing"):
        ft.pin(TRUNK, backend=ft.Fake([]))


async def test_an_async_program_pins_before_it_runs(local):
    @ft.function
    async def ask(s):
        ft.pin(TRUNK, backend=local)

    with pytest.raises(ft.LanguageError, match="before the program runs"):
        await ask.arun(backend=local)


def test_a_map_tells_how_its_next_rows_begin(local, monkeypatch):
    seen = []
    expect = type(local).expect

    async def spy(self, branches):
        seen.extend(branch.text() for branch in branches)
        await expect(self, branches)

    monkeypatch.setattr(type(local), "expect", spy)

    @ft.function
    def ask(s, topic, question):
        s += f"About {topic}. {question}"
        s += ft.gen("answer", max_tokens=2, ignore_eos=True)

    rows = [{"topic": f"t{number // 4}", "question": f"q{number}?"} for number in range(12)]
    program = ask.using(backend=local).trace()
    ft.use(local)
    try:
        results = program.map(rows, concurrency=2)
    finally:
        ft.use(None)
    assert all(result.ok for result in results)
    assert set(seen) <= {f"About {row['topic']}. {row['question']}" for row in rows}
    assert len(seen) >= 8


def test_a_hint_that_cannot_be_rendered_harms_nobody(local):
    asyncio.run(local.expect([Branch(Branch(None, RoleBegin("nobody")), Text("hello"))]))
    local.end_run(12345)
