"""A keyword that nobody knows is refused by its name, with the one that was meant."""

from __future__ import annotations

import pytest

from forktree.backend.fake import Fake
from forktree.backend.local import Local
from forktree.lang.errors import LanguageError
from forktree.lang.expressions import gen, gen_int, select
from forktree.lang.keywords import did_you_mean, keyword_checked, unknown_keyword
from forktree.lang.sampling import Sampling


def test_what_was_meant_is_named_only_where_it_is_like_the_unknown() -> None:
    assert did_you_mean("max_token", ["n", "max_tokens"]) == "; did you mean 'max_tokens'?"
    assert did_you_mean("zzz", ["n", "max_tokens"]) == ""
    assert unknown_keyword("f", "b", ["ab", "c"]) == "f has no parameter 'b'; did you mean 'ab'? (it takes ab, c)"


def test_a_checked_function_keeps_its_name_and_raises_the_error_that_was_asked_for() -> None:
    @keyword_checked(LanguageError)
    def pair(left: int, *, right: int = 2) -> tuple[int, int]:
        return left, right

    assert (pair(1, right=3), pair.__name__) == ((1, 3), "pair")
    with pytest.raises(LanguageError, match=r"pair\(\) has no parameter 'rigth'; did you mean 'right'\?"):
        pair(1, rigth=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("make", "given", "meant", "error"),
    [
        (gen, "max_token", "max_tokens", LanguageError),
        (gen, "temprature", "temperature", LanguageError),
        (gen, "shema", "schema", LanguageError),
        (gen_int, "temprature", "temperature", LanguageError),
        (select, "metod", "method", LanguageError),
        (Sampling, "max_token", "max_tokens", TypeError),
        (Local, "modle", "model", TypeError),
        (Fake, "scrpt", "script", TypeError),
    ],
)
def test_a_misspelt_keyword_is_answered_with_the_right_one(make, given, meant, error) -> None:
    with pytest.raises(error, match=f"no parameter '{given}'; did you mean '{meant}'"):
        make(**{given: 1})


def test_gen_lists_constraints_and_sampling_parameters_and_names_the_line() -> None:
    with pytest.raises(LanguageError, match=r"regex, choices, .*max_tokens, .*temperature.*test_keywords\.py:"):
        gen("a", zzz=1)
