"""What goes when a prompt is too long, and what always stays. A token is a word here."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.clients.counting import TURN_TOKENS
from forktree.backend.clients.truncation import checked_truncate, count_tokens, fitted
from forktree.backend.clients.turns import Conversation, text_turn
from forktree.lang.errors import ContextLengthError, UnsupportedError


def count(text: str) -> int:
    return len(text.split())


def words(number: int, word: str = "w") -> str:
    return " ".join(f"{word}{i}" for i in range(number))


LONG = Conversation(
    (
        text_turn("system", "be kind"),
        text_turn("user", words(10, "a")),
        text_turn("assistant", words(10, "b")),
        text_turn("user", words(10, "c")),
    ),
    begun="Well,",
)
SIZE = 2 + 30 + 1 + 5 * TURN_TOKENS


def test_what_fits_is_left_alone() -> None:
    assert count_tokens(LONG, count) == SIZE
    assert fitted(LONG, SIZE, "error", count) is LONG


def test_too_long_is_an_error_with_both_counts() -> None:
    with pytest.raises(ContextLengthError, match=f"about {SIZE} tokens, and 40 are left") as caught:
        fitted(LONG, 40, "error", count)
    assert (caught.value.limit, caught.value.tokens) == (40, SIZE)


def test_the_oldest_turn_goes_with_its_answer() -> None:
    cut = fitted(LONG, SIZE - 1, "oldest", count)
    assert [turn.role for turn in cut.turns] == ["system", "user"]
    assert cut.turns[-1] == LONG.turns[-1]
    assert cut.begun == LONG.begun


def test_the_longest_text_loses_its_middle() -> None:
    told = Conversation((text_turn("system", words(40)), text_turn("user", words(100))))
    cut = fitted(told, 100, "middle", count)
    text = cut.turns[1].text
    assert cut.turns[0] == told.turns[0]
    assert text.startswith("w0 w1")
    assert text.endswith("w98 w99")
    assert " … " in text
    assert 90 <= count_tokens(cut, count) <= 100


def test_plain_text_loses_its_beginning_or_its_middle() -> None:
    plain = Conversation(plain=words(50))
    oldest, middle = (fitted(plain, 10, how, count).plain for how in ("oldest", "middle"))
    assert oldest.endswith("w48 w49")
    assert middle.startswith("w0")
    assert middle.endswith("w49")
    assert count(oldest) == 10
    assert count(middle) == 10


@pytest.mark.parametrize("how", ["oldest", "middle"])
def test_what_has_to_stay_may_be_too_long(how) -> None:
    told = Conversation((text_turn("system", words(50)), text_turn("user", "Hi")))
    with pytest.raises(ContextLengthError, match="keeps is longer"):
        fitted(told, 20, how, count)


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(UnsupportedError, match='"error", "oldest" or "middle", not \'start\''):
        checked_truncate("start")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.integers(0, 40)), min_size=1, max_size=6),
    st.integers(1, 150),
    st.sampled_from(["oldest", "middle"]),
)
def test_a_cut_fits_and_keeps_the_system_and_the_last_role(turns, limit: int, how) -> None:
    told = Conversation(tuple(text_turn(role, words(n)) for role, n in turns))
    try:
        cut = fitted(told, limit, how, count)
    except ContextLengthError:
        return
    assert count_tokens(cut, count) <= limit
    assert [turn for turn in cut.turns if turn.role == "system"] == [
        turn for turn in told.turns if turn.role == "system"
    ]
    assert cut.turns[-1].role == told.turns[-1].role
