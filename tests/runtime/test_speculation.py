"""Generations in a row, asked for in one call on a backend without token ids, and split where the text agrees."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forktree as ft
from forktree.backend.fake import Fake
from forktree.lang import ir
from forktree.lang.errors import BackendError
from forktree.lang.expressions import gen
from forktree.lang.program import Speculation
from forktree.runtime.speculation import Group, Part, group_of, split

SHEET = "Name: Ada\nAge: 36\nJob: poet\nAnd so on."


def model(request) -> str:
    """Writes the sheet on from where the prompt has it, whatever the values are."""
    labels = re.findall(r"(Name|Age|Job):", request.prompt)
    rest = SHEET.split(f"{labels[-1]}:", 1)[1]
    return rest if request.prompt.endswith(f"{labels[-1]}:") else rest.lstrip()


def sheet(s):
    s += ft.user("A character, please.")
    s += ft.assistant(
        "Name:" + gen("name", stop="\n") + "\nAge:" + gen("age", stop="\n") + "\nJob:" + gen("job", stop="\n") + "\n"
    )
    return s["name"], s["age"], s["job"]


together = ft.function(api_speculation=True)(sheet)
alone = ft.function(sheet)


def paid(script) -> Fake:
    return Fake(script, token_ids=False)


def test_one_call_answers_a_turn_and_the_result_is_that_of_separate_calls() -> None:
    one, three = paid(model), paid(model)
    fast, plain = together.run(backend=one), alone.run(backend=three)
    assert (one.num_requests, three.num_requests) == (1, 3)
    assert fast.ret_value == plain.ret_value == (" Ada", " 36", " poet")
    assert fast.text() == plain.text()
    assert fast.messages() == plain.messages()


def test_the_call_has_no_stop_and_the_budgets_of_all() -> None:
    backend = paid(model)
    together.using(sampling=ft.Sampling(max_tokens=20, temperature=0.5)).run(backend=backend)
    (request,) = backend.requests
    assert request.sampling == ft.Sampling(max_tokens=60, temperature=0.5)


def test_saved_tokens_are_reported() -> None:
    backend = paid(model)
    state = together.run(backend=backend)
    metas = [state.meta(name) for name in ("name", "age", "job")]
    assert metas[0].prompt_tokens > 0
    assert [meta.saved_tokens for meta in metas] == [0, metas[0].prompt_tokens, metas[0].prompt_tokens]
    assert [(meta.text, meta.finish_reason, meta.stop) for meta in metas[1:]] == [
        (" 36", "stop", "\n"),
        (" poet", "stop", "\n"),
    ]
    report = ft.explain_run(state)
    assert (report.num_requests, report.saved_tokens) == (1, 2 * metas[0].prompt_tokens)
    assert "saved    at least" in str(report)


def test_where_the_text_does_not_agree_the_rest_is_asked_for_one_by_one() -> None:
    answers = [" Ada\nProfession: poet", " 36", " poet"]
    backend = paid(answers)
    state = together.run(backend=backend)
    assert state.ret_value == (" Ada", " 36", " poet")
    assert [request.name for request in backend.requests] == ["name", "age", "job"]
    assert backend.requests[1].prompt.endswith("Name: Ada\nAge:")
    assert backend.requests[1].sampling.stop == ("\n",)
    assert state.meta("age").saved_tokens == 0


def test_an_answer_that_the_model_ends_early_ends_its_generation_and_no_other() -> None:
    backend = paid([" Ada\nAge: 36", " poet"])
    state = together.run(backend=backend)
    assert state.ret_value == (" Ada", " 36", " poet")
    assert state.meta("age").stop is None
    assert backend.num_requests == 2


def test_a_value_that_the_call_s_budget_cut_is_asked_for_again() -> None:
    backend = paid([" Ada\nAge: 36 years and some", " 36 years", " poet"])
    program = together.using(sampling=ft.Sampling(max_tokens=1))
    assert program.run(backend=backend).ret_value[0] == " Ada"
    assert [request.name for request in backend.requests] == ["name", "age", "job"]
    cut_at_once = paid([" Ada and some more of her names", " Ada", " 36", " poet"])
    assert program.run(backend=cut_at_once).ret_value == (" Ada", " 36", " poet")
    assert cut_at_once.num_requests == 4


def test_statements_of_one_turn_are_asked_for_together() -> None:
    @ft.function(api_speculation=True)
    def program(s):
        with s.assistant():
            s += "Name:" + gen("name", stop="\n")
            s += "\nAge:"
            s += gen("age", stop="\n")
        s += "End."

    backend = paid(model)
    state = program.run(backend=backend)
    assert backend.num_requests == 1
    assert state.text() == "Name: Ada\nAge: 36End."


def test_reading_a_value_asks_for_what_there_is() -> None:
    @ft.function(api_speculation=True)
    def program(s):
        s += "Name:" + gen("name", stop="\n")
        seen = s["name"]
        s += "\nAge:" + gen("age", stop="\n")
        return seen, s["age"]

    backend = paid(model)
    assert program.run(backend=backend).ret_value == (" Ada", " 36")
    assert backend.num_requests == 2


async def test_an_async_body_and_a_stream_get_the_same() -> None:
    @ft.function(api_speculation=True)
    async def program(s):
        s += "Name:" + gen("name", stop="\n") + "\nAge:" + gen("age", stop="\n")
        return await s.aget("age")

    backend = paid(model)
    assert (await program.arun(backend=backend)).ret_value == " 36"
    state = together.stream(backend=backend)
    assert [piece async for piece in state.text_async_iter("age")] == [" 36"]
    assert "".join(together.stream(backend=backend).text_iter()) == alone.run(backend=paid(model)).text()
    assert backend.num_requests == 3


def test_branches_bind_and_map_speculate_each_for_itself() -> None:
    @ft.function(api_speculation=True)
    def program(s, *, title, end):
        s += f"{title} "
        left, right = s.fork(2)
        left += "Name:" + gen("name", stop="\n") + "\nAge:" + gen("age", stop="\n")
        right += "Age:" + gen("years", stop="\n") + "\nJob:" + gen("job", stop="\n")
        s.join(left, right)
        s += f"{end}"
        return s["name"], s["age"], s["years"], s["job"]

    backend = paid(model)
    results = program.bind(end="!").using(backend=backend).map([{"title": f"No. {i}"} for i in range(5)])
    assert {result.value for result in results} == {(" Ada", " 36", " 36", " poet")}
    assert backend.num_requests == 10


def test_a_program_called_inside_another_speculates_by_its_own_word() -> None:
    @ft.function
    def outer(s):
        inner = together()
        s += "Name:" + gen("name", stop="\n") + "\nAge:" + gen("age", stop="\n")
        return inner["job"], s["age"]

    backend = paid(model)
    assert outer.run(backend=backend).ret_value == (" poet", " 36")
    assert backend.num_requests == 1 + 2


def test_a_traced_program_speculates_as_its_function_does() -> None:
    backend = paid(model)
    traced = together.trace()
    state = traced.run(backend=backend)
    assert state.ret_value == (" Ada", " 36", " poet")
    assert state.text() == alone.run(backend=paid(model)).text()
    assert backend.num_requests == 1
    assert ft.explain_run(state).saved_tokens == 2 * state.meta("name").prompt_tokens > 0
    again = ft.Program.from_json(traced.to_json())
    assert again.run(backend=backend).meta("job").saved_tokens > 0
    assert alone.trace().run(backend=paid(model)).meta("job").saved_tokens == 0


async def test_a_traced_program_speculates_in_branches_maps_and_streams() -> None:
    @ft.function(api_speculation=True)
    def program(s, title, *, end):
        s += f"{title} "
        left, right = s.fork(2)
        left += "Name:" + gen("name", stop="\n") + "\nAge:" + gen("age", stop="\n")
        right += "Age:" + gen("years", stop="\n") + "\nJob:" + gen("job", stop="\n")
        s.join(left, right)
        s += f"{end}"
        return s["name"], s["age"], s["years"], s["job"]

    traced = program.bind(end="!").trace()
    backend = paid(model)
    results = traced.map([{"title": f"No. {i}", "backend": backend} for i in range(5)])
    assert {result.value for result in results} == {(" Ada", " 36", " 36", " poet")}
    assert backend.num_requests == 10
    assert (await traced.arun(title="?", backend=backend)).ret_value == (" Ada", " 36", " 36", " poet")
    assert list(traced.stream(title="?", backend=backend).text_iter("job")) == [" poet"]
    assert backend.num_requests == 14


def test_a_finished_state_can_be_appended_to() -> None:
    backend = paid(model)
    for state in (together.run(backend=backend), together.stream(backend=backend).settle()):
        state += "Name:" + gen("again", stop="\n")
        assert state["again"] == " Ada"


def test_a_failing_call_fails_every_value_with_the_real_error() -> None:
    state = together.stream(backend=paid([BackendError("down")]))
    for name in ("name", "age", "job"):
        with pytest.raises(BackendError, match="down"):
            state[name]


def test_a_backend_with_token_ids_needs_none_of_it() -> None:
    backend = Fake(model)
    assert together.run(backend=backend).ret_value == (" Ada", " 36", " poet")
    assert backend.num_requests == 3


def test_sglangs_name_bounds_the_call() -> None:
    backend = paid(model)
    ft.function(num_api_spec_tokens=99)(sheet).run(backend=backend)
    assert backend.requests[0].sampling.max_tokens == 99


def test_a_recording_replays(tmp_path) -> None:
    path = tmp_path / "run.jsonl"
    with ft.Replay(path, paid(model)) as recording:
        first = together.run(backend=recording)
    assert together.run(backend=ft.Replay(path)).ret_value == first.ret_value


A, B = ("\n",), (".",)


@pytest.mark.parametrize(
    ("answer", "is_whole", "parts"),
    [
        ("a\nX:b.c", True, [Part("a", "\n"), Part("b", ".")]),
        ("a\nX:b", True, [Part("a", "\n"), Part("b", None)]),
        ("a\nX:b", False, [Part("a", "\n")]),
        ("a\nY:b.", True, [Part("a", "\n")]),
        ("a", True, [Part("a", None)]),
        ("a", False, []),
        ("", True, [Part("", None)]),
        ("\nX:.", True, [Part("", "\n"), Part("", ".")]),
    ],
)
def test_an_answer_is_split_at_each_stop(answer, is_whole, parts) -> None:
    assert split(answer, is_whole, Group(ft.Sampling(), (A, B), ("\nX:",))) == parts


@pytest.mark.parametrize(
    "behind",
    [
        [],
        [ir.Text("t")],
        [gen("y", stop="\n")],
        [ir.Text("t"), gen("y", dtype=int)],
        [ir.Text("t"), gen("y", stop="\n", temperature=1.0)],
        [ir.Text("t"), gen("y", n=2)],
        [ir.Text("t", markup=True), gen("y")],
        [ir.RoleEnd("user"), ir.Text("t"), gen("y")],
    ],
)
def test_what_cannot_share_a_call_does_not(behind) -> None:
    assert group_of(gen("x", stop="\n"), behind, None, Speculation()) is None
    assert group_of(gen("x"), [ir.Text("t"), gen("y")], None, Speculation()) is None  # nothing tells where x ends


@settings(max_examples=100, deadline=None)
@given(st.text("ab\n.", max_size=12), st.booleans())
def test_a_split_is_what_separate_calls_would_keep(answer, is_whole) -> None:
    """Values and fixed text, put together again, are a beginning of the answer."""
    group = Group(ft.Sampling(), (A, B, ("a",)), ("\nb", ".a"))
    parts = split(answer, is_whole, group)
    texts = [part.text for part in parts]
    assert answer.startswith("".join(text + fixed for text, fixed in zip(texts[:-1], group.texts, strict=False)))
    for part, stops in zip(parts, group.stops, strict=False):
        assert not any(stop in part.text for stop in stops)
