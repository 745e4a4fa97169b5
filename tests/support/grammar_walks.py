"""Ways to walk a constraint token by token, and an oracle for its masks."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from forktree.backend.grammar.constraints import Constraint
from forktree.backend.grammar.matcher import Matcher
from forktree.backend.vocabulary import Vocabulary

MERGES = [
    b"ab", b"abc", b"the", b" the", b"in", b"ing", b"er", b"12", b"00", b"2024", b'":', b'","', b'":"', b'"}', b'{"',
    b"[]", b"],", b"},", b"true", b"false", b"null", b"\xc3\xa9", b"\xe9\x81", b"\\u", b"\\n", b"0.", b'"a":', b',"',
    b"  ", b"name", b"type", b'"name":"', b"foo", b"bar", b"foobar", b'a":1,"a', b'":1,"', b"x_",
]  # fmt: skip


def toy_vocabulary(merges: Iterable[bytes] = MERGES) -> Vocabulary:
    """Every single byte, some merges, a special token and two ends."""
    return Vocabulary((*(bytes([b]) for b in range(256)), *merges, None, None, None), frozenset(_ends(merges)))


def _ends(merges: Iterable[bytes]) -> tuple[int, int]:
    size = 256 + len(list(merges))
    return size + 1, size + 2


TOY = toy_vocabulary()


def legal(matcher: Matcher) -> list[int]:
    """The ids in a matcher's mask."""
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    found: list[int] = np.flatnonzero(bits).tolist()
    return found


def ends(matcher: Matcher, vocabulary: Vocabulary = TOY) -> bool:
    """Whether every end token is legal; asserts that all or none are."""
    allowed = set(legal(matcher)) & vocabulary.eos_ids
    assert allowed in (set(), set(vocabulary.eos_ids))
    assert bool(allowed) == matcher.is_complete()
    return bool(allowed)


def tokenised(text: bytes, vocabulary: Vocabulary, rng: random.Random | None = None) -> list[int]:
    """Longest match first, or with an `rng` any tokens that spell the text."""
    ids = {data: token for token, data in enumerate(vocabulary.token_bytes) if data}
    longest = max(map(len, ids))
    out = []
    at = 0
    while at < len(text):
        sizes = [n for n in range(min(longest, len(text) - at), 0, -1) if text[at : at + n] in ids]
        size = rng.choice(sizes) if rng else sizes[0]
        out.append(ids[text[at : at + size]])
        at += size
    return out


def walks(constraint: Constraint, tokens: Iterable[int], vocabulary: Vocabulary = TOY) -> bool:
    """Whether every token is in the mask where it stands and the output may end after them."""
    matcher = constraint.compile(vocabulary)
    for token in tokens:
        if token not in legal(matcher):
            return False
        matcher.advance(token)
    return ends(matcher, vocabulary)


def accepts_by_tokens(constraint: Constraint, text: str, vocabulary: Vocabulary = TOY, seed: int = 0) -> bool:
    """The verdict of byte-by-byte, longest-match and random tokenisations, which have to agree with `accepts`."""
    data = text.encode()
    ways = [list(data), tokenised(data, vocabulary), tokenised(data, vocabulary, random.Random(seed))]
    verdicts = {walks(constraint, way, vocabulary) for way in ways}
    verdicts.add(constraint.accepts(text))
    assert len(verdicts) == 1, f"{constraint!r} is of two minds about {text!r}"
    return verdicts.pop()


def brute_mask(constraint: Constraint, prefix: bytes, vocabulary: Vocabulary = TOY) -> set[int]:
    """Tokens after which some legal output remains, decided byte by byte; for byte-complete vocabularies."""
    automaton = constraint.automaton
    state = automaton.run(automaton.start, prefix)
    assert state is not None
    found = {
        token
        for token, data in enumerate(vocabulary.token_bytes)
        if data and token not in vocabulary.eos_ids and automaton.run(state, data) is not None
    }
    return found | (set(vocabulary.eos_ids) if state.nullable else set())


def check_texts(constraint: Constraint, accept: Iterable[str], reject: Iterable[str]) -> None:
    """Asserts that every text of `accept` is legal, token by token, and no text of `reject`."""
    for text in accept:
        assert accepts_by_tokens(constraint, text), f"not accepted: {text}"
    for text in reject:
        assert not accepts_by_tokens(constraint, text), f"accepted: {text}"


def random_text(
    constraint: Constraint, rng: random.Random, vocabulary: Vocabulary = TOY, most: int = 200
) -> str | None:
    """A random masked walk to an end, or None where none came in time. Asserts that no mask on the way is empty."""
    matcher = constraint.compile(vocabulary)
    data = b""
    for step in range(most):
        allowed = legal(matcher)
        assert allowed, f"dead end after {data!r}"
        if ends(matcher, vocabulary) and (matcher.must_end() or rng.random() < 0.3 + step / most):
            return data.decode()
        texts = [token for token in allowed if token not in vocabulary.eos_ids]
        if step > most // 4:  # steer towards the end: closing brackets and quotes first
            closing = [t for t in texts if vocabulary.token_bytes[t] in (b'"', b"}", b"]", b'"}')]
            texts = closing if closing and rng.random() < 0.8 else texts
        token = rng.choice(texts)
        matcher.advance(token)
        data += vocabulary.token_bytes[token] or b""
    return None
