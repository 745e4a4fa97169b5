"""The forest of live requests."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from forktree.backend.engine.forest import Forest
from forktree.backend.engine.messages import EngineRequest
from forktree.backend.engine.request import Sequence


def seq(id: int, text: str, namespace: str = "") -> Sequence:
    ids = tuple(ord(c) for c in text)
    return Sequence(id, EngineRequest(ids=ids, on_event=lambda event: None, namespace=namespace), 1)


def plant(*texts: str) -> tuple[Forest, list[Sequence]]:
    forest, seqs = Forest(), [seq(i, text) for i, text in enumerate(texts)]
    for one in seqs:
        forest.add(one)
    return forest, seqs


def test_the_deepest_shared_prefix_is_with_running_sequences_only():
    forest, (a, b, c) = plant("abcdef", "abcxyz", "abcdxx")
    assert forest.deepest_shared(c) is None
    forest.mark_running(b)
    assert forest.deepest_shared(c).end == 3
    forest.mark_running(a)
    assert forest.deepest_shared(c).end == 4
    forest.mark_waiting(a)
    assert forest.deepest_shared(c).end == 3


def test_a_prompt_that_begins_another_shares_all_of_itself():
    forest, (a, b) = plant("abcdef", "abc")
    forest.mark_running(a)
    assert forest.deepest_shared(b).end == 3


def test_a_branch_filed_later_knows_who_runs_above_it():
    forest, (a,) = plant("abcdef")
    forest.mark_running(a)
    b = seq(1, "abzz")
    forest.add(b)
    assert list(forest.deepest_shared(b).running) == [a]


def test_sharing_nothing_is_sharing_with_nobody():
    forest, (a, b) = plant("abc", "xyz")
    forest.mark_running(a)
    assert forest.deepest_shared(b) is None


def test_namespaces_are_apart():
    forest, (a,) = plant("abc")
    forest.mark_running(a)
    b = seq(1, "abc", "tenant")
    forest.add(b)
    assert forest.deepest_shared(b) is None


def test_depth_first_keeps_branches_together_oldest_first():
    forest, seqs = plant("ab1", "xy1", "ab2", "xy2", "ab", "ab21")
    assert [s.id for s in forest.depth_first(seqs)] == [4, 0, 2, 5, 1, 3]


def test_depth_first_begins_where_something_runs():
    forest, seqs = plant("ab1", "xy1", "ab2", "xy2")
    forest.mark_running(seqs[3])
    assert [s.id for s in forest.depth_first(seqs[:3])] == [1, 0, 2]


@given(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=12), st.data())
def test_the_forest_agrees_with_comparing_every_pair(texts, data):
    forest, seqs = plant(*texts)
    running = [s for s in seqs if data.draw(st.booleans())]
    for s in running:
        forest.mark_running(s)
    gone = [s for s in seqs if data.draw(st.booleans())]
    for s in gone:
        forest.remove(s)
    for s in (s for s in seqs if s not in gone and s not in running):
        best = max((_common(s.ids, r.ids) for r in running if r not in gone), default=0)
        node = forest.deepest_shared(s)
        assert (0 if node is None else node.end) == best
    rest = [s for s in seqs if s not in gone]
    ordered = forest.depth_first(rest)
    assert sorted(s.id for s in ordered) == [s.id for s in rest]
    _assert_contiguous(ordered)
    for s in rest:
        forest.remove(s)
    assert not forest._roots


def _assert_contiguous(ordered: list[Sequence]) -> None:
    for size in range(1, 7):
        heads = [tuple(s.ids[:size]) for s in ordered if len(s.ids) >= size]
        changes = sum(a != b for a, b in itertools.pairwise(heads))
        assert changes == max(0, len(set(heads)) - 1)


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
