"""Regular expressions: Python's meaning, to the letter, byte by byte and token by token."""

from __future__ import annotations

import json
import random
import re
import warnings
from pathlib import Path

import pytest
from grammar_walks import TOY, accepts_by_tokens, brute_mask, legal, random_text
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.grammar.constraints import Regex
from forktree.backend.grammar.regex_syntax import parse_python
from forktree.lang.errors import ConstraintError

ROWS = [
    json.loads(line) for line in (Path(__file__).parents[2] / "data/grammar/regexes.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize(
    ("pattern", "accept", "reject"),
    [
        ("foo|foobar", ["foo", "foobar"], ["", "fo", "foob"]),
        ("a(|b)", ["a", "ab"], ["b"]),
        (r"[0-9]+|[0-9]+\.[0-9]+", ["1", "1.5"], ["1.", ".5"]),
        (r"1(\.2)?", ["1", "1.2"], ["1."]),
        ("a*?b??", ["", "aab"], ["ba"]),
        ("(ac|[^a])+", ["ac", "bacx"], ["a"]),
        ("(?i)yes", ["yes", "YES", "yEs"], ["ye"]),
        (r"\bgo\b", ["go"], ["goo"]),
        (r"(foo|bar)\b.*", ["foo x", "bar"], ["foox"]),
        (r"a\Bb", ["ab"], ["a b"]),
        ("[一-龥]+", ["道", "金部"], ["a", "道a", "é", ""]),
        ("[^一-龥]+", ["abc é😀"], ["道", "a道"]),
        ("[a-zà-ÿ ]+", ["voilà", "año ú"], ["Voilà", "日"]),
        (r"[\x00-\u2e7f]+", ["a\n→é"], ["一", "😀"]),
        (r"[\U0001F600-\U0001F64F]", ["😀", "🙏"], ["🚀", "a"]),
        (".+", ["a b", "é"], ["a\nb", "\n", ""]),
        (r"[\s\S]+", ["a\nb", "\n"], [""]),
        ("(?s:.)+", ["a\nb"], [""]),
        (r"[^\r\n]*", ["", "ab"], ["a\r", "a\nb"]),
        ("a$\n", ["a\n"], ["a", "a\n\n"]),
        ("(?m)a$\n^b", ["a\nb"], ["ab"]),
        (r"^(\d+(,|$))+", ["1,2", "12", "1,"], ["1,,2", ","]),
        (r"(?a)\w+", ["az_9"], ["é"]),
        (r"\w+", ["é", "٣"], ["-"]),
        ("(?x) a b # c\n c", ["abc"], ["a b"]),
        ("((x+)+)+y", ["xy", "xxxy"], ["x", "y"]),
        ("(a{2,3}){2}", ["aaaa", "aaaaaa"], ["aaa", "a" * 7]),
        ("(a{3}){0,2}", ["", "aaa", "aaaaaa"], ["a", "aaaa"]),
        ("x{,2}", ["", "xx"], ["xxx"]),
        ("x{a}", ["x{a}"], ["x"]),
        ("[]a]+", ["]a"], ["b"]),
        ("a(?#any)*", ["", "aaa"], ["a(?#any)"]),
        ("(?x)a *", ["", "aa"], ["a "]),
        (r"\x41\101\u0042\N{LATIN SMALL LETTER C}", ["AABc"], ["AAB"]),
    ],
)
def test_a_pattern_means_what_re_fullmatch_says(pattern: str, accept: list[str], reject: list[str]) -> None:
    constraint = Regex(pattern)
    for text in accept:
        assert re.fullmatch(pattern, text)
        assert accepts_by_tokens(constraint, text)
    for text in reject:
        assert not re.fullmatch(pattern, text)
        assert not accepts_by_tokens(constraint, text)


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        (r"([ab])x\1", 7),
        ("(?=.*[0-9])[a-z0-9]{3}", 0),
        ("(?!no)[a-z]{2}", 0),
        ("a(?<=a)b", 1),
        ("(?>a+)b", 0),
        ("(?P<d>[0-9]+)-(?P=d)", 14),
        ("a++", 2),
        ("(a)?(?(1)b|c)", 4),
        ("a**", 2),
        ("^*a", 1),
        ("(?-u:a)", 0),
        ("(a", 0),
        ("a)", 1),
        ("[a", 0),
        ("[z-a]", 1),
        ("*a", 0),
        (r"\q", 0),
        ("a{3,2}", 1),
        ("{3,2}", 0),
        ("{2}a", 0),
        ("(?P<a>x)(?P<a>y)", 8),
        ("a{1}{2}", 4),
        ("(?x)a* ?", 7),
        ("a{99999999999}", 1),
        (r"\777", 0),
        (r"[\400]", 1),
        ("(?au:a)", 0),
        ("(?i-i:a)", 0),
        ("(?i-:a)", 0),
        (r"(?:\b|%)+", 8),
        ("(" * 5000 + ")" * 5000, 80),
    ],
)
def test_what_no_automaton_has_is_refused_with_its_position(pattern: str, position: int) -> None:
    with pytest.raises(ConstraintError) as caught:
        Regex(pattern)
    assert caught.value.pointer == f"position {position}"


def test_a_pattern_that_nothing_matches_is_refused() -> None:
    with pytest.raises(ConstraintError, match="nothing matches"):
        Regex("a^b")


@pytest.mark.parametrize(
    ("pattern", "accept", "reject"),
    [
        ("a{1,10000}", "a" * 10000, "a" * 10001),
        ("[0-9]{1,50000}", "0" * 500, ""),
        ("(a{1,200}){1,200}", "a" * 40000, "a" * 40001),
        ("(ab{2,3}c?){1,500}", "abbabbbc" * 250, "abbabbbc" * 251),
        (".*a.{30}", "ba" + "x" * 30, "ba" + "x" * 29),
    ],
)
def test_counts_cost_nothing_until_they_are_walked(pattern: str, accept: str, reject: str) -> None:
    constraint = Regex(pattern)
    assert constraint.automaton.num_states < 200
    assert constraint.accepts(accept)
    assert not constraint.accepts(reject)


def test_ten_thousand_choices_of_one_count_share_their_masks() -> None:
    constraint = Regex("[a-z]{1,10000}")
    matcher = constraint.compile(TOY)
    matcher.advance(ord("x"))
    first = matcher.mask()
    for _ in range(50):
        matcher.advance(ord("x"))
        assert matcher.mask() is first


@pytest.mark.parametrize("data", [b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\xe0\x80\x80"])
def test_bytes_of_no_text_are_never_legal(data: bytes) -> None:
    automaton = Regex(r"[\s\S]*").automaton
    assert automaton.run(automaton.start, data) is None
    matcher = Regex(r"[\s\S]*").compile(TOY)
    assert not {0xC0, 0xC1, *range(0xF5, 0x100), *range(0x80, 0xC0)} & set(legal(matcher))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_published_patterns_are_decided_rightly_or_refused(row: dict) -> None:
    try:
        constraint = Regex(row["regex"])
    except ConstraintError as error:
        assert error.pointer.startswith("position") or "nothing matches" in error.reason
        return
    for text in row["accept"]:
        assert accepts_by_tokens(constraint, text), text
    for text in row["reject"]:
        assert not accepts_by_tokens(constraint, text), text


FRAGMENTS = (
    *"ab019()[]{}*+?|^$.\\-,&~<>=!:P#é \n",
    *(
        "(?",
        "(?:",
        "(?P<n>",
        "(?P<m>",
        "(?P=n)",
        "(?i)",
        "(?i:",
        "(?-i:",
        "(?x)",
        "(?#",
        "(?i-i:",
        "(?-:",
        "(?au:",
        "(?<n>",
    ),
    *(
        r"\d",
        r"\w",
        r"\b",
        r"\B",
        r"\A",
        r"\Z",
        r"\x4",
        r"\x41",
        r"\u00",
        r"\0",
        r"\08",
        r"\12",
        r"\123",
        r"\777",
        r"\400",
    ),
    *(
        r"\N{DIGIT ONE}",
        r"\é",
        r"\_",
        r"\q",
        "{2}",
        "{,3}",
        "{2,",
        "{2,1}",
        "[^",
        "[]",
        "[a-",
        r"[\d-z]",
        "++",
        "??",
        "*+",
    ),
)
UNSUPPORTED = ("is not supported", "are not supported")


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=6).map("".join))
def test_what_re_refuses_is_refused_and_nothing_else_but_what_no_automaton_has(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            compiled = re.compile(pattern)
        except (re.error, OverflowError):
            compiled = None
    try:
        parse_python(pattern)
    except ConstraintError as error:
        assert error.pointer.startswith("position")
        assert compiled is None or any(why in error.reason for why in UNSUPPORTED)
    else:
        assert compiled is not None


atoms = st.sampled_from(["a", "b", "é", "[ab]", "[^a]", ".", r"\d", r"\w", "(?:ab)", "", "^", "$", r"\b", "x|y", "道"])
repeats = st.sampled_from(["", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"])
patterns = st.recursive(
    st.builds(lambda atom, repeat: f"(?:{atom}){repeat}", atoms, repeats),
    lambda inner: st.one_of(
        st.builds("".join, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda parts, repeat: f"(?:{'|'.join(parts)}){repeat}", st.lists(inner, min_size=1, max_size=3), repeats
        ),
    ),
    max_leaves=6,
)
texts = st.text(alphabet="abxyé道1 \n-", max_size=7)


@settings(max_examples=120, deadline=None)
@given(patterns, st.lists(texts, min_size=3, max_size=8))
def test_random_patterns_agree_with_re(pattern: str, samples: list[str]) -> None:
    try:
        constraint = Regex(pattern)
    except ConstraintError as error:
        assert "nothing matches" in error.reason or "inside an unbounded repeat" in error.reason
        return
    for text in samples:
        assert constraint.accepts(text) == bool(re.fullmatch(pattern, text)), (pattern, text)


@settings(max_examples=60, deadline=None)
@given(patterns, st.integers(0, 2**20))
def test_random_walks_end_in_matches_and_masks_are_exact(pattern: str, seed: int) -> None:
    rng = random.Random(seed)
    try:
        constraint = Regex(pattern)
    except ConstraintError:
        return
    text = random_text(constraint, rng, most=40)
    if text is None:
        return
    assert re.fullmatch(pattern, text)
    data = text.encode()
    cut = rng.randrange(len(data) + 1)
    matcher = constraint.compile(TOY)
    for byte in data[:cut]:
        matcher.advance(byte)
    assert set(legal(matcher)) == brute_mask(constraint, data[:cut])
