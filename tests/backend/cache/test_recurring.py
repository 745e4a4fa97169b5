"""What many requests begin with is learned, what went out of use is forgotten, and neither grows for ever."""

from __future__ import annotations

import json

import pytest

from forktree.backend.cache.addresses import page_addresses
from forktree.backend.cache.recurring import Prefix, Recurring, read_stored

SYSTEM = [1, 2, 3, 4]


def note(recurring, ids, *num_tokens, namespace=""):
    addresses = page_addresses(namespace, ids, len(ids), 2)
    recurring.note(namespace, ids, [(count, addresses[count // 2 - 1]) for count in num_tokens])


def test_a_prefix_that_came_back_is_among_the_best_and_one_that_came_once_is_not():
    recurring = Recurring()
    note(recurring, [*SYSTEM, 7, 7], 4)
    note(recurring, [*SYSTEM, 8, 8], 4)
    note(recurring, [9, 9], 2)
    assert recurring.best(8) == [Prefix("", tuple(SYSTEM))]


def test_the_same_tokens_of_another_namespace_are_another_prefix():
    recurring = Recurring()
    for namespace in ("", "", "tenant", "tenant"):
        note(recurring, SYSTEM, 4, namespace=namespace)
    assert [prefix.namespace for prefix in recurring.best(8)] == ["tenant", ""]  # the newer is the likelier


def test_what_went_out_of_use_is_forgotten_and_the_likeliest_comes_first():
    recurring = Recurring(half_life=4)
    for _ in range(6):
        note(recurring, SYSTEM, 4)
    for _ in range(24):
        note(recurring, [5, 6], 2)
    note(recurring, SYSTEM, 4)
    assert recurring.best(8) == [Prefix("", (5, 6))]


def test_the_count_is_bounded_and_keeps_what_is_used_most():
    recurring = Recurring(most_prefixes=8)
    for number in range(200):
        note(recurring, SYSTEM, 4)
        note(recurring, [number, number], 2)
    assert len(recurring) == 8
    assert recurring.best(1) == [Prefix("", tuple(SYSTEM))]


def test_what_was_learned_is_known_to_the_next_process():
    recurring = Recurring()
    for _ in range(5):
        note(recurring, SYSTEM, 2, 4)
    later = Recurring()
    for prefix, score in read_stored(recurring.to_json()):
        later.add_stored(page_addresses("", list(prefix.ids), len(prefix.ids), 2)[-1], prefix, score)
    assert later.best(8) == recurring.best(8) == [Prefix("", (1, 2)), Prefix("", (1, 2, 3, 4))]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2, "prefixes": []}',
        '{"version": 1, "prefixes": [["", 1, []]]}',
        '{"version": 1, "prefixes": [["", 1, [1.5]]]}',
        '{"version": 1, "prefixes": [[3, 1, [1]]]}',
        '{"version": 1, "prefixes": [["", "a", [1]]]}',
    ],
)
def test_notes_of_something_else_are_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        read_stored(text)


def test_at_most_64_prefixes_are_stored():
    recurring = Recurring()
    for number in range(100):
        note(recurring, [number, number], 2)
    assert len(json.loads(recurring.to_json())["prefixes"]) == 64
