"""An argument of the wrong type is refused where it is given: by its name, its value and what would be right."""

from __future__ import annotations

import copy
import pickle

import pytest

from forktree.lang.errors import ConstraintError, LanguageError
from forktree.lang.expressions import gen, image, role, role_begin, role_end, tools
from forktree.lang.sampling import Sampling


def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"stop": 5}, ValueError, "stop must be text or a list of texts, not 5"),
        ({"stop_token_ids": 5}, ValueError, r"stop_token_ids must be a list of token ids, not 5; write \[5\]"),
        ({"stop_token_ids": ["a"]}, ValueError, r"stop_token_ids must be a list of token ids, not \['a'\]"),
        ({"logit_bias": [1]}, ValueError, r"logit_bias must be a dict from token id to a number, not \[1\]"),
        ({"logit_bias": {"x": 1}}, ValueError, "logit_bias must be a dict"),
        ({"ignore_eos": "no"}, ValueError, "ignore_eos must be True or False, not 'no'"),
        ({"heal": "no"}, LanguageError, "heal must be True or False, not 'no'"),
        ({"stop_regex": "("}, ConstraintError, r"stop_regex= '\(' is not a pattern: missing \)"),
        ({"stop_regex": 5}, ConstraintError, "stop_regex= takes a pattern as text, not 5"),
        ({"regex": 5}, ConstraintError, "regex= takes a pattern as text, not 5"),
        ({"schema": 5}, LanguageError, "5 is not a schema: give a dict"),
        ({"grammar": 5}, LanguageError, "grammar= takes text, not 5"),
        ({"tools": add}, LanguageError, r"tools= takes a list of tools, not one tool; write tools=\[add\]"),
        ({"tools": {"name": "x"}}, LanguageError, "tools= takes a list of tools, not one tool"),
        ({"tools": 5}, LanguageError, "tools= takes a list of functions or schemas, not 5"),
    ],
)
def test_gen_refuses_an_argument_of_the_wrong_type(options, error, message) -> None:
    with pytest.raises(error, match=message):
        gen("a", **options)


def test_tools_refuses_one_function_and_names_the_list() -> None:
    with pytest.raises(LanguageError, match=r"tools\(\) takes a list of tools, not one tool; write tools\(\[add\]\)"):
        tools(add)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [role, role_begin, role_end])
def test_a_role_is_named_by_text(make) -> None:
    with pytest.raises(LanguageError, match="a role is named by text such as 'user', not 5"):
        make(5)


def test_an_image_is_bytes_or_a_path() -> None:
    with pytest.raises(LanguageError, match="image\\(\\) takes encoded bytes or a file's path, not 5"):
        image(5)  # type: ignore[arg-type]


def test_a_budget_to_close_by_needs_a_constraint_on_the_same_gen() -> None:
    with pytest.raises(LanguageError, match='on_budget="close" ends a constraint in time, and this gen has none'):
        gen("a", max_tokens=5, on_budget="close")
    assert gen("a", regex="a+", on_budget="close").on_budget == "close"


def test_sampling_checks_its_pattern_and_still_copies_and_pickles() -> None:
    with pytest.raises(ValueError, match=r"stop_regex '\(' is not a pattern"):
        Sampling(stop_regex="(")
    given = Sampling(stop="a", logit_bias={3: 1}, n=2)
    assert copy.copy(given) == pickle.loads(pickle.dumps(given)) == given
