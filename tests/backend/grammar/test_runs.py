"""Walks that leap find what walks byte by byte find: runs, words, keys with holes, counts, whatever they begin in."""

from __future__ import annotations

import random

import numpy as np
import pytest
from grammar_walks import TOY, legal

from forktree.backend.grammar import apart, walks
from forktree.backend.grammar.apart import taken_apart
from forktree.backend.grammar.constraints import Choices, Constraint, Grammar, Regex, Schema
from forktree.backend.grammar.runs import runs_of
from forktree.backend.grammar.terms import Terms
from forktree.backend.grammar.trie import trie_of
from forktree.backend.grammar.walks import Walks
from forktree.backend.vocabulary import Vocabulary

PLAIN = (b"a", b"ab", b"abc", b"b", b"\xc3", b"\xc3\xa9", b"\xa9", b"\\", b"\\n")
WORDS = (*PLAIN, b'a"', b'a":', b'ab":"', b'"', b'":"b')
SMALL = Vocabulary((*WORDS, None), frozenset([len(WORDS)]))

CONSTRAINTS: list[Constraint] = [
    Schema({"type": "string"}),
    Schema({"type": "string", "minLength": 2, "maxLength": 4}),
    Schema({"type": "string", "pattern": "ab"}),
    Schema({"properties": {"a": {"type": "string"}, "name": {"type": "integer"}, "ab": {}}}, order="any"),
    Schema({"properties": {"a": {"enum": ["ab", "abc", "a"]}}, "patternProperties": {"^x_": {"type": "null"}}}),
    Schema({"type": ["string", "object", "array", "null"], "maxProperties": 2, "items": {"type": "string"}}),
    Schema({"additionalProperties": {"type": "string", "maxLength": 3}}, whitespace=2),
    Regex(r"[\s\S]*"),
    Regex(r"(\w+ )*\w{2,5}[^a]?"),
    Regex("[a-z]{0,3}[0-9a-z]*(the|in)?"),
    Regex(".*ab.*|12"),
    Choices(["the", "there", "in", "ing", "é", "\\n"]),
    Grammar('start: (WORD | NUMBER)+\nWORD: /[a-z]+/\nNUMBER: /[0-9]+/\n%ignore " "\n'),
]


def test_the_runs_of_a_string_can_be_read_by_hand() -> None:
    terms, trie = Terms(), trie_of(SMALL)
    found = runs_of(trie, terms.any_chars("json").args[0].args[0])
    chars = dict(
        zip((SMALL.token_bytes[token] for token in trie.tokens.tolist()), found.row_chars.tolist(), strict=True)
    )
    assert chars == {
        **{b"a": 1, b"ab": 2, b"abc": 3, b"b": 1, b"\xc3": 1, b"\xc3\xa9": 1, b"\\": 1, b"\\n": 1},
        **{b'a"': -1, b'a":': -1, b'ab":"': -1, b'"': -1, b'":"b': -1, b"\xa9": -1},
    }
    whole = {
        SMALL.token_bytes[token] for token, node in zip(trie.tokens, trie.node_of, strict=True) if found.is_whole[node]
    }
    assert whole == {b"a", b"ab", b"abc", b"b", b"\xc3\xa9", b"\\n"}


def test_a_state_is_taken_apart_into_words_and_runs() -> None:
    automaton = Regex("ab+c|.*x|[0-9]y").automaton
    runs, words, rest = taken_apart(automaton, automaton.start)
    assert [(run.repeat.args[1:], run.holes) for run in runs] == [((0, None), ())]
    assert words == []
    assert automaton.run(rest, b"0y") is not None
    assert automaton.run(rest, b"qx") is None
    runs, words, rest = taken_apart(Choices(["one", "other"]).automaton, Choices(["one", "other"]).automaton.start)
    assert ([word.data for word in words], runs, rest.kind.name) == ([b"o"], [], "EMPTY")


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=repr)
def test_leaps_change_nothing(constraint: Constraint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "_FEW", 0)
    monkeypatch.setattr(apart, "_MIN_CODES", 2)
    trie, rng = trie_of(TOY), random.Random(repr(constraint))
    for _ in range(6):
        matcher = constraint.compile(TOY)
        walker = Walks(matcher.masks.automaton, trie)
        for _ in range(25):
            state = matcher.state
            if state is None:
                break
            for node in (0, int(trie.node_of[rng.randrange(len(trie.tokens))])):
                leaping = walker.rows(state, node)
                plain = walker._walk(state, node, leaps=False)
                assert plain is not None
                expected = plain.nodes[trie.node_of]
                first = trie.first_token[node]
                expected[first : first + trie.num_tokens[node]] = False
                assert np.array_equal(leaping, expected)
            texts = [token for token in legal(matcher) if token not in TOY.eos_ids]
            if not texts:
                break
            matcher.advance(rng.choice(texts))
