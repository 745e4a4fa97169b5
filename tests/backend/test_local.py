from __future__ import annotations

import asyncio
import math
import os
import re
import subprocess
import sys
import threading

import pytest
from engine_fakes import mix
from hypothesis import given, settings
from hypothesis import strategies as st
from local_fakes import FakeSource, fake_local, hashed, runner_of, speaker, table
from local_runs import MERGES, assert_idle, branch_of, run, value
from toy_tokenizers import byte_level

from forktree.backend.local import Local
from forktree.backend.render import Renderer
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.constraints import ChoicesSpec, RegexSpec
from forktree.lang.errors import (
    BackendError,
    ConstraintError,
    ContextLengthError,
    EngineError,
    ModelError,
    RoleError,
)
from forktree.lang.sampling import Sampling
from forktree.runtime.protocol import (
    Branch,
    Delta,
    ForkMark,
    Generated,
    GenerateRequest,
    RoleBegin,
    RoleEnd,
    ScoreRequest,
)

NO_END = Sampling(max_tokens=100_000, ignore_eos=True)


@pytest.fixture(scope="module")
def toy() -> Tokenizer:
    return Tokenizer(byte_level(MERGES))


# --- generation ------------------------------------------------------------------------------------------------


async def test_a_generation_streams_its_value_and_ends_at_the_end_token(toy):
    with fake_local(toy, speaker(toy, "Q: yes")) as local:
        _, completion = await run(local, branch_of("Q:"))
        assert completion.segment.text == " yes"
        assert completion.finish_reason == "stop"
        assert completion.stop in toy.eos_ids
        assert completion.stop not in completion.segment.ids
        assert completion.usage.prompt_tokens == len(toy.encode("Q:"))


async def test_what_is_appended_renders_to_what_the_model_saw(toy):
    with fake_local(toy, hashed(toy)) as local:
        branch = branch_of("Name: ")
        _, first = await run(local, branch, max_tokens=5)
        after = Branch(branch, first.segment)
        runner_of(local).batches.clear()
        await run(local, after, max_tokens=1)
        [prompt] = runner_of(local).batches
        cached = prompt.positions[0]
        assert await local.tokens(after) == (*toy.encode("Name:"), *first.segment.ids)
        assert cached >= len(toy.encode("Name:")) + len(first.segment.ids) - 1  # all but the last was cached


async def test_a_prompt_that_ends_in_a_blank_is_healed(toy):
    """The word with its blank is likelier than the word after a blank: both ways of writing find it."""
    rows = {"Name:": {" Ada": 3.0, " ": 1.0}, "Name: ": {"Ada": 1.0, "x": 1.2}, "Ada": {"<end>": 5.0}}
    with fake_local(toy, table(toy, rows)) as local:
        at_once, in_two = branch_of("Name: "), branch_of("Name:", " ")
        seen = []
        for branch in (at_once, in_two):
            runner_of(local).batches.clear()
            _, completion = await run(local, branch, constraint=RegexSpec("[A-Z][a-z]+"), max_tokens=8)
            assert re.fullmatch("[A-Z][a-z]+", completion.segment.text)
            text = toy.decode(await local.tokens(branch_of(completion.segment, ".", on=branch)))
            assert text == "Name: " + completion.segment.text + "."
            seen.append((completion.segment, await local.tokens(branch_of(completion.segment, on=branch))))
            local.flush_cache()
        assert seen[0] == seen[1]
        assert seen[0][0] == Generated("Ada", tuple(toy.encode(" Ada")), 1)
        assert (await run(local, at_once, heal=False, max_tokens=1))[1].segment == Generated(
            "x", tuple(toy.encode("x"))
        )


async def test_a_cut_inside_the_healed_prefix_leaves_the_prompt_as_it_was(toy):
    merges = [("a", "b"), ("ab", "c")]
    tokenizer = Tokenizer(byte_level(merges))
    rows = {"x": {"a": 5.0}}
    with fake_local(tokenizer, table(tokenizer, rows)) as local:
        branch = branch_of("xab")
        _, completion = await run(local, branch, max_tokens=1)
        assert completion.segment == Generated("", (), 0)
        assert completion.finish_reason == "length"
        assert completion.is_complete  # nothing was demanded
        assert await local.tokens(Branch(branch, completion.segment)) == tuple(tokenizer.encode("xab"))


async def test_every_spelling_of_a_legal_text_may_be_chosen(toy):
    """Where there is a choice, the model's own way of spelling is followed, not the longest token."""
    merges = [("t", "e"), ("te", "s"), ("tes", "t"), ("s", "t")]
    tokenizer = Tokenizer(byte_level(merges))
    for prefers in (len, lambda piece: -len(piece)):
        with fake_local(tokenizer, speaker(tokenizer, "Q:test", prefers=prefers)) as local:
            _, completion = await run(local, branch_of("Q:"), constraint=RegexSpec("tes[tx]"), heal=False)
            assert completion.segment.text == "test"
            assert len(completion.segment.ids) == (1 if prefers is len else 4)


async def test_no_delta_holds_half_a_character(toy):
    said = "é🦙 世界👩‍👩‍👧!"
    with fake_local(toy, speaker(toy, "Q:" + said)) as local:
        deltas, completion = await run(local, branch_of("Q:"))
        assert completion.segment.text == said
        assert not any("�" in delta for delta in deltas)


@pytest.mark.parametrize(
    ("said", "options", "kept", "stop"),
    [
        (" yes\nQ: more", {"stop": ("Q:",)}, " yes\n", "Q:"),
        (" yes. And no", {"stop_regex": r"[.!] "}, " yes", ". "),
        ("Xb and more", {"stop": ("b and",)}, "X", "b and"),
        ("three", {"stop": ("wake",)}, "three", None),
    ],
)
async def test_stops_are_no_part_of_the_value_and_the_ids_spell_what_is_kept(toy, said, options, kept, stop):
    with fake_local(toy, speaker(toy, "Q:" + said)) as local:
        branch = branch_of("Q:")
        _, completion = await run(local, branch, **options)
        assert completion.segment.text == kept
        assert completion.stop == stop or (stop is None and completion.stop in toy.eos_ids)
        assert toy.decode(await local.tokens(branch_of(completion.segment, ".", on=branch))) == "Q:" + kept + "."


async def test_a_stop_id_ends_and_min_tokens_delays_every_end(toy):
    with fake_local(toy, speaker(toy, "Q:abcabc")) as local:
        [b] = toy.encode("b")
        assert await value(local, branch_of("Q:"), stop_token_ids=(b,)) == "a"
        assert await value(local, branch_of("Q:"), stop=("b",), min_tokens=3) == "abca"
        assert await value(local, branch_of("Q:"), max_tokens=2) == "ab"


async def test_the_end_of_turn_that_stopped_an_answer_is_written_once(toy):
    said = "user\nhi\nassistant\nyes"
    with fake_local(toy, speaker(toy, said)) as local:
        branch = branch_of(RoleBegin("user"), "hi", RoleEnd("user"), RoleBegin("assistant"))
        _, completion = await run(local, branch)
        assert completion.segment.text == "yes"
        ids = await local.tokens(branch_of(completion.segment, RoleEnd("assistant"), on=branch))
        expected = toy.hf.apply_chat_template(
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], return_dict=False
        )
        assert toy.decode(ids) == toy.decode(expected)
        assert [id for id in ids if id in toy.markup_ids] == [id for id in expected if id in toy.markup_ids]


async def test_an_empty_branch_generates_from_the_start_token(toy):
    with fake_local(toy, speaker(toy, "yes")) as local:
        _, completion = await run(local, None)
        assert completion.segment.text == "yes"
        assert await local.tokens(Branch(None, completion.segment)) == toy.start_ids + completion.segment.ids


async def test_logprobs_come_for_every_token_with_its_text(toy):
    with fake_local(toy, speaker(toy, "Q: yes")) as local:
        _, completion = await run(local, branch_of("Q:"), logprobs=0)
        assert [(entry.token, entry.text) for entry in completion.logprobs] == [(toy.encode(" yes")[0], " yes")]


# --- constraints -----------------------------------------------------------------------------------------------


async def test_a_constrained_output_is_whole_or_marked_as_cut(toy):
    with fake_local(toy, hashed(toy)) as local:
        _, whole = await run(local, branch_of("Q:"), constraint=ChoicesSpec(("yes", "no")))
        assert whole.segment.text in ("yes", "no")
        assert (whole.is_complete, whole.finish_reason) == (True, "stop")
        _, cut = await run(local, branch_of("Q:"), constraint=RegexSpec("[a-z]{50}"), max_tokens=3)
        assert (cut.is_complete, cut.finish_reason) == (False, "length")


async def test_a_stop_string_that_cuts_a_constrained_output_is_judged_by_what_is_kept(toy):
    with fake_local(toy, speaker(toy, "Q:ab.cd")) as local:
        _, completion = await run(local, branch_of("Q:"), constraint=RegexSpec("[a-z]+[.][a-z]+"), stop=(".",))
        assert (completion.segment.text, completion.is_complete) == ("ab", False)
        _, completion = await run(local, branch_of("Q:"), constraint=RegexSpec("[a-z.]+"), stop=(".",))
        assert (completion.segment.text, completion.is_complete) == ("ab", True)


async def test_a_bad_request_fails_alone_and_names_its_fault(toy):
    with fake_local(toy, hashed(toy)) as local:
        alone = await value(local, branch_of("x"), max_tokens=20)
        local.flush_cache()
        bad = [
            run(local, branch_of("x"), constraint=RegexSpec("a(b")),
            run(local, branch_of("x"), stop_regex="a*"),
            run(local, branch_of("x"), stop_token_ids=(10**9,)),
            run(local, branch_of("x"), logit_bias={-1: 1.0}),
            run(local, branch_of(RoleEnd("user"))),
        ]
        good, *failures = await asyncio.gather(
            value(local, branch_of("x"), max_tokens=20), *bad, return_exceptions=True
        )
        assert good == alone
        kinds = [ConstraintError, ConstraintError, BackendError, BackendError, RoleError]
        for failure, kind in zip(failures, kinds, strict=True):
            assert isinstance(failure, kind), failure


async def test_a_budget_closes_in_time_or_is_refused_with_the_least(toy):
    def request(max_tokens):
        constraint, sampling = RegexSpec('"(xy)+"'), Sampling(max_tokens=max_tokens)
        return GenerateRequest(branch=branch_of("x"), sampling=sampling, constraint=constraint, on_budget="close")

    with fake_local(toy, hashed(toy)) as local:
        for max_tokens in range(4, 12):
            *_, completion = [event async for event in local.stream(request(max_tokens))]
            assert completion.is_complete
            assert completion.finish_reason == "stop"
            assert re.fullmatch('"(xy)+"', completion.segment.text)
            assert len(completion.segment.ids) <= max_tokens
        with pytest.raises(ConstraintError, match="takes 4 tokens: raise max_tokens to 4"):
            await anext(local.stream(request(3)))


# --- together and alone ----------------------------------------------------------------------------------------


async def test_a_request_in_a_batch_gives_what_it_gives_alone(toy):
    trunk = branch_of("Name: Ada and some more text that is shared\n", ForkMark())
    branches = [branch_of(f"Q{i}:", on=trunk) for i in range(8)]
    with fake_local(toy, hashed(toy)) as local:
        together = await asyncio.gather(
            *(run(local, b, max_tokens=10, temperature=1.0, seed=i) for i, b in enumerate(branches))
        )
        for i, branch in enumerate(branches):
            local.flush_cache()
            alone = await run(local, branch, max_tokens=10, temperature=1.0, seed=i)
            assert alone[1].segment == together[i][1].segment
        assert not runner_of(local).faults


async def test_branches_compute_their_trunk_once(toy):
    trunk = branch_of("a long shared trunk, " * 10, ForkMark())
    with fake_local(toy, hashed(toy)) as local:
        await asyncio.gather(*(run(local, branch_of(f"{i}", on=trunk), max_tokens=1) for i in range(6)))
        distinct = len(await local.tokens(trunk)) + 6
        assert local.stats().prefill_tokens <= distinct + 6


async def test_samples_of_one_seed_differ_and_repeat(toy):
    with fake_local(toy, hashed(toy)) as local:

        async def sample(index: int) -> str:
            request = GenerateRequest(
                branch=branch_of("x"), sampling=Sampling(seed=3, temperature=1.5, max_tokens=8), sample_index=index
            )
            return [event async for event in local.stream(request)][-1].segment.text

        first = [await sample(index) for index in range(4)]
        assert len(set(first)) == 4
        assert [await sample(index) for index in range(4)] == first


# --- leaving early ---------------------------------------------------------------------------------------------


async def test_leaving_a_stream_cancels_its_work_and_frees_its_pages(toy):
    with fake_local(toy, hashed(toy)) as local:
        stream = local.stream(GenerateRequest(branch=branch_of("x"), sampling=NO_END))
        assert isinstance(await anext(stream), Delta)
        await stream.aclose()
        await assert_idle(local)


async def test_cancelling_the_task_cancels_its_work_and_frees_its_pages(toy):
    with fake_local(toy, hashed(toy)) as local:
        started = asyncio.Event()

        async def read() -> None:
            async for _ in local.stream(GenerateRequest(branch=branch_of("x"), sampling=NO_END)):
                started.set()

        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await assert_idle(local)


async def test_closing_tells_every_waiter(toy):
    local = fake_local(toy, hashed(toy))
    stream = local.stream(GenerateRequest(branch=branch_of("x"), sampling=NO_END))
    await anext(stream)
    await asyncio.to_thread(local.close)
    with pytest.raises(EngineError, match="closed"):
        async for _ in stream:
            pass


async def test_a_closed_backend_says_so_in_every_verb(toy):
    local = fake_local(toy, hashed(toy))
    local.close()
    local.close()
    branch = branch_of("x")
    for use in (
        lambda: run(local, branch),
        lambda: local.score(ScoreRequest(branch=branch, options=("a",))),
        lambda: local.prefill(branch),
        lambda: local.tokens(branch),
        lambda: asyncio.to_thread(local.generate, ["x"]),
        lambda: asyncio.to_thread(local.tokenize, "x"),
        lambda: asyncio.to_thread(local.stats),
        lambda: asyncio.to_thread(local.flush_cache),
    ):
        with pytest.raises(EngineError, match=r"is closed; make a new Local\(\)"):
            await use()


async def test_a_prompt_beyond_the_context_is_refused_with_its_counts(toy):
    with fake_local(toy, hashed(toy), max_context=8) as local:
        with pytest.raises(ContextLengthError) as caught:
            await run(local, branch_of("x" * 20))
        assert (caught.value.limit, caught.value.tokens) == (8, 21)
        _, completion = await run(local, branch_of("xxxx"))
        assert completion.finish_reason == "length"  # to the context's end


# --- life ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": ""}, "model must be"),
        ({"model": 3}, "model must be"),
        ({"device": "tpu"}, "device must be one of 'auto', 'cpu', 'cuda', not 'tpu'"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"dtype": "bfloat16"}, "dtype must be 'auto' or 'float32' on a CPU, not 'bfloat16'; give device='cuda'"),
        ({"device": "cuda", "quantize": "q4"}, "quantize must be 'auto' or 'none' on a GPU"),
        ({"quantize": "int3"}, "quantize must be one of"),
        ({"kv_tokens": 0}, "kv_tokens must be"),
        ({"kv_tokens": 10}, "kv_tokens must be at least 64, not 10"),
        ({"kv_tokens": 100, "page_size": 128}, "kv_tokens must be at least 128, not 100"),
        ({"page_size": 3}, "page_size must be a power of two"),
        ({"page_size": True}, "page_size must be"),
        ({"max_running": -1}, "max_running must be"),
    ],
)
def test_arguments_are_checked_when_it_is_made(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Local(**options)


def test_nothing_is_loaded_until_it_is_needed(toy):
    source = FakeSource(toy, object())
    with Local.over(source) as local:
        assert source.loads == []
        assert local.stats().num_steps == 0
        local.tokenize("x")
        assert source.loads == ["tokenizer"]


def test_many_threads_load_one_model(toy):
    local = fake_local(toy, hashed(toy))
    with local:
        threads = [threading.Thread(target=local.load) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert local._model._source.loads == ["tokenizer", "runner"]


def test_a_model_that_cannot_be_had_is_said_at_each_use():
    with Local("no/such/model/here") as local:
        for _ in range(2):
            with pytest.raises(ModelError, match="no model 'no/such/model/here'"):
                local.generate(["x"])


def test_one_backend_serves_several_loops(toy):
    with fake_local(toy, hashed(toy)) as local:
        first = asyncio.run(value(local, branch_of("x"), max_tokens=5))
        assert asyncio.run(value(local, branch_of("x"), max_tokens=5)) == first


async def test_renderings_of_a_branch_are_the_renderers(toy):
    branch = branch_of(RoleBegin("user"), "hi", RoleEnd("user"))
    with fake_local(toy, hashed(toy)) as local:
        assert await local.tokens(branch) == Renderer(toy).ids(branch)
        await local.prefill(branch)
        assert local.stats().prefill_tokens == len(await local.tokens(branch))
        assert math.isclose(local.stats().pages_cached, -(-len(await local.tokens(branch)) // 4), abs_tol=1)


# --- any program -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(["Na", "me", ": ", " ", "A", "d", "a", "X", "\n", ForkMark()]), min_size=1, max_size=6
    ),
    stops=st.lists(st.sampled_from(["d", "Xb", "e ", "ada", "\n"]), max_size=2),
    max_tokens=st.integers(1, 6),
    pattern=st.sampled_from([None, "[a-z]+", "( |A|d|a|X|b)*", "X?"]),
    seed=st.integers(0, 5),
)
def test_the_branch_after_a_generation_spells_the_branch_and_the_value(toy, parts, stops, max_tokens, pattern, seed):
    """Whatever was healed, stopped, cut or constrained: the ids spell what is shown, byte for byte."""

    def logit(history: tuple[int, ...], token: int) -> float:
        spelt = toy.token_bytes[token]
        return 6.0 * mix(hash(history), token, seed) if spelt.isascii() and len(spelt) < 6 else -20.0

    async def go(local: Local) -> None:
        branch = branch_of("x", *parts)
        constraint = None if pattern is None else RegexSpec(pattern)
        _, completion = await run(local, branch, constraint=constraint, stop=tuple(stops), max_tokens=max_tokens)
        value = completion.segment.text
        before, after = [await local.tokens(b) for b in (branch, Branch(branch, completion.segment))]
        assert toy.decode(after) == toy.decode(before) + value
        assert after[len(after) - len(completion.segment.ids) :] == completion.segment.ids
        assert not any(stop in value for stop in stops)
        if pattern is not None and completion.is_complete:
            assert re.fullmatch(pattern, value)

    with fake_local(toy, logit) as local:
        asyncio.run(go(local))
        assert not runner_of(local).faults


def test_a_process_ends_cleanly_with_work_under_way(tmp_path):
    """Nobody closes the backend, and a request runs when the interpreter goes down."""
    script = tmp_path / "leave.py"
    script.write_text(
        "import asyncio\n"
        "from local_fakes import fake_local, hashed\n"
        "from toy_tokenizers import byte_level\n"
        "from forktree.backend.tokenizer import Tokenizer\n"
        "from forktree.lang.sampling import Sampling\n"
        "from forktree.runtime.protocol import Branch, GenerateRequest, Text\n"
        "toy = Tokenizer(byte_level())\n"
        "local = fake_local(toy, hashed(toy), num_pages=4000)\n"
        "sampling = Sampling(max_tokens=100_000, ignore_eos=True)\n"
        "stream = local.stream(GenerateRequest(branch=Branch(None, Text('x')), sampling=sampling))\n"
        "loop = asyncio.new_event_loop()\n"
        "print(type(loop.run_until_complete(anext(stream))).__name__, flush=True)\n",
        encoding="utf-8",
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "Delta"), done.stderr
