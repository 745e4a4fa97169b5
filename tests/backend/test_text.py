from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizers import byte_level

from forktree.backend.stops import PatternFinder, RegexAutomaton, StringFinder
from forktree.backend.text import StopWatcher
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.errors import ConstraintError


@pytest.fixture(scope="module")
def toy() -> Tokenizer:
    """One token a byte, but for a few words."""
    merges = [("a", "X"), ("X", "b"), ("Ġ", "Q"), ("ĠQ", ":"), ("s", "t")]
    return Tokenizer(byte_level(merges))


def watch(toy: Tokenizer, ids: list[int], **options) -> tuple[str, str | None, list[str]]:
    """All text, the stop, and the deltas."""
    watcher = StopWatcher(toy.decoder(num_skip_bytes=options.pop("skip", 0)), **options)
    deltas: list[str] = []
    for id in ids:
        emission = watcher.feed(id)
        deltas.append(emission.text)
        if emission.stop is not None:
            return "".join(deltas), emission.stop, deltas
    deltas.append(watcher.flush())
    return "".join(deltas), None, deltas


def bytes_of(toy: Tokenizer, text: str) -> list[int]:
    """The text as one token a byte."""
    singles = {spelt: id for id, spelt in reversed(list(enumerate(toy.token_bytes))) if len(spelt) == 1}
    return [singles[bytes([byte])] for byte in text.encode()]


@pytest.mark.parametrize(
    ("generated", "stops", "kept", "stop"),
    [
        (" yes\nQ: more", ["Q:"], " yes\n", "Q:"),
        ("three ladies had run", ["wake"], "three ladies had run", None),
        ("Result 5 DONE extra", ["DONE"], "Result 5 ", "DONE"),
        ("aXbXc", ["Xb", "X"], "a", "X"),
        ("abc", ["abc"], "", "abc"),
        ("xabcd", ["bc", "abc"], "x", "abc"),  # both end at the same place: the earlier start wins
        ("abab!", ["ab!"], "ab", "ab!"),
    ],
)
def test_the_earliest_end_wins_and_no_match_leaves_the_text_whole(toy, generated, stops, kept, stop):
    for ids in (toy.encode(generated), bytes_of(toy, generated)):
        assert watch(toy, ids, stops=stops)[:2] == (kept, stop)


@pytest.mark.parametrize("reasoning", ["I plan to write DONE.", "DO", ""])
def test_stops_are_looked_for_behind_the_reasoning(toy, reasoning):
    generated = reasoning + "</think>Result 5 DONE extra"
    for ids in (toy.encode(generated), bytes_of(toy, generated)):
        kept = reasoning + "</think>Result 5 "
        assert watch(toy, ids, stops=["DONE"], behind="</think>")[:2] == (kept, "DONE")
    unfinished = "DONE and DONE"
    assert watch(toy, bytes_of(toy, unfinished), stops=["DONE"], behind="</think>")[:2] == (unfinished, None)


def test_text_that_may_still_become_a_stop_is_held_and_no_more(toy):
    deltas = watch(toy, bytes_of(toy, "a\n\nb\nQ:"), stops=["\nQ:"])[2]
    assert deltas == ["a", "", "\n", "\nb", "", "", ""]


def test_held_text_is_given_at_the_end(toy):
    assert watch(toy, bytes_of(toy, "aDON"), stops=["DONE"])[2] == ["a", "", "", "", "DON"]


def test_a_stop_is_looked_for_behind_the_healed_prefix_only(toy):
    text, stop, _ = watch(toy, toy.encode(" Q: a"), stops=["Q"], skip=2)
    assert (text, stop) == (": a", None)


def test_a_stop_before_min_tokens_is_text(toy):
    ids = bytes_of(toy, "a.b.c")
    assert watch(toy, ids, stops=["."])[:2] == ("a", ".")
    assert watch(toy, ids, stops=["."], min_tokens=3)[:2] == ("a.b", ".")
    assert watch(toy, ids, stops=["."], min_tokens=2)[:2] == ("a", ".")


def test_a_stop_says_which_tokens_are_kept_and_what_text_is_left_of_the_next(toy):
    watcher = StopWatcher(toy.decoder(), stops=["Xb"])
    [a, xb] = toy.encode("a") + toy.encode("Xb")
    assert watcher.feed(a).text == "a"
    emission = watcher.feed(xb)
    assert (emission.text, emission.stop, emission.num_kept, emission.tail_text) == ("", "Xb", 1, "")
    watcher = StopWatcher(toy.decoder(), stops=["Xc"])
    emissions = [watcher.feed(id) for id in (*toy.encode("aX"), *toy.encode("c"))]
    assert [e.text for e in emissions] == ["a", ""]
    assert (emissions[-1].num_kept, emissions[-1].tail_text) == (0, "a")


def test_a_character_cut_by_the_stop_keeps_no_part_of_it(toy):
    watcher = StopWatcher(toy.decoder(), stops=["🦙"])
    emissions = [watcher.feed(id) for id in toy.encode("é🦙")]
    assert "".join(e.text for e in emissions) == "é"
    assert emissions[-1].num_kept == len(toy.encode("é"))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_stops_are_the_same_however_the_text_is_cut(toy, data):
    alphabet = st.sampled_from("abX.é")
    text = data.draw(st.text(alphabet, max_size=12))
    stops = data.draw(st.lists(st.text(alphabet, min_size=1, max_size=4), min_size=1, max_size=3))
    cuts = data.draw(st.lists(st.booleans(), min_size=len(text), max_size=len(text)))
    expected = min(
        ((text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text), default=None
    )
    finder, found, piece = StringFinder(stops), None, ""
    for char, is_cut in zip(text, cuts, strict=True):
        piece += char
        if is_cut and found is None:
            found, piece = finder.find(piece, after=0), ""
    found = found or finder.find(piece, after=0)
    assert found == expected


@settings(max_examples=200, deadline=None)
@given(text=st.text("aX bQ:é", max_size=20), stops=st.lists(st.text("aXQ:", min_size=1, max_size=3), max_size=3))
def test_kept_tokens_and_tail_spell_the_kept_text(toy, text, stops):
    ids = toy.encode(text)
    watcher = StopWatcher(toy.decoder(), stops=stops)
    shown = ""
    for index, id in enumerate(ids):
        emission = watcher.feed(id)
        shown += emission.text
        if emission.stop is not None:
            assert toy.decode(ids[: emission.num_kept]) + emission.tail_text == shown
            assert text.startswith(shown + emission.stop)
            return
        assert index + 1 == watcher.num_tokens
    assert shown + watcher.flush() == text


# --- patterns --------------------------------------------------------------------------------------------------


def test_a_pattern_holds_back_only_what_may_begin_a_match(toy):
    text, stop, deltas = watch(toy, bytes_of(toy, "a12b3."), stop_pattern=RegexAutomaton(r"[0-9]+\."))
    assert (text, stop) == ("a12b", "3.")
    assert deltas == ["a", "", "", "12b", "", ""]


def test_a_string_and_a_pattern_together_stop_at_the_earlier_end(toy):
    ids = bytes_of(toy, "a1.2")
    assert watch(toy, ids, stop_pattern=RegexAutomaton(r"[0-9]+\."), stops=["a1"])[:2] == ("", "a1")
    assert watch(toy, ids, stop_pattern=RegexAutomaton(r"[0-9]+\."), stops=["2"])[:2] == ("a", "1.")


@settings(max_examples=150, deadline=None)
@given(text=st.text("a1.é", max_size=14), cut=st.integers(0, 14))
def test_a_pattern_matches_at_the_earliest_end_with_the_earliest_start(text, cut):
    expected = min(
        ((end, start) for start in range(len(text)) for end in range(len(text) + 1)
         if re.fullmatch(r"[0-9]+\.", text[start:end])),
        default=None,
    )  # fmt: skip
    finder = PatternFinder(RegexAutomaton(r"[0-9]+\."))
    found = finder.find(text[:cut], after=0) or finder.find(text[cut:], after=0)
    assert (found and found[:2]) == expected
    assert found is None or text[found.start : found.end] == found.text


def test_a_pattern_of_many_bytes_a_character_counts_characters():
    found = PatternFinder(RegexAutomaton("é")).find("aéb", after=0)
    assert found == (2, 1, "é")


@settings(max_examples=100, deadline=None)
@given(
    text=st.text("ab.é\n", max_size=10),
    pattern=st.sampled_from([r"a+b", r"(ab|b)\.", r"\n\n", r"[^a]{2}", r"a.*b", r"é?b"]),
    cuts=st.sets(st.integers(0, 10)),
)
def test_real_patterns_agree_with_re_however_the_text_is_cut(text, pattern, cuts):
    spans = [
        (end, start) for end in range(len(text) + 1) for start in range(end) if re.fullmatch(pattern, text[start:end])
    ]
    finder, found, at = PatternFinder(RegexAutomaton(pattern)), None, 0
    for cut in sorted({*cuts, len(text)}):
        if found is None and at < cut <= len(text):
            found, at = finder.find(text[at:cut], after=0), cut
    assert (found and found[:2]) == min(spans, default=None)


@pytest.mark.parametrize("pattern", ["a*", "(b|)", ""])
def test_a_stop_pattern_that_matches_nothing_at_all_is_refused(pattern):
    with pytest.raises(ConstraintError, match="matches the empty text"):
        RegexAutomaton(pattern)


def test_a_bad_stop_pattern_is_refused():
    with pytest.raises(ConstraintError):
        RegexAutomaton("a(b")
