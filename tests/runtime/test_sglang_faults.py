"""What is wrong or missing in SGLang's front end (0.5.23), and how it is here.

One test an item, in the order of what they are about: functions and generations, select, state and branches,
tracing, batches and speculation, errors. Where a part has tests of its own, they say more.
"""

from __future__ import annotations

import math
import threading

import pytest

import forktree as sgl
from forktree.backend.fake import Fake
from forktree.runtime.protocol import Delta

BACKEND_DOWN = sgl.ServerError("the machine is down")


def down(request):
    raise BACKEND_DOWN


# Functions and generations


def test_the_state_may_have_any_name_and_keyword_only_parameters_are_seen() -> None:
    @sgl.function
    def program(state, *, topic="x"):
        state += topic

    assert program.run(topic="y", backend=Fake([])).text() == "y"


def test_an_async_function_is_a_program_and_no_lost_coroutine() -> None:
    @sgl.function
    async def program(s):
        s += sgl.gen("x")
        return await s.aget("x")

    assert program.run(backend=Fake(["a"])).ret_value == "a"


def test_a_parameter_may_be_named_like_an_option_of_run() -> None:
    @sgl.function
    def program(s, stop, n, temperature, stream, backend):
        s += f"{stop} {n} {temperature} {stream} {backend}"

    assert program.using(backend=Fake([])).run("a", 1, 2, 3, backend=4).text() == "a 1 2 3 4"


def test_a_constraint_is_no_option_of_run() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("x")

    with pytest.raises(TypeError, match="regex"):
        program.run(regex="a+", backend=Fake(["a"]))


def test_what_the_program_does_not_say_is_left_to_the_model() -> None:
    """It is not sent as temperature 1, top_p 1 and so on. Under the name `sgl` a budget is SGLang's."""

    @sgl.function
    def program(s):
        s += sgl.gen("x", max_tokens=3)

    fake = Fake(["a"])
    program.run(backend=fake)
    assert fake.requests[0].sampling == sgl.Sampling(max_tokens=3)


def test_choices_keep_the_other_arguments() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("x", choices=["yes", "no"], max_tokens=3, logprobs=True, stop="!")

    fake = Fake(["yes"])
    assert program.run(backend=fake)["x"] == "yes"
    sampling = fake.requests[0].sampling
    assert (sampling.max_tokens, sampling.logprobs, sampling.stop) == (3, 0, ("!",))


@pytest.mark.parametrize(("options", "named"), [({"temperature": 0.7}, "temperature=0.7"), ({"n": 3}, "n=3")])
def test_scored_choices_refuse_what_scoring_cannot_honour(options, named) -> None:
    with pytest.raises(sgl.LanguageError, match=named):
        sgl.gen("x", choices=["a", "b"], choices_method=sgl.token_length_normalized, **options)


def test_a_type_and_a_pattern_are_two_constraints_and_refused() -> None:
    with pytest.raises(sgl.LanguageError, match="one constraint, not regex and dtype"):
        sgl.gen("x", regex="a", dtype=int)


def test_a_string_s_value_may_hold_punctuation() -> None:
    assert sgl.gen("x", dtype=str).output.value_of('"well, yes: (no)!"') == "well, yes: (no)!"


def test_a_schema_is_any_python_type() -> None:
    assert sgl.gen("x", schema=list[int]).output.value_of("[1,2]") == [1, 2]


# Select


@pytest.mark.parametrize(
    ("method", "winner"),
    [
        (sgl.token_length_normalized, "b b"),
        (sgl.greedy_token_selection, "a"),
        (sgl.unconditional_likelihood_normalized, "b b"),
    ],
)
def test_every_select_method_selects(method, winner) -> None:
    """Behind a prompt that ends in two equal tokens, and with a log-probability of exactly 0."""

    @sgl.function
    def program(s):
        s += "the end\n\n" + sgl.select("x", ["a", "b b"], choices_method=method)

    state = program.run(backend=Fake({"x": [{"a": [-1.0], "b b": [-1.2, 0.0]}]}))
    assert state["x"] == winner
    assert state.meta("x").option_logprobs == {"a": -1.0, "b b": -1.2}
    assert math.isclose(sum(state.meta("x").probabilities.values()), 1.0)


# State and branches


def test_a_turn_that_is_appended_twice_over_is_there_once() -> None:
    @sgl.function
    def program(s):
        s += s.system("be kind")

    assert program.run(backend=Fake([])).messages() == [{"role": "system", "content": "be kind"}]


def test_an_assignment_is_not_overwritten_by_a_pending_generation() -> None:
    fake = Fake(["late"])
    fake.hold()

    @sgl.function
    def program(s):
        s += sgl.gen("x")
        s["x"] = "mine"
        fake.release()
        return s["x"]

    state = program.run(backend=fake)
    assert (state.ret_value, state["x"], state.text()) == ("mine", "mine", "late")


def test_in_waits_for_what_is_pending() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("x")
        return "x" in s, "y" in s

    assert program.run(backend=Fake(lambda request: "a")).ret_value == (True, False)


def test_unnamed_generations_leave_no_variable() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen() + sgl.gen()

    state = program.run(backend=Fake(["a", "b"]))
    assert (state.text(), state.variables()) == ("ab", {})


def test_plain_text_goes_to_every_branch_of_a_group() -> None:
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += "plain"
        return [fork.text() for fork in forks]

    assert program.run(backend=Fake([])).ret_value == ["plain", "plain"]


def test_a_name_that_the_parent_has_is_not_lost_in_a_join() -> None:
    @sgl.function
    def program(s):
        s["x"] = "mine"
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks.join()

    with pytest.raises(sgl.LanguageError, match="already has"):
        program.run(backend=Fake({"x": "theirs"}))


def test_joining_the_text_of_branches_works_on_every_backend() -> None:
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += lambda i: f"[{i}]"
        forks.join("concate_and_append")
        s += sgl.gen("x")

    fake = Fake(["!"])
    assert program.run(backend=fake).text() == "[0][1]!"
    assert fake.requests[0].prompt == "[0][1]"


def test_an_argument_that_was_accepted_and_ignored_is_refused() -> None:
    @sgl.function
    def program(s):
        s.fork(2, position_ids_offset=[0, 10])

    with pytest.raises(TypeError, match="position_ids_offset"):
        program.run(backend=Fake([]))


def test_a_branch_knows_how_its_trunk_s_variables_were_made() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("x")
        (branch,) = s.fork(1)
        return branch.get_meta_info("x")["completion_tokens"]

    assert program.run(backend=Fake(["a b"])).ret_value == 2


def test_many_forks_use_few_threads() -> None:
    @sgl.function
    def program(s):
        forks = s.fork(4)
        forks += sgl.gen("x")
        forks.join()

    fake = Fake(lambda request: "a")
    before = threading.active_count()
    fake.hold()
    states = [program.stream(backend=fake) for _ in range(200)]
    assert threading.active_count() <= before + 1 + 64
    fake.release()
    assert all(state["x"] == ["a"] * 4 for state in states)


# Tracing


def test_every_form_traces_and_a_traced_program_runs_with_every_parameter() -> None:
    @sgl.function
    def program(s, name):
        with s.user():
            s += f"Hello {name}"
        s.assistant(sgl.gen("x", min_p=0.1))
        with s.scope("part"):
            s += "part"
        copy = s.copy()
        copy += sgl.gen("y")
        s.join(copy)
        forks = s.fork(2)
        forks += sgl.gen("z")
        forks.join()

    fake = Fake({"x": "a", "y": "b", "z": "c"})
    state = program.trace().run(name="Ada", backend=fake)
    assert state.variables() == {"x": "a", "part": "part", "y": "b", "z": ["c", "c"]}
    assert fake.requests[0].sampling.min_p == 0.1
    assert "user" in str(state.program)


def test_a_batch_runs_no_body_with_made_up_arguments() -> None:
    prompts = {"greet": "Hello", "part": "Goodbye"}
    seen: list[str] = []

    @sgl.function
    def program(s, task):
        seen.append(task)
        s += prompts[task] + sgl.gen("x")

    states = program.run_batch([{"task": "greet"}, {"task": "part"}], backend=Fake({"x": "!"}), num_threads=1)
    assert [state.text() for state in states] == ["Hello!", "Goodbye!"]
    assert seen == ["greet", "part"]


# Batches and speculation


def test_bound_arguments_do_not_get_into_the_caller_s_rows() -> None:
    @sgl.function
    def program(s, a, b):
        s += f"{a}{b}"

    rows = [{"a": 1}]
    assert program.bind(b=2).run_batch(rows, backend=Fake([]))[0].text() == "12"
    assert rows == [{"a": 1}]


def test_a_bound_program_still_speculates() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s, a):
        s += f"{a} Name:" + sgl.gen("name", stop="\n") + "\nAge:" + sgl.gen("age", stop="\n")

    fake = Fake([" Ada\nAge: 36\n"], token_ids=False)
    state = program.bind(a="A").run(backend=fake)
    assert (state["name"], state["age"], fake.num_requests) == (" Ada", " 36", 1)


def test_each_failed_row_says_why_and_no_other_fails() -> None:
    @sgl.function
    def program(s, q):
        s += q + sgl.gen("x")

    def script(request):
        return "fine" if request.prompt == "good" else down(request)

    results = program.using(backend=Fake(script)).map([{"q": "good"}, {"q": "bad"}])
    assert [result.ok for result in results] == [True, False]
    assert results[1].error is BACKEND_DOWN


# Errors


@pytest.mark.parametrize("read", [lambda s: s["x"], lambda s: s.text(), lambda s: s.get_meta_info("x")])
def test_reading_what_failed_raises_the_real_error_and_no_key_error(read) -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("x")

    with pytest.raises(sgl.ServerError, match="the machine is down"):
        read(program.stream(backend=Fake(down)))


def test_a_failure_that_nobody_reads_is_raised_by_run() -> None:
    @sgl.function
    def program(s):
        s += "before" + sgl.gen("x") + "after"

    with pytest.raises(sgl.ServerError):
        program.run(backend=Fake(down))


def test_joining_a_failed_branch_raises_the_real_error() -> None:
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks.join()
        return s["x"]

    with pytest.raises(sgl.ServerError):
        program.run(backend=Fake(down))


@pytest.mark.parametrize("wrong", [5, None, [1], {"a": 1}])
def test_appending_what_is_no_text_is_an_error_at_its_line(wrong) -> None:
    @sgl.function
    def program(s):
        s += wrong

    with pytest.raises(sgl.LanguageError, match=r"cannot be appended.*test_sglang_faults.py"):
        program.run(backend=Fake([]))


def test_a_stream_that_fails_on_the_way_ends_with_the_error() -> None:
    class Broken(Fake):
        async def stream(self, request):
            yield Delta("half")
            down(request)

    @sgl.function
    def program(s):
        s += sgl.gen("x")

    pieces = program.stream(backend=Broken([])).text_iter("x")
    assert next(pieces) == "half"
    with pytest.raises(sgl.ServerError):
        next(pieces)


@pytest.mark.parametrize(
    "name",
    [
        "video",
        "separate_reasoning",
        "Runtime",
        "Engine",
        "LiteLLM",
        "VertexAI",
        "Crusoe",
        "global_config",
        "ServerArgs",
    ],
)
def test_a_name_without_a_place_here_names_its_replacement(name) -> None:
    with pytest.raises(AttributeError, match=f"forktree has no {name}; use "):
        getattr(sgl, name)
