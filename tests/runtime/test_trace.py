"""Tracing a body, and running what it became."""

from __future__ import annotations

import threading

import pytest
from pydantic import BaseModel

from forktree.backend.fake import Fake
from forktree.lang.errors import LanguageError, RoleError, TraceError, UndefinedVariableError
from forktree.lang.expressions import assistant, gen, select, system, user
from forktree.lang.sampling import Sampling
from forktree.runtime.function import function
from forktree.runtime.programs import Program
from forktree.runtime.trace import SYMBOLIC


class Receipt(BaseModel):
    company: str
    total: float


@function
def read_receipt(s, text, kinds=("food", "fuel", "other")):
    s += system("You read receipts.")
    s += user(f"Receipt:\n{text}\n")
    facts, kind = s.fork(2)
    facts += assistant(gen("receipt", schema=Receipt, max_tokens=160))
    kind += assistant("It is for " + select("kind", kinds))
    s.join(facts, kind)
    s += user(f"{s['receipt'].company} took {s['receipt'].total:.2f} for {s['kind']!r}.")
    return s["receipt"], s["kind"]


SCRIPT = {"receipt": {"company": "Shell", "total": 12.4}, "kind": "fuel"}


def test_golden_a_traced_program_prints_as_it_was_written(golden) -> None:
    golden("read_receipt.txt", str(read_receipt.trace()))


def test_given_arguments_are_constants_and_missing_ones_stay_open() -> None:
    assert read_receipt.trace().parameters == ("text",)
    assert read_receipt.trace("abc").parameters == ()
    assert "abc" in str(read_receipt.trace(text="abc"))


@function
def greets(s, greeting="Hello", *more, name, **rest):
    s += f"{greeting}, {name}{''.join(more)}{''.join(str(value) for value in rest.values())}"


def test_a_default_is_a_constant_unless_it_is_asked_to_stay_open() -> None:
    assert greets.trace().parameters == ("name",)
    assert greets.trace(greeting=SYMBOLIC).parameters == ("greeting", "name")
    assert greets.trace(SYMBOLIC, name="Ann").parameters == ("greeting",)
    assert greets.bind(greeting=SYMBOLIC).trace(name="Ann").parameters == ("greeting",)
    assert greets.trace(name="Ann", end=SYMBOLIC).parameters == ("end",)
    program = greets.trace(greeting=SYMBOLIC, end=SYMBOLIC)
    assert program.run(greeting="Hi", name="Ann", end="!", backend=Fake([])).text() == "Hi, Ann!"


def test_an_argument_that_was_a_constant_when_traced_says_how_to_keep_it_open() -> None:
    with pytest.raises(TypeError, match=r"no parameter 'greeting'; if .* a constant here, .*greeting=ft.SYMBOLIC"):
        greets.trace().run(greeting="Hi", name="Ann", backend=Fake([]))


def test_values_without_a_name_cannot_stay_open() -> None:
    with pytest.raises(TypeError, match=r"\*more cannot stay open"):
        greets.trace("Hi", SYMBOLIC)


@pytest.mark.parametrize("way", ["as traced", "through JSON"])
def test_a_traced_program_does_what_the_body_does(way) -> None:
    program = read_receipt.trace()
    if way == "through JSON":
        program = Program.from_json(program.to_json())
        script = {**SCRIPT}
    else:
        script = SCRIPT
    body_fake, program_fake = Fake(script), Fake(script)
    body = read_receipt.run("Shell 12.40", backend=body_fake)
    if way == "through JSON":  # a JSON program gives plain data, whose keys are followed as attributes
        state = program.run(text="Shell 12.40", backend=program_fake)
        assert state["receipt"] == SCRIPT["receipt"]
    else:
        state = program.run(text="Shell 12.40", backend=program_fake)
        assert state.ret_value == body.ret_value == (Receipt(company="Shell", total=12.4), "fuel")
    assert state.text() == body.text()
    assert state.messages() == body.messages()
    assert state.tokens() == body.tokens()
    assert [request.prompt for request in program_fake.requests] == [request.prompt for request in body_fake.requests]


def test_tracing_sends_nothing_and_runs_the_body_once() -> None:
    calls: list[str] = []

    @function
    def program(s, x):
        calls.append("body")
        s += f"{x}" + gen("a")
        return s["a"]

    fake = Fake([])
    program.using(backend=fake).trace()
    assert calls == ["body"]
    assert fake.num_requests == 0


def test_the_same_body_traces_to_equal_programs() -> None:
    assert read_receipt.trace() == read_receipt.trace()
    assert read_receipt.trace("a") != read_receipt.trace("b")


def test_a_recorded_run_is_a_program_that_replays_the_same_requests() -> None:
    fake = Fake(SCRIPT)
    recorded = read_receipt.run("Shell", backend=Fake(SCRIPT)).program
    recorded.run(backend=fake)
    assert fake.num_requests == 2
    assert recorded == Program.from_json(recorded.to_json())


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda s, x: bool(x), "argument 'x' decides a branch"),
        (lambda s, x: x == "a", "is compared"),
        (lambda s, x: x < 3, "is compared"),
        (lambda s, x: len(x), "len"),
        (lambda s, x: list(x), "iterated"),
        (lambda s, x: int(x), "made an int"),
        (lambda s, x: x.strip(), "is called"),
        (lambda s, x: {x: 1}, "key"),
        (lambda s, x: "a" in x, "searched"),
        (lambda s, x: [1, 2][x], "index"),
        (lambda s, x: s["v"] == "a", "variable 'v' is compared"),
        (lambda s, x: s.text(), "text"),
        (lambda s, x: s.tokens(), "tokens"),
        (lambda s, x: s.meta("v"), "meta"),
        (lambda s, x: list(s.text_iter()), "text_iter"),
    ],
)
def test_what_only_a_run_can_know_is_a_trace_error_with_the_line(what, message) -> None:
    @function
    def program(s, x):
        s += gen("v")
        what(s, x)

    with pytest.raises(TraceError, match=rf"(?s){message}.*test_trace\.py:\d+"):
        program.trace()


def test_text_that_a_string_method_broke_is_noticed() -> None:
    @function
    def program(s, x):
        s += f"a {x}".upper()

    with pytest.raises(TraceError, match="string method"):
        program.trace()


@pytest.mark.parametrize(
    "expr",
    [
        lambda x: select("k", [f"{x}", "b"]),
        lambda x: gen(f"{x}"),
        lambda x: gen("a", stop=f"{x}"),
        lambda x: gen("a", choices=[f"{x}"]),
        lambda x: gen("a", schema={"const": f"{x}"}),
    ],
)
def test_a_symbol_inside_an_option_a_name_or_a_constraint_is_a_trace_error(expr) -> None:
    @function
    def program(s, x):
        s += expr(x)

    with pytest.raises(TraceError, match=r"are known.*test_trace\.py"):
        program.trace()
    assert program.trace("y")


def test_python_values_unroll() -> None:
    @function
    def program(s, names, is_loud):
        for name in names:
            s += f"{name}: " + gen(name)
        if is_loud:
            s += "!"
        s["count"] = len(names)
        for i in range(s["count"]):
            s += f"{i}"

    traced = program.trace(names=["a", "b"], is_loud=True)
    assert traced.run(backend=Fake({"a": "1", "b": "2"})).text() == "a: 1b: 2!01"


def test_every_operation_of_a_state_traces() -> None:
    @function
    def leaf(s, x):
        s += f"leaf {x} " + gen("leaf")
        return s["leaf"]

    @function
    def program(s, x):
        with s.user():
            s += x
        s.system("sys")
        with s.scope("span"):
            s += "in " + x
        with s.copy() as other:
            other += "c" + gen("copied")
        forks = s.fork(["p", "q"])
        forks += lambda i: f"{i}" + gen("forked")
        forks.join()
        s["mine"] = f"<{s['forked'][1]}>"
        s += s["span"] + s["mine"] + leaf(s["copied"])["leaf"] + s.call(leaf, "own")
        return {"all": [s["mine"], s["forked"][0]], "n": 1}

    def script(request):
        return request.prompt[-1].upper()

    body = program.run("x", backend=Fake(script))
    traced = Program.from_json(program.trace().to_json()).run(x="x", backend=Fake(script))
    assert traced.ret_value == body.ret_value
    assert traced.text() == body.text()
    assert traced.messages() == body.messages()


def test_async_bodies_trace_when_they_wait_for_nothing_else() -> None:
    @function
    async def leaf(s):
        s += gen("a")
        return await s.aget("a")

    @function
    async def program(s, x):
        s += f"{x}" + gen("b")
        return await s.aget("b"), await leaf().aget("a"), await s.call(leaf)

    state = program.trace().run(x=1, backend=Fake({"a": "1", "b": "2"}))
    assert state.ret_value == ("2", "1", "1")


def test_an_async_body_that_waits_for_the_world_cannot_be_traced() -> None:
    import asyncio

    @function
    async def program(s):
        await asyncio.sleep(0)

    with pytest.raises(TraceError, match="awaits something"):
        program.trace()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (lambda s: s["never"], UndefinedVariableError),
        (lambda s: s.user(system("x")), RoleError),
        (lambda s: s.__iadd__(5), LanguageError),
    ],
)
def test_the_language_s_own_errors_are_the_same_in_a_trace(body, error) -> None:
    @function
    def program(s):
        body(s)

    with pytest.raises(error):
        program.trace()


def test_another_thread_s_programs_run_while_one_is_being_traced() -> None:
    inside, done = threading.Event(), threading.Event()

    @function
    def slow(s):
        inside.set()
        assert done.wait(10)
        s += "slow"

    @function
    def other(s):
        s += gen("x")
        return s["x"]

    thread = threading.Thread(target=slow.trace)
    thread.start()
    assert inside.wait(10)
    assert other.run(backend=Fake(["1"])).ret_value == "1"
    done.set()
    thread.join(10)


@pytest.mark.parametrize(("arguments", "message"), [({}, r"missing \['text'\]"), ({"text": 1, "x": 2}, "'x'")])
def test_wrong_arguments_of_a_program_are_a_type_error_before_any_request(arguments, message) -> None:
    fake = Fake(SCRIPT)
    with pytest.raises(TypeError, match=message):
        read_receipt.trace().run(backend=fake, **arguments)
    assert fake.num_requests == 0


def test_a_program_maps_streams_and_awaits() -> None:
    @function
    def program(s, x):
        s += f"{x} " + gen("a")
        return s["a"]

    traced = program.trace()
    fake = Fake(lambda request: request.prompt.strip().upper())
    from forktree.runtime.defaults import get_defaults, use

    use(fake)
    try:
        results = traced.map([{"x": f"r{i}"} for i in range(300)] + [{"y": 1}])
    finally:
        get_defaults().use(None)
    assert [result.value for result in results[:-1]] == [f"R{i}" for i in range(300)]
    assert isinstance(results[-1].error, TypeError)
    assert list(traced.stream(x="q", backend=fake).text_iter("a")) == ["Q"]


async def test_a_program_runs_awaited() -> None:
    state = await read_receipt.trace().arun(text="x", backend=Fake(SCRIPT))
    assert state["kind"] == "fuel"


def test_a_failing_generation_of_a_program_is_raised() -> None:
    from forktree.lang.errors import ServerError

    with pytest.raises(ServerError):
        read_receipt.trace().run(text="x", backend=Fake({"receipt": ServerError("down"), "kind": "fuel"}))


def test_a_program_keeps_the_sampling_of_its_function_and_of_those_that_it_calls() -> None:
    @function
    def inner(s):
        s += gen("y", top_k=3)
        return s["y"]

    @function(sampling=Sampling(temperature=0.5, max_tokens=9))
    def outer(s):
        cold = inner.using(sampling=Sampling(temperature=0.0))
        called = cold()
        s += gen("x") + f"{called['y']}"

    traced = outer.trace()
    for program in (traced, type(traced).from_json(traced.to_json())):
        assert program == traced
        by_data, by_body = Fake({"x": "a", "y": "b"}), Fake({"x": "a", "y": "b"})
        program.run(backend=by_data)
        outer.run(backend=by_body)
        for fake in (by_data, by_body):
            asked = {request.name: request.sampling for request in fake.requests}
            assert asked["x"] == Sampling(temperature=0.5, max_tokens=9)
            assert asked["y"] == Sampling(temperature=0.0, max_tokens=9, top_k=3)
    assert str(traced).startswith("program outer() with max_tokens=9 temperature=0.5\n")
    overridden = Fake({"x": "a", "y": "b"})
    traced.run(backend=overridden, sampling=Sampling(max_tokens=2))
    assert {request.sampling.max_tokens for request in overridden.requests} == {2}


def test_a_called_program_s_own_backend_cannot_be_data() -> None:
    inner = function(lambda s: None).using(backend=Fake([]))

    @function
    def outer(s):
        inner()

    with pytest.raises(TraceError, match="its own backend"):
        outer.trace()
