"""The vocabulary's trie: every token where its bytes lead, and nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.grammar.trie import Trie, trie_of
from forktree.backend.vocabulary import Vocabulary

vocabularies = st.lists(st.one_of(st.none(), st.binary(max_size=6), st.sampled_from([b"a", b"ab", b"abc", b'":1,"'])))


def spelled(trie: Trie, node: int) -> bytes:
    """The bytes that lead to a node."""
    data = b""
    while node:
        data = bytes([trie.byte[node]]) + data
        node = int(trie.parent[node])
    return data


def test_a_small_trie_can_be_read_by_hand() -> None:
    trie = trie_of(Vocabulary((b"b", None, b"ab", b"a", b"", b"ab", b"ca"), frozenset()))
    assert trie.byte.tolist() == [0, *b"abcba"]
    assert trie.parent.tolist() == [0, 0, 0, 0, 1, 3]
    assert trie.level.tolist() == [0, 1, 1, 1, 2, 2]
    assert trie.tokens.tolist() == [3, 2, 5, 0, 6]
    assert trie.node_of.tolist() == [1, 4, 4, 2, 5]
    assert trie.by_byte[ord("a")].tolist() == [1, 5]
    assert (trie.first_token.tolist()[1], trie.end_token.tolist()[1]) == (0, 3)
    assert trie.child(0, ord("c")) == 3
    assert trie.child(0, ord("d")) is None
    assert trie.child(2, ord("a")) is None


def test_a_vocabulary_without_text_is_a_root_alone() -> None:
    trie = trie_of(Vocabulary((None, b""), frozenset([0])))
    assert trie.num_nodes == 1
    assert trie.longest == 0
    assert trie.tokens.tolist() == []
    assert trie.child(0, 97) is None


@settings(max_examples=150, deadline=None)
@given(vocabularies)
def test_every_token_ends_where_its_bytes_lead(token_bytes: list[bytes | None]) -> None:
    trie = trie_of(Vocabulary(tuple(token_bytes), frozenset()))
    texts = {token: data for token, data in enumerate(token_bytes) if data}
    assert sorted(trie.tokens.tolist()) == sorted(texts)
    found = {spelled(trie, node): node for node in range(trie.num_nodes)}
    assert set(found) == {data[:end] for data in texts.values() for end in range(len(data) + 1)} | {b""}
    for data, node in found.items():
        assert trie.depth(node) == len(data)
        rows = trie.rows_at(np.array([node], dtype=np.int32))
        assert {texts[token] for token in trie.tokens[rows].tolist()} <= {data}
        below = trie.tokens[trie.first_token[node] : trie.end_token[node]].tolist()
        assert sorted(below) == sorted(token for token, text in texts.items() if text.startswith(data))
        children = trie.children_of(np.array([node], dtype=np.int32)).tolist()
        assert [spelled(trie, child)[:-1] for child in children] == [data] * len(children)
        assert all(trie.child(node, int(trie.byte[child])) == child for child in children)
    for byte in range(256):
        assert all(trie.byte[node] == byte for node in trie.by_byte[byte].tolist())
