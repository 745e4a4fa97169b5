"""The matcher's contract: masks, ends, errors, copies, rollback."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from grammar_walks import TOY, legal

from forktree.backend.grammar.constraints import Choices, Regex, Schema, constraint_from_spec
from forktree.backend.grammar.matcher import IllegalTokenError
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.errors import ConstraintError

A, B = ord("a"), ord("b")
EOS = max(TOY.eos_ids)


def test_a_mask_is_packed_int32_and_read_only() -> None:
    mask = Regex("ab").compile(TOY).mask()
    assert mask.dtype == np.int32
    assert mask.shape == ((TOY.size + 31) // 32,)
    assert [t for t in range(TOY.size) if mask[t // 32] >> (t % 32) & 1] == [A, TOY.token_bytes.index(b"ab")]
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = 0


def test_an_illegal_token_is_named_with_what_was_legal_and_changes_nothing() -> None:
    matcher = Regex("ab").compile(TOY)
    with pytest.raises(IllegalTokenError, match=r"token 98 \(b'b'\) is not legal here; legal are 97 \(b'a'\)"):
        matcher.advance(B)
    with pytest.raises(ValueError, match="token -5"):
        matcher.advance(-5)
    with pytest.raises(ValueError, match="token 100000"):
        matcher.advance(100000)
    with pytest.raises(IllegalTokenError):
        matcher.advance(EOS)
    matcher.advance(A)
    matcher.advance(B)
    assert matcher.is_complete()


def test_any_end_token_ends_a_complete_output_and_nothing_follows() -> None:
    for end in TOY.eos_ids:
        matcher = Regex("a*").compile(TOY)
        matcher.advance(end)
        assert matcher.is_complete()
        assert matcher.must_end()
        assert legal(matcher) == []
        with pytest.raises(IllegalTokenError, match="follows the end"):
            matcher.advance(A)
        matcher.rollback(1)
        matcher.advance(A)


def test_copies_go_their_own_ways_and_rollback_takes_tokens_back() -> None:
    matcher = Regex("a{3}b").compile(TOY)
    matcher.advance(A)
    twin = matcher.copy()
    matcher.advance(A)
    matcher.advance(A)
    assert legal(matcher) == [B]
    twin.advance(A)
    matcher.rollback(2)
    assert legal(matcher) != [B]
    matcher.rollback(1)
    assert legal(matcher) == legal(Regex("a{3}b").compile(TOY))
    with pytest.raises(ValueError, match="cannot roll back 1"):
        matcher.rollback(1)


def test_special_tokens_and_tokens_of_no_bytes_are_never_legal() -> None:
    vocabulary = Vocabulary((b"a", None, b"", b"<s>", None), frozenset([4]))
    matcher = Regex("[a<s>]*").compile(vocabulary)
    assert legal(matcher) == [0, 3, 4]


def test_every_tokenisation_of_a_text_is_legal_and_dead_ends_are_not() -> None:
    texts = {3: "t", 4: "e", 5: "s", 7: "te", 10: "tes", 12: "test", 13: "st"}
    vocabulary = Vocabulary(tuple(texts[i].encode() if i in texts else None for i in range(15)), frozenset([14]))
    wanted = {"": [3, 7, 10, 12], "t": [4], "te": [5, 13], "tes": [3], "test": [14]}
    # after "te" an "s" leads to "tes", which "t" completes
    for prefix, ids in wanted.items():
        matcher = Regex("test").compile(vocabulary)
        for char in prefix:
            matcher.advance({text: token for token, text in texts.items()}[char])
        assert legal(matcher) == ids
    cut = Vocabulary((b"a", b"ab", b"c", None), frozenset([3]))
    assert legal(Regex("abc|abd|a").compile(cut)) == [0, 1]
    assert legal(Regex("a[bd]|abc").compile(cut)) == [1]
    with pytest.raises(ConstraintError, match="no sequence of this tokenizer's tokens"):
        Regex("xyz").compile(cut)


def test_equal_specifications_share_one_automaton() -> None:
    assert Regex("abc").automaton is constraint_from_spec(Regex("abc").spec).automaton
    assert Choices(["x", "y"]).automaton is constraint_from_spec(Choices(["x", "y"]).spec).automaton
    schema = Schema({"type": "integer"})
    assert schema.automaton is constraint_from_spec(schema.spec).automaton
    assert schema == constraint_from_spec(schema.spec)


def test_many_threads_may_walk_one_constraint() -> None:
    constraint = Schema({"type": "object", "properties": {"a": {"type": "string", "maxLength": 40}}, "required": ["a"]})
    text = b'{"a":"' + b"x" * 40 + b'","other":[1,2,{"b":null}]}'
    failures: list[BaseException] = []

    def walk() -> None:
        try:
            matcher = constraint.compile(TOY)
            for byte in text:
                assert byte in legal(matcher)
                matcher.advance(byte)
            assert matcher.is_complete()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=walk) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
