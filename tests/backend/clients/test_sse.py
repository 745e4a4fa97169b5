"""Events come out the same wherever the bytes are cut."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.clients.sse import EventReader, ServerEvent


def read(pieces: list[bytes]) -> list[ServerEvent]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)] + reader.end()


def test_an_event_has_a_kind_and_its_lines_of_data() -> None:
    assert read([b"event: ping\ndata: one\ndata:two\n\n"]) == [ServerEvent("ping", "one\ntwo")]


def test_comments_ids_and_empty_events_say_nothing() -> None:
    assert read([b": keep alive\n\nid: 7\nretry: 10\n\ndata: x\n\n"]) == [ServerEvent("message", "x")]


def test_the_last_event_counts_though_no_line_follows_it() -> None:
    assert read([b"data: x"]) == [ServerEvent("message", "x")]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_cuts_and_line_ends_change_nothing(cuts: list[int], end: bytes) -> None:
    whole = end.join(["data: né😀".encode(), b"", b"event: e", b"data: {}", b"data: [DONE]", b"", b""])
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[a:b] for a, b in itertools.pairwise(edges)]
    assert read(pieces) == [ServerEvent("message", "né😀"), ServerEvent("e", "{}\n[DONE]")]
