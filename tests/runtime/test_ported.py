"""Programs written for SGLang's front end, with its documented meaning and without its faults."""

from __future__ import annotations

import re

import pytest

import forktree
from forktree.backend.fake import Fake
from forktree.lang.expressions import assistant, gen, gen_int, image, select, system, user
from forktree.lang.ported import (
    MOVED,
    assistant_begin,
    assistant_end,
    greedy_token_selection,
    system_begin,
    system_end,
    user_begin,
    user_end,
)
from forktree.runtime import ported
from forktree.runtime.defaults import get_defaults
from forktree.runtime.function import function


@pytest.fixture
def default_backend():
    """Sets the default backend for one test."""
    yield ported.set_default_backend
    get_defaults().use(None)


def test_few_shot_question_answering(default_backend) -> None:
    @function
    def few_shot_qa(s, question):
        s += "Q: What is the capital of France?\nA: Paris\n"
        s += "Q: " + question + "\n"
        s += "A:" + gen("answer", stop="\n", temperature=0)

    default_backend(Fake([" Rome\nQ: more"]))
    state = few_shot_qa.run(question="What is the capital of Italy?")
    assert "rome" in state["answer"].lower()
    assert state.text().endswith("A: Rome")


def test_a_chat_of_two_turns() -> None:
    @function
    def answer_mt_bench(s, question_1, question_2):
        s += system("You are a helpful assistant.")
        s += user(question_1)
        s += assistant(gen("answer_1", max_tokens=256))
        with s.user():
            s += question_2
        with s.assistant():
            s += gen("answer_2", max_tokens=256)

    state = answer_mt_bench.run("a", "b", temperature=0.1, max_new_tokens=16, backend=Fake(["first", "second"]))
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant", "user", "assistant"]
    assert (state["answer_1"], state["answer_2"]) == ("first", "second")


def test_split_turn_markers() -> None:
    @function
    def split(s):
        s += system_begin() + "sys" + system_end()
        s += user_begin() + "hi" + user_end()
        s += assistant_begin() + gen("x") + assistant_end()

    assert [m["content"] for m in split.run(backend=Fake(["y"])).messages()] == ["sys", "hi", "y"]


def test_tool_use_with_a_branch_on_a_selected_value() -> None:
    @function
    def tool_use(s, question):
        s += (
            "To answer: "
            + question
            + ", I need a "
            + gen("tool", choices=["calculator", "web browser"], choices_method=greedy_token_selection)
        )
        if s["tool"] == "calculator":
            s += "The math expression is" + gen("expression")
        else:
            s += "The key word is" + gen("word")

    state = tool_use.run(question="2 + 2?", backend=Fake({"tool": "calculator", "expression": " 2 + 2"}))
    assert state["expression"] == " 2 + 2"


def test_decode_int_and_select() -> None:
    fake = Fake({"hours": 24, "kind": "b"})

    @function
    def decode(s):
        s += "The number of hours in a day is " + gen_int("hours") + "\n"
        s += select("kind", choices=["a", "b"])

    state = decode.run(temperature=0.1, backend=fake)
    assert int(state["hours"]) == 24
    assert state["kind"] == "b"
    assert state.get_meta_info("kind")["finish_reason"] == "select"
    assert fake.requests[0].sampling.max_tokens == 128


def test_expert_answers_with_a_fork() -> None:
    @function
    def expert_answer(s, question):
        s += "Question: " + question + "\n"
        s += "A good expert is" + gen("expert", max_tokens=16)
        forks = s.fork(2)
        forks += "Answer: "
        for fork in forks:
            fork += gen("answer", max_tokens=8)
        forks.join()
        s += "Of these: " + "; ".join(s["answer"]) + gen("final")

    state = expert_answer.run("why?", backend=Fake({"expert": " a poet", "answer": ["x", "y"], "final": "!"}))
    assert sorted(state["answer"]) == ["x", "y"]


def test_parallel_decoding_of_nested_calls() -> None:
    @function
    def expand_tip(s, tip):
        s += "Expand: " + tip + gen("detail", max_tokens=8)

    @function
    def suggestions(s, topic):
        s += "Tips about " + topic + ". 1." + gen("first", stop="\n")
        forks = [expand_tip(tip=tip) for tip in ("a", "b")]
        s += " ".join(fork["detail"] for fork in forks)

    assert suggestions.run("x", backend=Fake({"first": "one", "detail": "d"})).text().endswith("d d")


def test_stream_true_returns_a_state_to_iterate() -> None:
    @function
    def qa(s, question):
        s += user(question) + assistant(gen("answer", max_tokens=8))

    state = qa.run(question="hi", stream=True, backend=Fake(["a b"]))
    assert list(state.text_iter("answer")) == ["a", " b"]
    assert qa.run(question="hi", stream=False, backend=Fake(["a b"]))["answer"] == "a b"


def test_an_image_in_a_turn() -> None:
    fake = Fake(["a cat"])

    @function
    def look(s, content):
        s += user(image(content) + "What is this?")
        s += assistant(gen("answer"))

    state = look.run(b"\x89PNG\r\n\x1a\n", backend=fake)
    assert [part["type"] for part in state.messages()[0]["content"]] == ["image_url", "text"]


# run_batch


@function
def batched(s, question):
    if question == "bad":
        raise ValueError("bad row")
    s += question + gen("answer", stop="\n")


@pytest.mark.parametrize("num_threads", [1, 16, "auto"])
def test_run_batch_returns_finished_states_in_order(num_threads, capsys) -> None:
    fake = Fake(lambda request: request.prompt.upper())
    rows = [{"question": f"q{i}"} for i in range(20)]
    states = batched.run_batch(rows, num_threads=num_threads, progress_bar=True, temperature=0, backend=fake)
    assert [state["answer"] for state in states] == [f"Q{i}" for i in range(20)]
    assert rows[0] == {"question": "q0"}
    assert {request.sampling.max_tokens for request in fake.requests} == {128}
    assert "20/20" in capsys.readouterr().err


@pytest.mark.parametrize(
    "read", [lambda s: s["answer"], lambda s: s.text(), lambda s: s.ret_value, lambda s: s.messages()]
)
@pytest.mark.parametrize(("row", "error"), [({"question": "bad"}, ValueError), ({"qestion": "x"}, TypeError)])
def test_a_failed_row_s_state_raises_when_it_is_read(read, row, error) -> None:
    good, failed = batched.run_batch([{"question": "q"}, row], backend=Fake(["ok"]))
    assert good["answer"] == "ok"
    with pytest.raises(error):
        read(failed)


def test_a_state_whose_generation_failed_raises_when_it_is_read() -> None:
    def script(request):
        raise RuntimeError("down")

    (state,) = batched.run_batch([{"question": "q"}], backend=Fake(script))
    with pytest.raises(forktree.BackendError, match="down"):
        state.text()


def test_generator_style_yields_states_and_an_empty_batch_yields_none() -> None:
    states = batched.run_batch([{"question": "q"}] * 3, generator_style=True, backend=Fake(["a"] * 3))
    assert next(iter(states))["answer"] == "a"
    assert list(batched.run_batch([], generator_style=True)) == []
    assert batched.run_batch([]) == []


def test_an_unknown_keyword_of_run_batch_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="'num_thread'"):
        batched.run_batch([], num_thread=3)


# What programs under the name sgl get


def test_a_module_that_imports_forktree_as_sgl_gets_sglang_s_budget() -> None:
    source = "def program(s):\n    s += gen('free') + gen('own', max_tokens=7)\n"
    namespace = {"sgl": forktree, "gen": gen}
    exec(source, namespace)
    fake = Fake(["a", "b"])
    function(namespace["program"]).run(backend=fake)
    assert [request.sampling.max_tokens for request in fake.requests] == [128, 7]


def test_names_without_a_place_here_name_their_replacement() -> None:
    assert all(re.match(r"\w+", replacement) for replacement in MOVED.values())
    assert "image" in MOVED["video"]


def test_flushing_and_counters_are_the_backend_s() -> None:
    with pytest.raises(forktree.UnsupportedError, match="no cache"):
        ported.flush_cache(Fake([]))
    with pytest.raises(forktree.UnsupportedError, match="no counters"):
        ported.get_server_info(Fake([]))
