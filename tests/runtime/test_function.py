"""`@function`: every kind of Python function, run in every way."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import subprocess
import sys
import threading

import pytest

from forktree.backend.fake import Fake
from forktree.lang.errors import LanguageError, RunCancelledError
from forktree.lang.expressions import gen
from forktree.lang.sampling import Sampling
from forktree.runtime.defaults import Defaults, get_defaults, use
from forktree.runtime.function import Function, function


def text_of(program: Function, *args, **kwargs) -> str:
    return program.run(*args, backend=Fake(lambda request: "!"), **kwargs).text()


@function
def module_level(state, name, greeting="Hello", *, end="."):
    """Says hello."""
    state += f"{greeting} {name}{end}"
    return name


def test_defaults_keyword_only_and_a_first_parameter_of_any_name() -> None:
    assert text_of(module_level, "Ada") == "Hello Ada."
    assert text_of(module_level, "Ada", "Bye", end="!") == "Bye Ada!"
    assert text_of(module_level, name="Ada") == "Hello Ada."


def test_positional_only_variadic_and_any_keywords() -> None:
    @function
    def program(s, a, /, *rest, **options):
        s += f"{a}{rest}{sorted(options.items())}"

    assert text_of(program, 1, 2, 3, x=4) == "1(2, 3)[('x', 4)]"


def test_a_method_sees_its_own_self() -> None:
    class Agent:
        def __init__(self, name: str) -> None:
            self.name = name

        @function
        def ask(self, s, question):
            s += f"{self.name}: {question}"

    first, second = Agent("A"), Agent("B")
    assert text_of(first.ask, "x") == "A: x"
    assert text_of(second.ask, question="y") == "B: y"
    assert text_of(second.ask.bind(question="z")) == "B: z"


def test_a_closure_and_a_lambda_s_value_are_programs_too() -> None:
    prefix = "p"

    @function
    def inner(s):
        s += prefix

    assert text_of(inner) == "p"
    assert text_of(function(lambda s, x: s.__iadd__(x) and None), "v") == "v"


def test_name_doc_and_signature_are_kept() -> None:
    assert module_level.__name__ == "module_level"
    assert module_level.__doc__ == "Says hello."
    assert list(inspect.signature(module_level).parameters) == ["state", "name", "greeting", "end"]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [((), {}, "'name'"), (("a",), {"nmae": "x"}, "'nmae'"), (("a", "b", "c"), {}, "positional")],
)
@pytest.mark.parametrize("way", ["run", "stream", "arun"])
async def test_arguments_that_do_not_fit_are_a_type_error_before_any_request(args, kwargs, message, way) -> None:
    fake = Fake(lambda request: "x")
    program = module_level.using(backend=fake)

    async def start() -> None:
        started = getattr(program, way)(*args, **kwargs)
        if way == "arun":
            await started

    with pytest.raises(TypeError, match=message):
        await start()
    assert fake.num_requests == 0


def test_bound_arguments_may_be_given_again() -> None:
    bound = module_level.bind(name="Ada", greeting="Hi")
    assert text_of(bound) == "Hi Ada."
    assert text_of(bound, greeting="Yo") == "Yo Ada."
    assert text_of(module_level, "Bo") == "Hello Bo."


def test_binding_an_unknown_parameter_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="no parameter 'nmae'"):
        module_level.bind(nmae="x")


def test_a_parameter_named_like_a_run_option_is_the_program_s() -> None:
    fake = Fake(lambda request: "x")

    @function
    def program(s, seed, backend):
        s += f"{seed} {backend}" + gen("x")

    state = program.using(backend=fake, seed=7).run(seed="mine", backend="too")
    assert state.text() == "mine toox"
    assert fake.requests[0].sampling.seed == 7


def test_using_leaves_the_original_as_it_was() -> None:
    fake = Fake(lambda request: "x")

    @function
    def program(s):
        s += gen("x")

    hot = program.using(backend=fake, sampling=Sampling(temperature=0.9))
    program.using(backend=fake).run()
    hot.run()
    assert [request.sampling.temperature for request in fake.requests] == [None, 0.9]


def test_calling_outside_a_program_is_an_error_that_names_run() -> None:
    with pytest.raises(LanguageError, match=r"module_level\.run\(\.\.\.\)"):
        module_level("Ada")


@pytest.mark.parametrize("wrong", [5, str, print])
def test_only_functions_can_be_programs(wrong) -> None:
    with pytest.raises(LanguageError, match="def or async def"):
        function(wrong)


def test_a_function_without_a_state_parameter_is_refused() -> None:
    with pytest.raises(LanguageError, match="no parameter for the state"):

        @function
        def program():
            pass


def test_a_generator_is_refused() -> None:
    with pytest.raises(LanguageError, match="is a generator"):

        @function
        def program(s):
            yield s


# Pickling


def test_a_module_level_program_pickles_by_reference_and_its_versions_keep_their_arguments() -> None:
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    bound = pickle.loads(pickle.dumps(module_level.bind(name="Ada")))
    assert text_of(bound) == "Hello Ada."


def test_copies_are_the_program_itself() -> None:
    assert copy.deepcopy(module_level) is module_level
    assert copy.copy(module_level) is module_level


def test_a_nested_program_cannot_be_pickled_and_the_error_says_why() -> None:
    @function
    def program(s):
        pass

    with pytest.raises(pickle.PicklingError, match="not a global of"):
        pickle.dumps(program)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_program_runs_in_a_process_pool(method, tmp_path) -> None:
    (tmp_path / "pooled.py").write_text(
        "from forktree.backend.fake import Fake\n"
        "from forktree.lang.expressions import gen\n"
        "from forktree.runtime.function import function\n"
        "@function\n"
        "def program(s, x):\n"
        "    s += x + gen('y')\n"
        "    return s['y']\n"
        "def run(program, x):\n"
        "    return program.run(x, backend=Fake(['1'])).text()\n"
    )
    script = (
        "import multiprocessing, pooled\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "if __name__ == '__main__':\n"
        "    assert pooled.run(pooled.program, 'here') == 'here1'\n"
        f"    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context({method!r})) as pool:\n"
        "        print(pool.submit(pooled.run, pooled.program, 'there').result(timeout=60))\n"
    )
    (tmp_path / "main.py").write_text(script)
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "there1", done.stderr


# Async


async def test_an_async_program_reads_with_aget() -> None:
    @function
    async def program(s, q):
        s += q + gen("a")
        return await s.aget("a")

    assert (await program.arun("x", backend=Fake(["1"]))).ret_value == "1"


def test_an_async_program_runs_from_synchronous_code() -> None:
    @function
    async def program(s):
        s += gen("a")
        value = await s.aget("a")
        s += gen("b")
        await s.asettle()
        return value, s.text()

    assert program.run(backend=Fake(["1", "2"])).ret_value == ("1", "12")


@pytest.mark.parametrize("read", [lambda s: s["a"], lambda s: "a" in s, lambda s: s.text(), lambda s: s.variables()])
def test_blocking_inside_an_async_program_is_an_error_that_names_the_await(read) -> None:
    fake = Fake(["late"])
    fake.hold()

    @function
    async def program(s):
        s += gen("a")
        try:
            read(s)
        finally:
            fake.release()

    with pytest.raises(LanguageError, match=r"await s\.a"):
        program.run(backend=fake)


def test_a_value_that_is_there_may_be_read_directly_in_an_async_program() -> None:
    @function
    async def program(s):
        s += gen("a")
        await s.aget("a")
        return s["a"], "a" in s

    assert program.run(backend=Fake(["1"])).ret_value == ("1", True)


async def test_a_synchronous_program_is_awaitable_from_any_loop() -> None:
    @function
    def program(s):
        s += gen("a")
        return s["a"]

    states = await asyncio.gather(*(program.arun(backend=Fake(["1"])) for _ in range(20)))
    assert [state.ret_value for state in states] == ["1"] * 20


async def test_cancelling_the_awaiting_task_cancels_the_run() -> None:
    fake = Fake(["never"])
    fake.hold()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    @function
    def program(s):
        s += gen("a")
        loop.call_soon_threadsafe(started.set)
        try:
            s["a"]
        except RunCancelledError:
            seen.append("cancelled")
            loop.call_soon_threadsafe(ended.set)
            raise

    seen: list[str] = []
    ended = asyncio.Event()
    task = asyncio.ensure_future(program.arun(backend=fake))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ended.wait()
    assert seen == ["cancelled"]


async def test_an_async_body_that_waits_for_the_world_is_cancelled_with_its_run() -> None:
    started, ended = threading.Event(), threading.Event()

    @function
    async def program(s):
        started.set()
        try:
            await asyncio.Event().wait()  # for ever
        finally:
            ended.set()

    state = program.stream(backend=Fake([]))
    assert started.wait(10)
    state.cancel()
    assert ended.wait(10)
    with pytest.raises(RunCancelledError):
        await state.aget("x")


def test_run_inside_an_async_program_names_arun() -> None:
    @function
    async def program(s):
        module_level.run("Ada")

    with pytest.raises(LanguageError, match=r"await module_level\.arun"):
        program.run(backend=Fake([]))


# Defaults


def test_the_default_backend_is_made_once_when_first_needed() -> None:
    made: list[Fake] = []

    def factory() -> Fake:
        made.append(Fake([]))
        return made[-1]

    defaults = Defaults()
    defaults.set_factory(factory)
    assert defaults.backend() is defaults.backend()
    assert len(made) == 1


def test_use_sets_the_default_backend_and_refuses_what_is_none() -> None:
    fake = Fake(["x"])

    @function
    def program(s):
        s += gen("x")

    use(fake)
    try:
        program.run()
    finally:
        get_defaults().use(None)
    assert fake.num_requests == 1
    with pytest.raises(LanguageError, match="is not a backend"):
        use("gpt")


def test_without_any_backend_the_error_says_what_to_do() -> None:
    with pytest.raises(LanguageError, match=r"ft\.use\(backend\)"):
        Defaults().backend()


def test_using_something_that_is_no_backend_is_refused_at_once() -> None:
    @function
    def program(s) -> None: ...

    with pytest.raises(LanguageError, match="'gpt-4' is not a backend"):
        program.using(backend="gpt-4")
