"""Continuations of a prompt are scored in one pass over their trie, and each as if it were scored alone."""

from __future__ import annotations

import itertools

import pytest
from engine_fakes import Driver, FakeRunner, log_softmax, run_alone
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.engine.continuations import Continuations, lay_out, merge_runs
from forktree.kernels.token_tree import TokenTree
from forktree.lang.errors import ContextLengthError

# --- the trie ----------------------------------------------------------------------------------------------------


def test_runs_that_begin_alike_share_nodes_and_equal_ones_end_at_the_same():
    trie, ends = merge_runs([(1, 2, 3), (4, 5), (1, 6), (1, 2), (), (4, 5)])
    assert trie == Continuations((1, 2, 3, 6, 4, 5), (-1, 0, 1, 0, -1, 4))
    assert ends == [2, 5, 3, 1, -1, 5]
    assert [[trie.tokens[node] for node in trie.path_to(end)] for end in ends[:3]] == [[1, 2, 3], [4, 5], [1, 6]]


def test_a_node_that_nothing_follows_is_foretold_and_not_computed():
    trie, _ = merge_runs([(1, 2, 3), (1, 6), (4,)])
    rows = lay_out(trie, 10)
    assert rows.tokens == (1, 2)
    assert rows.offsets == (0, 1)
    assert rows.tree == TokenTree(10, (9, 10))
    assert rows.foretold == ((0, 4), (1, 3), (2,))
    assert rows.height == 3


def test_the_way_to_a_place_begins_behind_the_prompt():
    tree = TokenTree(10, (9, 10, 10, 9))
    assert [tree.path_to(place) for place in (9, 11, 12, 13)] == [[], [10, 11], [10, 12], [13]]


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-1, -1, 0), (-1, 0, -1, 1)])
def test_nodes_out_of_order_are_refused(parents):
    with pytest.raises(ValueError, match="not depth first"):
        Continuations((1,) * len(parents), parents)


def test_a_parent_for_each_token():
    with pytest.raises(ValueError, match="2 tokens, but 1 parents"):
        Continuations((1, 2), (-1,))


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12))
def test_every_run_is_the_way_to_its_end(runs):
    trie, ends = merge_runs(runs)
    assert [[trie.tokens[node] for node in trie.path_to(end)] for end in ends] == runs
    assert len(trie.tokens) == len({tuple(run[: i + 1]) for run in runs for i in range(len(run))})


# --- scores ------------------------------------------------------------------------------------------------------


def plain_scores(prompt: list[int], runs: list[list[int]], runner: FakeRunner) -> dict[tuple[int, ...], float]:
    """The log-probability of each beginning of each run, by the definition."""
    scores = {}
    for run in runs:
        for size in range(len(run)):
            before = (*prompt, *run[:size])
            scores[tuple(run[: size + 1])] = log_softmax(before, runner.logit, runner.vocab)[run[size]]
    return scores


def scores_by_run(trie: Continuations, logprobs: tuple[float, ...]) -> dict[tuple[int, ...], float]:
    return {tuple(trie.tokens[n] for n in trie.path_to(node)): logprobs[node] for node in range(len(trie.tokens))}


def check(prompt: list[int], runs: list[list[int]], one: Driver, listener) -> None:
    finished = listener.finished
    assert (finished.ids, finished.reason, finished.num_prompt) == ((), "length", len(prompt))
    trie, _ = merge_runs(runs)
    assert scores_by_run(trie, finished.continuation_logprobs) == plain_scores(prompt, runs, one.runner)


PROMPT = [1, 2, 3, 4, 5, 6, 7]
RUNS = [[1, 2, 3], [1, 2, 4, 5], [1, 2], [8], [9, 1, 2, 3, 4], [9, 1, 2, 8]]


@pytest.mark.parametrize("num_tokens", [1, 3, 64])
def test_every_continuation_is_scored_as_if_alone_in_any_chunks(num_tokens):
    one = Driver(FakeRunner(), max_step_tokens=num_tokens)
    listener = one.submit(PROMPT, continuations=merge_runs(RUNS)[0])
    one.drain()
    check(PROMPT, RUNS, one, listener)
    stats = one.core.stats()
    num_rows = 3 + 4  # 1, 2 and 4 of the first four; 9, 1, 2 and 3 of the others
    assert (stats.prefill_tokens, stats.decode_tokens) == (7 + num_rows, 0)
    assert stats.num_steps == (1 if num_tokens == 64 else -(-(7 + num_rows) // num_tokens))
    one.check_idle()


def test_the_prompt_stays_cached_and_the_trie_does_not():
    one = Driver(FakeRunner(num_pages=40))
    for _ in range(2):
        listener = one.submit(PROMPT, continuations=merge_runs(RUNS)[0])
        one.drain()
        check(PROMPT, RUNS, one, listener)
    assert listener.finished.num_cached == 6  # the last is computed for its logits
    (nodes,) = one.core.cached_tree().values()
    cached: list[int] = []
    while nodes:
        (node,) = nodes
        nodes = node.children
        cached += node.tokens
    assert cached == PROMPT
    assert one.core.stats().pages_cached == 2
    longer = one.submit([*PROMPT, 1, 2], max_tokens=2)
    one.drain()
    assert longer.finished.num_cached == 7
    assert longer.finished.ids == run_alone([*PROMPT, 1, 2], max_tokens=2).ids


def test_a_prompt_of_several_scored_tokens_and_continuations():
    one = Driver(FakeRunner(), max_step_tokens=2)
    listener = one.submit(PROMPT, score_from=4, continuations=merge_runs(RUNS)[0])
    one.drain()
    check(PROMPT, RUNS, one, listener)
    assert listener.finished.prompt_logprobs == run_alone(PROMPT, score_from=4).prompt_logprobs


def test_a_burst_computes_every_prompt_once_and_each_row_of_a_trie():
    one = Driver(FakeRunner(num_pages=200), max_step_tokens=64)
    trunk = [i % 9 for i in range(40)]
    asked = [([*trunk, i, 3], [[1, 2, i], [1, 3], [2]]) for i in range(8)]
    heard = [(prompt, runs, one.submit(prompt, continuations=merge_runs(runs)[0])) for prompt, runs in asked]
    one.drain()
    for prompt, runs, listener in heard:
        check(prompt, runs, one, listener)
    assert one.core.stats().prefill_tokens == 40 + 8 * 2 + 8 * 2


def test_scores_go_on_after_a_preemption():
    """An older request grows until the newer one has to give its pages back in the middle of its trie."""
    one = Driver(FakeRunner(num_pages=12, page_size=2), max_step_tokens=2, max_running=2, headroom_tokens=0)
    older = one.submit([8, 8], max_tokens=16)
    one.step()
    listener = one.submit(PROMPT, continuations=merge_runs(RUNS)[0])
    one.drain()
    assert one.core.stats().num_preemptions > 0
    check(PROMPT, RUNS, one, listener)
    assert older.finished.ids == run_alone([8, 8], max_tokens=16).ids
    one.check_idle()


def test_a_cancelled_trie_gives_every_page_back():
    one = Driver(FakeRunner(), max_step_tokens=2)
    one.submit(PROMPT, continuations=merge_runs(RUNS)[0])
    for _ in range(5):
        one.step()  # inside the trie
    one.core.cancel(0)
    one.check_idle()
    assert one.core.stats().pages_cached == 2


def test_a_trie_too_large_for_the_pool_or_the_context_is_refused_with_both_numbers():
    one = Driver(FakeRunner(num_pages=3, page_size=4, max_context=10))
    with pytest.raises(ContextLengthError, match="prompt and continuation have 12 tokens") as caught:
        one.submit(PROMPT, continuations=merge_runs(RUNS)[0])
    assert (caught.value.limit, caught.value.tokens) == (10, 12)
    with pytest.raises(ContextLengthError, match="need 13 tokens of KV cache, and the pool holds 12") as caught:
        one.submit(PROMPT, continuations=merge_runs([[i, i] for i in range(6)])[0])
    assert (caught.value.limit, caught.value.tokens) == (12, 13)
    fits = one.submit(PROMPT, continuations=merge_runs([[i, i] for i in range(5)])[0])
    one.drain()
    check(PROMPT, [[i, i] for i in range(5)], one, fits)


def test_what_cannot_be_scored_is_named():
    one = Driver(FakeRunner())
    with pytest.raises(ValueError, match="continuations is empty"):
        one.submit(PROMPT, continuations=Continuations((), ()))
    with pytest.raises(ValueError, match="max_tokens must be 0, not 1"):
        one.submit(PROMPT, continuations=merge_runs(RUNS)[0], max_tokens=1)


SELECTS = st.tuples(
    st.lists(st.integers(1, 2), min_size=1, max_size=16),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=6),
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(SELECTS, min_size=1, max_size=6),
    st.sampled_from([1, 2, 4, 16]),
    st.integers(1, 30),
    st.integers(1, 5),
    st.data(),
)
def test_any_tries_among_other_work_are_scored_exactly(selects, page_size, num_tokens, max_running, data):
    runner = FakeRunner(num_pages=-(-64 // page_size), page_size=page_size)
    config = {"max_step_tokens": max(num_tokens, max_running), "max_running": max_running, "headroom_tokens": 0}
    one = Driver(runner, **config)
    heard = []
    for prompt, runs in selects:
        decode = one.submit(prompt, max_tokens=data.draw(st.integers(0, 9)))
        heard.append((prompt, runs, one.submit(prompt, continuations=merge_runs(runs)[0]), decode))
        for _ in range(data.draw(st.integers(0, 4))):
            one.step()
        one.core._memory.tree.evict(data.draw(st.sampled_from([0, 0, 3])))
    one.drain()
    one.check_idle()
    for prompt, runs, listener, decode in heard:
        check(prompt, runs, one, listener)
        assert decode.finished.ids == run_alone(prompt, max_tokens=9).ids[: len(decode.finished.ids)]


def test_the_order_of_continuations_changes_no_score():
    answers = set()
    for runs in itertools.permutations(RUNS[:4]):
        trie, _ = merge_runs(runs)
        one = Driver(FakeRunner(), max_step_tokens=4)
        listener = one.submit(PROMPT, continuations=trie)
        one.drain()
        answers.add(tuple(sorted(scores_by_run(trie, listener.finished.continuation_logprobs).items())))
    assert len(answers) == 1
