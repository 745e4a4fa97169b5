"""What a newcomer gets wrong is answered with the thing, the value seen and the fix."""

from __future__ import annotations

import pytest

import forktree as ft
from forktree.lang.errors import ConstraintError, LanguageError, UndefinedVariableError


@ft.function
def ask(s, question="?"):
    s += question + ft.gen("answer", max_tokens=5)
    return s["answer"]


def fake() -> ft.Fake:
    return ft.Fake({"answer": "yes", "a": "1", "b": "2"})


def fail(body):
    """The error of a program with this body."""

    @ft.function
    def program(s):
        return body(s)

    with pytest.raises(Exception) as caught:  # noqa: PT011 (each test looks at it)
        program.run(backend=fake())
    return caught.value


# Backends


class Mine:
    """No backend."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (ft.Local, r"Local is a class, .*write ft\.Local\(\)"),
        (ft.Fake, r"Fake is a class, .*write ft\.Fake\(script\)"),
        (Mine, r"Mine is a class, .*write Mine\(\)"),
        (5, r"5 is not a backend; give ft\.Local\(\)"),
    ],
)
def test_what_is_no_backend_is_refused_wherever_one_is_given(given, message) -> None:
    places = (
        lambda: ft.use(given),
        lambda: ask.using(backend=given),
        lambda: ask.run(backend=given),
        lambda: ask.stream(backend=given),
        lambda: ask.explain([()], backend=given),
        lambda: ask.trace("?").run(backend=given),
        lambda: ft.function(backend=given)(ask.fn),
        lambda: ft.get_server_info(given),
    )
    for place in places:
        with pytest.raises(LanguageError, match=message):
            place()


# Options of a run


def test_using_and_a_program_s_run_take_sampling_parameters_as_run_does() -> None:
    assert ask.using(temperature=0, seed=3).options.sampling == ft.Sampling(temperature=0, seed=3)
    assert ask.using(sampling=ft.Sampling(n=1, temperature=1), temperature=0).options.sampling.temperature == 0
    for run in (ask.run, ask.using(temperature=0).run, ask.trace("?").run):
        backend = fake()
        run(backend=backend, temperature=0)
        assert backend.requests[0].sampling.temperature == 0


def test_a_parameter_of_the_program_comes_before_a_sampling_parameter() -> None:
    @ft.function
    def warm(s, temperature):
        s += f"{temperature}" + ft.gen("answer")

    backend = fake()
    warm.run(temperature=3, backend=backend)
    warm.trace().run(temperature=3, backend=backend)
    assert [(each.prompt, each.sampling.temperature) for each in backend.requests] == [("3", None)] * 2


@pytest.mark.parametrize("verb", ["run", "using", "stream"])
def test_a_misspelt_option_is_answered_with_the_right_one(verb) -> None:
    with pytest.raises(TypeError, match=r"'temprature'.*did you mean 'temperature'"):
        getattr(ask, verb)(temprature=0, backend=fake())


@pytest.mark.parametrize("verb", ["map", "imap", "amap", "aimap"])
def test_a_map_says_where_the_options_of_a_run_go(verb) -> None:
    with pytest.raises(TypeError, match=rf"write ask\.using\(backend=…\)\.{verb}\(rows\)"):
        getattr(ask, verb)([()], backend=fake())
    with pytest.raises(TypeError, match=r"give it in each row, as \{'seed': …\}"):
        getattr(ask.trace("?"), verb)([()], seed=3)
    with pytest.raises(TypeError, match="'concurency'; did you mean 'concurrency'"):
        getattr(ask, verb)([()], concurency=3)
    with pytest.raises(TypeError, match="name the others: concurrency="):
        getattr(ask, verb)([()], 3)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([1, 2], r"row 0 is a dict of arguments or a tuple, not 1; write \(1,\)"),
        ({"question": "?"}, r"a list of rows, not one row; write \[\{'question': '\?'\}\]"),
        ("ab", "a map takes a list of rows, each a dict of arguments or a tuple, not 'ab'"),
        (5, "a map takes a list of rows, each a dict of arguments or a tuple, not 5"),
    ],
)
def test_rows_of_the_wrong_shape_are_refused(rows, message) -> None:
    for verb in (ask.using(backend=fake()).map, lambda rows: list(ask.using(backend=fake()).imap(rows))):
        with pytest.raises(LanguageError, match=message):
            verb(rows)


def test_options_of_a_map_are_checked() -> None:
    with pytest.raises(LanguageError, match=r"journal= takes a file's path or ft\.Journal\(path\), not 5"):
        ask.map([()], journal=5)
    with pytest.raises(ValueError, match="concurrency must be a whole number of at least 1, not '4'"):
        ask.map([()], concurrency="4")
    for wrong in (0, True):
        with pytest.raises(LanguageError, match=r"concurrency.*\(at .*test_mistakes\.py:\d+\)$"):
            ask.map([()], concurrency=wrong)


def test_a_fork_of_no_branch_is_an_error_of_the_language_and_of_the_value() -> None:
    error = fail(lambda s: s.fork(0))
    assert isinstance(error, ft.ParameterError)
    assert isinstance(error, ValueError)
    assert "test_mistakes.py" in str(error)


def test_a_bound_of_the_cache_s_folder_needs_the_folder() -> None:
    with pytest.raises(ValueError, match=r"cache_bytes=5 bounds the folder of cache_dir=, and none is given"):
        ft.Local(cache_bytes=5)


# Reading and appending


def test_a_forgotten_join_names_the_branch_and_the_fork_s_line() -> None:
    def body(s):
        _, second = s.fork(2)
        second += ft.gen("b")
        return s["b"]

    error = fail(body)
    assert isinstance(error, UndefinedVariableError)
    assert "branch 1 of the fork (at " in str(error)
    assert "read branch['b'] there, or bring it back with s.join(*branches)" in str(error)


def test_a_name_that_another_branch_sets_is_told_from_one_that_nobody_sets() -> None:
    def sibling(s):
        first, second = s.fork(2)
        second += ft.gen("b")
        return first["b"]

    assert "another branch or program sets it" in str(fail(sibling))


def test_a_gen_that_was_never_appended_is_explained() -> None:
    def body(s):
        ft.gen("a")
        return s["a"]

    assert "once it is appended: s += ft.gen('a')" in str(fail(body))


def test_a_misspelt_variable_is_answered_with_the_right_one() -> None:
    def body(s):
        s += ft.gen("answer")
        return s["anwser"]

    assert "did you mean 'answer'?" in str(fail(body))


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (lambda s: s.join(s.fork(2)[:]), LanguageError, "not in a list; write join(*branches)"),
        (lambda s: s.fork(2.0), LanguageError, "not 2.0; write 2"),
        (lambda s: s.fork("ab"), LanguageError, "not one text; write list('ab')"),
        (lambda s: s.fork(None), LanguageError, "a whole number of branches or a list"),
        (lambda s: s.fork(ft.gen("a")), LanguageError, "not one expression; write [expr]"),
        (lambda s: s.fork(2)["a"], LanguageError, "forks[0]['a']"),
        (lambda s: list(s), LanguageError, "s.text_iter() gives its text as it is made"),
        (lambda s: s + "a", LanguageError, "write s += expr"),
        (lambda s: s[1], UndefinedVariableError, "read by its name, not by 1"),
        (lambda s: s.scope(5), LanguageError, "scope takes a variable's name as non-empty text, not 5"),
        (lambda s: s.call(ask.fn), LanguageError, "s.call takes a program"),
        (lambda s: s.answer, AttributeError, "a variable is read as s['answer']"),
    ],
)
def test_a_wrong_use_of_a_state_names_the_right_one(body, error, message) -> None:
    found = fail(body)
    assert isinstance(found, error)
    assert message in str(found)


def test_a_stream_is_iterated_with_its_verbs() -> None:
    state = ask.stream(backend=fake())
    with pytest.raises(LanguageError, match=r"s\.text_iter\(\)"):
        iter(state)
    with pytest.raises(LanguageError, match=r"s\.text_async_iter\(\)"):
        aiter(state)
    assert list(state.text_iter("answer")) == ["yes"]


def test_a_program_is_told_from_its_state() -> None:
    with pytest.raises(LanguageError, match=r"write ask\.run\(…\)\['answer'\]"):
        ask["answer"]
    with pytest.raises(LanguageError, match=r"ask\.stream\(…\)\.text_iter\(\)"):
        iter(ask)


# Constraints that only a run refuses


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": {"type": "strng"}}, "'strng' (at /type)"),
        ({"grammar": "start: foo"}, "Rule 'foo' used but not defined"),
    ],
)
def test_a_constraint_that_is_refused_at_a_run_names_the_generation_and_its_line(options, message) -> None:
    def body(s):
        s += ft.gen("a", **options)

    error = fail(body)
    assert isinstance(error, ConstraintError)
    assert message in str(error)
    assert "in gen('a') of program (at " in str(error)
    assert "test_mistakes.py:" in str(error)
    assert "gen('a')" not in error.reason
