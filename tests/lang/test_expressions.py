"""What the constructors accept, and what they refuse at the line that wrote it."""

from __future__ import annotations

import pytest

from forktree.lang import ir
from forktree.lang.constraints import ChoicesSpec, GrammarSpec, RegexSpec, SubstringSpec
from forktree.lang.errors import ConstraintError, LanguageError
from forktree.lang.expressions import (
    assistant,
    gen,
    gen_int,
    gen_string,
    image,
    markup,
    role,
    select,
    system,
)
from forktree.lang.sampling import Sampling


def test_plus_joins_text_and_expressions_in_order() -> None:
    joined = "a" + gen("x") + "b" + gen("y")
    assert [type(node) for node in joined.items] == [ir.Text, ir.Gen, ir.Text, ir.Gen]


def test_a_sum_can_be_extended_without_changing_it() -> None:
    first = "a" + gen("x")
    second = first + "b"
    assert len(first.items) == 2
    assert len(second.items) == 3


@pytest.mark.parametrize("wrong", [5, None, ["a"]])
def test_plus_with_what_is_no_text_is_an_error_at_the_line(wrong) -> None:
    with pytest.raises(LanguageError, match=r"test_expressions\.py"):
        gen("x") + wrong
    with pytest.raises(LanguageError):
        wrong + gen("x")


def test_nodes_know_the_line_that_wrote_them_and_equality_does_not_look_at_it() -> None:
    one = gen("x")
    two = gen("x")
    assert one.source is not None
    assert one.source.file == __file__
    assert two.source.line == one.source.line + 1
    assert one == two


def test_what_is_given_is_kept_and_what_is_not_is_none() -> None:
    node = gen("x", max_tokens=3, stop=".", temperature=0)
    assert node.sampling == Sampling(max_tokens=3, stop=(".",), temperature=0)
    assert gen("x").sampling == Sampling()


@pytest.mark.parametrize(
    ("keyword", "spec"),
    [
        ({"regex": "a+"}, RegexSpec("a+")),
        ({"choices": ["a", "b"]}, ChoicesSpec(("a", "b"))),
        ({"grammar": "start: WORD"}, GrammarSpec("start: WORD")),
        ({"substring_of": "text"}, SubstringSpec("text")),
        ({"constraint": RegexSpec("b")}, RegexSpec("b")),
    ],
)
def test_each_constraint_becomes_its_specification(keyword, spec) -> None:
    assert gen("x", **keyword).output.spec == spec


class Carrier:
    """Like `ft.Regex`: it carries a specification."""

    spec = RegexSpec("c")


@pytest.mark.parametrize("keyword", ["regex", "schema", "constraint", "dtype", "choices"])
def test_a_constraint_object_fits_every_constraint_keyword(keyword) -> None:
    assert gen("x", **{keyword: Carrier()}).output.spec == RegexSpec("c")


def test_two_constraints_are_refused_by_name() -> None:
    with pytest.raises(LanguageError, match=r"one constraint, not regex and dtype.*test_expressions"):
        gen("x", regex="a", dtype=int)


def test_an_unknown_keyword_is_refused_and_the_constraints_are_listed() -> None:
    with pytest.raises(LanguageError, match=r"no parameter 'regx'.*regex, choices"):
        gen("x", regx="a")


def test_a_broken_pattern_is_refused_with_its_position() -> None:
    with pytest.raises(ConstraintError) as caught:
        gen("x", regex="ab(")
    assert caught.value.pointer == "position 2"
    with pytest.raises(ConstraintError):
        gen("x", stop_regex="[")


@pytest.mark.parametrize("options", [[], "abc", 5, None, [1, 2]])
def test_options_are_a_list_of_at_least_one_text(options) -> None:
    with pytest.raises(LanguageError, match="option"):
        select("x", options)


@pytest.mark.parametrize("name", ["", 5, b"x"])
def test_a_name_is_non_empty_text(name) -> None:
    with pytest.raises(LanguageError, match="name"):
        gen(name)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("max_tokens", 0), ("temperature", -1), ("top_p", 1.5), ("n", 0), ("stop", [""]), ("top_k", "many")],
)
def test_sampling_out_of_range_is_a_value_error_that_names_the_parameter(parameter, value) -> None:
    with pytest.raises(ValueError, match=parameter):
        gen("x", **{parameter: value})


@pytest.mark.parametrize(
    "wrong",
    [
        *({"max_tokens": value} for value in (0, -1, "5", 2.5, True)),
        {"temperature": float("nan")},
        {"stop": ""},
        {"seed": "x"},
        {"min_tokens": 9, "max_tokens": 3},
    ],
)
def test_a_parameter_out_of_range_is_an_error_of_the_language_that_names_the_generation_and_its_line(wrong) -> None:
    with pytest.raises(LanguageError, match=rf"^gen\('x'\): {next(iter(wrong))}.*\(at .*test_expressions\.py:\d+\)$"):
        gen("x", **wrong)


def test_an_unknown_method_is_refused_and_the_methods_are_listed() -> None:
    with pytest.raises(LanguageError, match=r"'best'.*token_length_normalized"):
        select("x", ["a"], method="best")


def test_an_unknown_budget_policy_is_refused() -> None:
    with pytest.raises(LanguageError, match="on_budget"):
        gen("x", on_budget="drop")


def test_choices_with_a_method_are_scored() -> None:
    assert gen("x", choices=["a", "b"], choices_method="greedy_token_selection") == select(
        "x", ["a", "b"], method="greedy_token_selection"
    )


def test_a_scored_choice_with_another_constraint_is_refused() -> None:
    with pytest.raises(LanguageError, match="choices= alone"):
        gen("x", choices=["a"], regex="a", choices_method="greedy_token_selection")


def test_typed_shorthands_have_sglang_s_default_budget() -> None:
    assert gen_int("x").sampling.max_tokens == 128
    assert gen_int("x").output.kind == "int"
    assert gen_string("x", max_tokens=4).sampling.max_tokens == 4


def test_turns_open_and_close_around_their_content() -> None:
    assert [type(node) for node in assistant("a" + gen("x")).items] == [ir.RoleBegin, ir.Text, ir.Gen, ir.RoleEnd]
    assert [type(node) for node in system().items] == [ir.RoleBegin, ir.RoleEnd]
    assert role("critic", "x").items[0] == ir.RoleBegin("critic")


def test_markup_is_marked_and_plain_text_is_not() -> None:
    assert markup("<|im_end|>").markup
    assert not ("<|im_end|>" + gen("x")).items[0].markup
    with pytest.raises(LanguageError, match="markup takes text"):
        markup(5)


def test_an_image_is_read_from_bytes_or_a_file_and_its_type_from_its_bytes(tmp_path) -> None:
    data = b"\x89PNG\r\n\x1a\nrest"
    path = tmp_path / "a.png"
    path.write_bytes(data)
    assert image(path) == image(str(path)) == image(data) == ir.Image(data, "image/png")
    assert image(b"\xff\xd8\xffrest").media_type == "image/jpeg"
    with pytest.raises(LanguageError, match="PNG, JPEG"):
        image(b"text")


def test_an_expression_in_an_f_string_is_an_error_instead_of_its_description() -> None:
    with pytest.raises(LanguageError, match="does not go into an f-string"):
        f"{gen('a')}"


def test_a_dtype_is_a_type() -> None:
    with pytest.raises(LanguageError, match=r"dtype= takes a Python type .*'int'"):
        gen("a", dtype="int")


@pytest.mark.parametrize(
    "write", [lambda: select("x", "ABCD"), lambda: select("x", choices="ABCD"), lambda: gen("x", choices="ABCD")]
)
def test_one_text_is_no_list_of_options_and_the_message_says_how_to_write_one(write) -> None:
    with pytest.raises(LanguageError, match=r"write list\('ABCD'\), if each character is one, or \['ABCD'\]"):
        write()
