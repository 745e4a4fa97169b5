"""Patterns that other systems weakened, misread or choked on."""

from __future__ import annotations

import subprocess
import sys

import pytest
from grammar_walks import TOY, accepts_by_tokens, legal, tokenised

from forktree.backend.grammar.constraints import Regex
from forktree.lang.errors import ConstraintError
from forktree.lang.expressions import gen


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        (r"([ab])x\1", "back-reference"),
        ("(?P<d>[0-9]+)-(?P=d)", "back-reference"),
        ("(?=.*[0-9])[a-z0-9]{3}", "look-ahead"),
        ("(?!no)[a-z]{2}", "look-ahead"),
        ("a(?<=a)b", "look-behind"),
        ("(?>a+)b", "atomic"),
    ],
)
def test_what_is_refused_is_called_by_its_name(pattern: str, construct: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        Regex(pattern)
    assert construct in caught.value.reason.replace("backreference", "back-reference")


IMPOSSIBLE = {0xC0, 0xC1, *range(0xF5, 0x100)}


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("[一-龥]+", "金部"),
        ("[^一-龥]+", "abc é😀"),
        ("[a-zà-ÿ ]+", "año ú"),
        (r"[\x00-\u2e7f]+", "a\n→é"),
        (r"[\U0001F600-\U0001F64F]", "🙏"),
    ],
)
def test_bytes_that_no_text_has_are_masked_in_every_state(pattern: str, text: str) -> None:
    """Behind each byte of a text, inside characters too; overlong forms and surrogates are dead at once."""
    constraint = Regex(pattern)
    matcher = constraint.compile(TOY)
    for byte in text.encode():
        assert not IMPOSSIBLE & set(legal(matcher))
        matcher.advance(byte)
    assert not IMPOSSIBLE & set(legal(matcher))
    for data in (b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"):
        assert constraint.automaton.run(constraint.automaton.start, data) is None


def test_thousands_of_alternatives_take_a_few_states_each() -> None:
    constraint = Regex("(" + "|".join(f"k{i}" for i in range(3000)) + ")")
    for text in ("k0", "k2999"):
        assert accepts_by_tokens(constraint, text)
    for text in ("k3000", "k", ""):
        assert not accepts_by_tokens(constraint, text)
    assert constraint.automaton.num_states < 10_000  # a few each


_LIMITED = """
import resource, sys
from forktree.backend.grammar.constraints import Regex
from forktree.lang.errors import ConstraintError
import numpy, forktree.backend.grammar.matcher, forktree.backend.grammar.masks
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 200 * 2**20,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))  # a guard: it takes milliseconds
try:
    constraint = Regex(eval(sys.argv[1]))
except ConstraintError as error:
    print("refused:", error)
else:
    print([constraint.accepts(text) for text in eval(sys.argv[2])])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux counts it")
@pytest.mark.parametrize(
    ("pattern", "texts", "verdicts"),
    [
        ("'(a{1,200}){1,200}'", "['a', 'a' * 40000, 'a' * 40001, '']", [True, True, False, False]),
        ("'[0-9]{1,50000}'", "['1', '0123456789', '', '1a']", [True, True, False, False]),
        ("'((x+)+)+y'", "['xy', 'x' * 5000 + 'y', 'x' * 5000, 'y']", [True, True, False, False]),
        ("'(' + '|'.join('k%d' % i for i in range(3000)) + ')'", "['k0', 'k2999', 'k3000']", [True, True, False]),
        ("'a{2000000000,2147483647}'", "['a', 'aa']", [False, False]),
    ],
    ids=["nested", "digits", "nested_plus", "alternatives", "huge"],
)
def test_counted_repeats_stay_within_200_megabytes(pattern: str, texts: str, verdicts: list[bool]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, pattern, texts], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("refused:"):
        assert "2000000000" in pattern  # nothing else may be refused
        assert "limit" in done.stdout or "most" in done.stdout, done.stdout
    else:
        assert done.stdout.strip() == str(verdicts)


def test_a_needless_escape_is_what_python_says_it_is() -> None:
    constraint = Regex(r"^hello\!$")
    assert accepts_by_tokens(constraint, "hello!")
    assert not accepts_by_tokens(constraint, r"hello\!")


def test_every_spelling_of_the_alternatives_text_is_legal() -> None:
    """By long merges and by single bytes: the walk does not depend on how the text is cut."""
    constraint = Regex("(foobar|name|the)+")
    for way in (list(b"foobarname"), tokenised(b"foobarname", TOY)):
        matcher = constraint.compile(TOY)
        for token in way:
            assert token in legal(matcher)
            matcher.advance(token)
        assert matcher.is_complete()


@pytest.mark.parametrize("keyword", ["regex", "stop_regex"])
@pytest.mark.parametrize(
    ("pattern", "pointer", "reason"),
    [
        ("a(b", "position 1", "missing )"),
        ("(?<=a+)b", "", "fixed-width"),
        ("a{5000000000}", "", "too large"),
        ("(" * 5000 + ")" * 5000, "", "too large"),
    ],
)
def test_gen_refuses_a_broken_pattern_as_such(keyword: str, pattern: str, pointer: str, reason: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        gen("x", **{keyword: pattern})
    assert caught.value.pointer == pointer
    assert reason in caught.value.reason
    assert len(str(caught.value)) < 300
