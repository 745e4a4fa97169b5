"""Sampling parameters: checked when made, filled from defaults."""

from __future__ import annotations

import pytest

from forktree.lang.sampling import Sampling


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_tokens", 0, "at least 1, not 0"),
        ("max_tokens", 1.5, "whole number, not 1.5"),
        ("max_tokens", "8", "a number, not '8'"),
        ("max_tokens", True, "a number, not True"),
        ("temperature", -0.1, "at least 0"),
        ("temperature", float("nan"), "not nan"),
        ("temperature", float("inf"), "not inf"),
        ("top_p", 1.1, "between 0 and 1"),
        ("top_k", 2.5, "whole number"),
        ("frequency_penalty", 3, "between -2 and 2"),
        ("repetition_penalty", 0, "at least"),
        ("n", 0, "at least 1"),
        ("seed", 1.0, "whole number"),
        ("stop", "", "non-empty"),
        ("stop", ["a", ""], "non-empty"),
        ("stop", [3], "non-empty strings, not 3"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_field(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Sampling(**{field: value})
    assert field in str(caught.value)


def test_more_tokens_at_least_than_at_most_is_refused() -> None:
    with pytest.raises(ValueError, match=r"min_tokens \(20\) is more than max_tokens \(5\)"):
        Sampling(min_tokens=20, max_tokens=5)


def test_one_stop_string_may_be_bare_and_a_bias_may_be_a_dict() -> None:
    assert Sampling(stop="x").stop == ("x",)
    assert Sampling(logit_bias={7: 1, 3: -2}).logit_bias == ((3, -2.0), (7, 1.0))


def test_logprobs_true_is_the_chosen_token_alone() -> None:
    assert (Sampling(logprobs=True).logprobs, Sampling(logprobs=False).logprobs) == (0, None)


def test_what_is_not_given_comes_from_the_defaults() -> None:
    given = Sampling(temperature=0, stop="x")
    assert given.over(Sampling(temperature=1, top_p=0.5)) == Sampling(temperature=0, stop="x", top_p=0.5)
