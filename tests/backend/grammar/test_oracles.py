"""Other people's automata as oracles, and walks over a real tokenizer's vocabulary.

outlines-core stops at the first alternative that matches, so a pattern is given to it with a sentinel byte behind it:
then only whole matches are final, and its masks are exact. interegular decides whole texts; its classes are ASCII.
"""

from __future__ import annotations

import random
from typing import Any

import interegular
import pytest
from grammar_walks import MERGES, legal, random_text, tokenised, walks
from hypothesis import given, settings
from hypothesis import strategies as st
from outlines_core import Index
from outlines_core import Vocabulary as OutlinesVocabulary

from forktree.backend.grammar.constraints import Choices, Constraint, Regex, Schema, Substring
from forktree.backend.tokenizer import vocabulary_of
from forktree.backend.vocabulary import Vocabulary

PATTERNS = [
    "foo|foobar",
    "a(|b)",
    r"[0-9]+|[0-9]+\.[0-9]+",
    r"1(\.2)?",
    "(ac|[^a])+",
    "a[^b]*c",
    "(ab|abc|bar)*the",
    "x{2,5}(00|12){0,3}",
    r"(true|false|null)(,(true|false|null))*",
    r'"([^"\\\x00-\x1f]|\\["\\nrt])*"',
    "[à-ÿ]{1,3}|道+",
    r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    r"(?i:name): *[a-z]{1,8}",
    r"[0-9]{4}-(0[1-9]|1[0-2])-([0-2][0-9]|3[01])",
]
MAX_STATES = 60


def without_nul(tokens: list[bytes]) -> Vocabulary:
    """Every byte but the sentinel, then the tokens that do not hold it, then an end."""
    singles = [bytes([byte]) for byte in range(1, 256)]
    known = set(singles)
    more = [token for token in dict.fromkeys(tokens) if b"\0" not in token and token not in known]
    return Vocabulary((*singles, *more, None), frozenset([len(singles) + len(more)]))


class OutlinesOracle:
    """The masks of outlines-core for one pattern, whole matches only."""

    def __init__(self, pattern: str, vocabulary: Vocabulary) -> None:
        self._sentinel = vocabulary.size
        ids = {data: [token] for token, data in enumerate(vocabulary.token_bytes) if data}
        end = min(vocabulary.eos_ids)
        self._index = Index(f"(?:{pattern})\\x00", OutlinesVocabulary(end, {**ids, b"\0": [self._sentinel]}))
        self._hidden = {self._sentinel, end}

    @property
    def start(self) -> int:
        return self._index.get_initial_state()

    def allowed(self, state: int) -> set[int]:
        return set(self._index.get_allowed_tokens(state) or ()) - self._hidden

    def after(self, state: int, token: int) -> int:
        return self._index.get_next_state(state, token)

    def is_complete(self, state: int) -> bool:
        after = self._index.get_next_state(state, self._sentinel)
        return after is not None and self._index.is_final_state(after)


def assert_masks_agree(pattern: str, vocabulary: Vocabulary) -> None:
    """Walks both automata side by side, breadth first, a token to each state that was not met."""
    oracle = OutlinesOracle(pattern, vocabulary)
    pending = [(Regex(pattern).compile(vocabulary), oracle.start, b"")]
    met = {(pending[0][0].state, oracle.start)}
    while pending and len(met) < MAX_STATES:
        matcher, state, text = pending.pop(0)
        assert matcher.is_complete() == oracle.is_complete(state), (pattern, text)
        allowed = set(legal(matcher)) - vocabulary.eos_ids
        assert allowed == oracle.allowed(state), (pattern, text)
        for token in sorted(allowed):
            further, reached = matcher.copy(), oracle.after(state, token)
            further.advance(token)
            if (further.state, reached) not in met:
                met.add((further.state, reached))
                pending.append((further, reached, text + (vocabulary.token_bytes[token] or b"")))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_are_those_of_outlines_core_over_a_small_vocabulary(pattern: str) -> None:
    assert_masks_agree(pattern, without_nul(MERGES))


@pytest.mark.model
@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_are_those_of_outlines_core_over_real_tokens(pattern: str, smol_tokenizer: Any) -> None:
    real = [data for data in vocabulary_of(smol_tokenizer).token_bytes if data]
    assert_masks_agree(pattern, without_nul(real[::17]))


def _patterns() -> st.SearchStrategy[str]:
    leaf = st.sampled_from(["a", "b", "ab", "0", r"\d", r"\w", "[a-c]", "[^ab]", "[b0-3]", r"\.", "é", "x"])

    def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        counts = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,2}"])
        return st.one_of(
            st.lists(inner, min_size=1, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(" + "|".join(parts) + ")"),
            st.tuples(inner, counts).map(lambda pair: f"({pair[0]}){pair[1]}"),
        )

    return st.recursive(leaf, grown, max_leaves=7)


TEXTS = st.lists(st.text(alphabet="abcx0123._é", max_size=7), min_size=1, max_size=12)


@settings(max_examples=120, deadline=None)
@given(_patterns(), TEXTS, st.integers(0, 1000))
def test_acceptance_is_that_of_interegular(pattern: str, texts: list[str], seed: int) -> None:
    ours = Regex("(?a)" + pattern)
    theirs = interegular.parse_pattern(pattern).to_fsm()
    for text in texts:
        assert ours.accepts(text) == theirs.accepts(text), (pattern, text)
    written = random_text(ours, random.Random(seed))
    assert written is None or theirs.accepts(written), (pattern, written)


RECEIPT = {
    "type": "object",
    "properties": {
        "company": {"type": "string", "maxLength": 60},
        "date": {"type": "string", "format": "date"},
        "total": {"type": "number", "minimum": 0},
        "kinds": {"type": "array", "items": {"enum": ["food", "fuel", "other"]}, "maxItems": 3},
    },
    "required": ["company", "date", "total"],
    "additionalProperties": False,
}
DOCUMENT = "Shell Café 道路, 12.40 EUR\t2024-03-01: thank you, and come again!"
REAL: list[tuple[Constraint, list[str]]] = [
    (Regex(r"[A-ZÉ][a-zà-ÿ]+( [A-ZÉ][a-zà-ÿ]+)*"), ["Ada Lovelace", "Évariste Galois", "X" + "y" * 40]),
    (Regex(r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2})?"), ["2024-03-01", "2024-03-01T12:30"]),
    (Choices(["yes", "yes, but", "no", "道", " no 😀"]), ["yes", "yes, but", "道", " no 😀"]),
    (
        Schema(RECEIPT),
        [
            '{"company":"Shell","date":"2024-03-01","total":12.40}',
            '{"company":"Caf\\u00e9 道 \\ud83d\\ude00 \\"x\\"","date":"2024-02-29","total":0,"kinds":["fuel","food"]}',
        ],
    ),
    (Substring(DOCUMENT), ["", "Shell", "Café 道", "12.40 EUR\t2024", DOCUMENT]),
]


@pytest.mark.model
@pytest.mark.parametrize(("constraint", "texts"), REAL)
def test_real_tokens_spell_every_accepted_text_in_any_tokenisation(
    constraint: Constraint, texts: list[str], smol_tokenizer: Any
) -> None:
    vocabulary = vocabulary_of(smol_tokenizer)
    for seed, text in enumerate(texts):
        assert constraint.accepts(text)
        own = smol_tokenizer.encode(text, add_special_tokens=False)
        assert walks(constraint, own, vocabulary), text
        assert walks(constraint, tokenised(text.encode(), vocabulary, random.Random(seed)), vocabulary), text


@pytest.mark.model
@pytest.mark.parametrize("constraint", [one for one, _ in REAL])
def test_random_walks_over_real_tokens_end_where_accepts_says(constraint: Constraint, smol_tokenizer: Any) -> None:
    vocabulary = vocabulary_of(smol_tokenizer)
    ended = 0
    for seed in range(4):
        text = random_text(constraint, random.Random(seed), vocabulary, most=120)
        if text is not None:
            ended += 1
            assert constraint.accepts(text)
    assert ended
