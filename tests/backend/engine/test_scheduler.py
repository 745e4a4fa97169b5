"""Who computes what in the next step."""

from __future__ import annotations

import math

from engine_fakes import Driver, FakeRunner, ListMatcher

from forktree.backend.engine.messages import Emitted, EngineRequest
from forktree.backend.engine.scheduler import Scheduler


def driver(num_pages: int = 64, page_size: int = 4, **config: float) -> Driver:
    return Driver(FakeRunner(num_pages=num_pages, page_size=page_size), **config)


RUNS = [(first, 4, 5, 6, 7, 8, last) for first in range(1, 11) for last in (1, 2)]


class OneThenRun(ListMatcher):
    """The first and the last token of `RUNS` are free, and those between them forced."""

    def forced(self) -> tuple[int, ...]:
        return RUNS[0][1:-1] if len(self.seen) == 1 else ()

    def copy(self) -> OneThenRun:
        twin = OneThenRun(self.options, self.eos, self.vocab)
        twin.seen = self.seen
        return twin


def sizes(one: Driver) -> list[list[int]]:
    """Tokens computed for each sequence, for each step so far."""
    return [[batch.seq_of_row.count(i) for i in range(len(batch.page_tables))] for batch in one.runner.batches]


def test_a_long_prompt_is_computed_in_chunks_beside_a_decode():
    one = driver(max_step_tokens=4, max_running=4)
    one.submit([1, 2], max_tokens=4)
    one.step()
    one.submit([3] * 7, max_tokens=1)
    one.drain()
    assert sizes(one) == [[2], [1, 3], [1, 3], [1, 1]]


# A pass costs one row besides its rows. One decode alone costs 2; at most 3 times that leaves 4 tokens of prompts.
MIX = {"fixed_rows": 1.0, "max_slowdown": 3.0, "min_chunk": 1.0, "max_draft": 0}


def test_beside_a_decode_a_chunk_is_as_long_as_the_slowdown_allows():
    one = driver(**MIX)
    one.submit([1, 2], max_tokens=4)
    one.step()
    one.submit([3] * 9, max_tokens=1)
    one.drain()
    assert sizes(one) == [[2], [1, 4], [1, 4], [1, 1]]


def test_with_nothing_decoding_a_prompt_has_the_whole_step():
    one = driver(max_step_tokens=64, **MIX)
    one.submit([3] * 70, max_tokens=1)
    one.submit([4] * 50, max_tokens=1)
    one.drain()
    assert sizes(one) == [[64], [6, 50]]


def test_a_chunk_beside_a_decode_is_never_shorter_than_the_floor():
    one = driver(**{**MIX, "max_slowdown": 1.0, "min_chunk": 3.0})  # 3 passes of one row cost 6
    one.submit([1, 2], max_tokens=4)
    one.step()
    one.submit([3] * 13, max_tokens=1)
    one.drain()
    assert sizes(one) == [[2], [1, 6], [1, 6], [1, 1]]


def test_what_a_step_may_hold_of_prompts_is_for_all_of_them_the_oldest_first():
    one = driver(**MIX)
    one.submit([1, 2], max_tokens=6)
    one.step()
    one.submit([3] * 6, max_tokens=1)
    one.submit([4] * 5, max_tokens=1)
    one.drain()
    assert sizes(one) == [[2], [1, 4], [1, 2, 2], [1, 3], [1], [1]]


def test_neither_decodes_nor_a_long_prompt_starve_under_a_stream_of_short_ones():
    """A decode has its token in every step, a long prompt its chunk, and who comes later waits for both."""
    one = driver(num_pages=400, **MIX)
    decoding = one.submit([1, 2], max_tokens=40)
    one.step()
    long = one.submit([3] * 60, max_tokens=1)
    for i in range(15):
        one.submit([5, 4 + i % 7], max_tokens=1)
        one.step()
    assert long.is_done
    assert all(step[0] == 1 and step[1] == 4 for step in sizes(one)[1:])
    assert len([event for event in decoding.events if isinstance(event, Emitted)]) == 16
    one.drain()


def test_a_forced_run_beside_decodes_is_theirs_and_no_prompt():
    one = driver(**{**MIX, "max_slowdown": 1.0})  # 2 tokens of prompts, whatever decodes
    one.submit([1, 2], max_tokens=8)
    one.submit([2, 3], max_tokens=8, matcher=OneThenRun(RUNS, 11))
    one.step()
    one.submit([3] * 4, max_tokens=1)
    one.step()
    assert sizes(one) == [[2, 2], [1, 6, 2]]  # the drawn token and the five forced ones


def test_tokens_do_not_depend_on_the_mix():
    outputs = []
    for max_slowdown, min_chunk in ((1.0, 1.0), (2.0, 3.0), (math.inf, 1.0)):
        one = driver(num_pages=400, **{**MIX, "max_slowdown": max_slowdown, "min_chunk": min_chunk})
        listeners = []
        for i in range(6):
            listeners.append(one.submit([i % 3 + 1] * (3 + 7 * i), max_tokens=9))
            one.step()
        one.drain()
        outputs.append([listener.finished.ids for listener in listeners])
    assert outputs[0] == outputs[1] == outputs[2]


def test_no_step_exceeds_its_tokens():
    one = driver(max_step_tokens=5, max_running=5)
    for i in range(9):
        one.submit([i + 1] * (3 + i), max_tokens=4)
    one.drain()
    assert max(sum(step) for step in sizes(one)) == 5


def test_no_more_sequences_run_than_allowed():
    one = driver(max_running=3)
    for i in range(8):
        one.submit([i + 1, 2], max_tokens=5)
    one.drain()
    assert max(len(step) for step in sizes(one)) == 3


def test_of_a_shared_prefix_one_computes_and_the_rest_wait():
    one = driver()
    listeners = [one.submit([1, 2, 3, 4, 5, 6, 7, i], max_tokens=1) for i in (8, 9, 10)]
    one.step()
    assert sizes(one) == [[8]]
    one.step()
    assert sizes(one) == [[8], [1, 1]]
    assert [listener.finished.num_cached for listener in listeners] == [0, 7, 7]


def test_waiting_for_a_prefix_holds_at_every_level():
    one = driver()
    prompts = [[1, 2, 3, 4, 5, head, head, head, head, tail] for head in (20, 30) for tail in (1, 2, 3)]
    for prompt in prompts:
        one.submit(prompt, max_tokens=1)
    one.drain()
    assert sizes(one) == [[10], [1, 1, 5], [1, 1]]
    assert one.core.stats().prefill_tokens == 5 + 2 * 4 + 6


def test_a_tail_inside_a_page_is_copied_from_whoever_runs():
    one = driver(page_size=16)
    one.submit([1, 2, 3, 4, 5], max_tokens=8)
    one.step()
    one.step()  # it decodes: its only page is not full and not in the tree
    second = one.submit([1, 2, 3, 9], max_tokens=2)
    one.drain()
    assert second.finished.num_cached == 3


def test_nobody_waits_for_a_sequence_that_has_what_is_shared():
    one = driver(max_step_tokens=8, max_running=8)
    one.submit([1, 2, 3, 4] + [5] * 30, max_tokens=1)
    one.step()
    one.submit([1, 2, 3, 4, 6], max_tokens=1)
    one.step()
    assert one.core.stats().num_waiting == 1  # the chunk took the step's tokens
    one.submit([1, 2, 3, 4, 7], max_tokens=1)
    one.drain()
    assert one.core.stats().prefill_tokens == 34 + 1 + 1


def test_waiting_is_pointless_where_a_score_recomputes_what_is_cached():
    one = driver()
    prompt = list(range(1, 40))
    one.submit(prompt, max_tokens=1)
    one.drain()
    one.submit([*prompt, 50], score_from=1)  # recomputes all
    one.submit([*prompt, 51], max_tokens=1)
    one.step()
    assert sizes(one) == [[39], [40, 1]]


def test_no_more_is_admitted_than_may_soon_grow():
    one = driver(num_pages=10, page_size=1, headroom_tokens=7)
    for first in (1, 3, 5):
        one.submit([first, first + 1], max_tokens=8)
    one.drain()
    assert one.core.stats().num_preemptions == 0
    assert max(map(len, sizes(one))) == 1


def test_a_preempted_sequence_goes_on_from_what_it_computed():
    one = driver(num_pages=6, page_size=2, headroom_tokens=0)
    first = one.submit([1, 2, 3], max_tokens=7)
    second = one.submit([4, 5, 6], max_tokens=5)
    one.drain()
    stats = one.core.stats()
    assert stats.num_preemptions >= 1
    assert len(first.finished.ids) == 7
    assert len(second.finished.ids) == 5
    assert second.finished.num_cached == 0  # of the prompt, when it was first admitted
    assert stats.cached_tokens == 0
    one.check_idle()


def test_the_newest_is_preempted_and_the_oldest_never():
    one = driver(num_pages=8, page_size=1, headroom_tokens=0)
    oldest = one.submit([1, 2], max_tokens=7)
    one.submit([3, 4], max_tokens=7)
    one.submit([5, 6], max_tokens=7)
    num_steps = 0
    while not oldest.is_done:
        one.step()
        num_steps += 1
    assert num_steps == 7


def test_a_trunk_comes_before_its_branches_and_branches_stay_together():
    one = driver(max_running=1)
    order = []
    for i, ids in enumerate(([1, 2, 3], [7, 8, 9], [1, 2, 4], [7, 8, 5], [1, 2])):
        request = EngineRequest(ids=tuple(ids), max_tokens=1, on_event=lambda event, i=i: order.append(i))
        one.core.add(one.core.make_sequence(i, request))
    one.drain()
    assert order == [4, 0, 2, 1, 3]


def test_the_head_of_the_queue_is_overtaken_a_bounded_number_of_times():
    one = driver(max_running=1, max_overtakes=5)
    one.submit([1, 1], max_tokens=2)
    one.step()
    cold = one.submit([2, 2], max_tokens=1)
    hot = [one.submit([1, 1, i], max_tokens=2) for i in range(3, 12)]
    while not cold.is_done:
        one.step()
        hot.append(one.submit([1, 1, len(hot)], max_tokens=2))
    assert sum(listener.is_done for listener in hot) == 5
    one.drain()


def test_a_large_request_is_not_starved_by_small_ones():
    one = driver(num_pages=8, page_size=4, max_overtakes=3, headroom_tokens=0)
    for _ in range(3):
        one.submit([1, 1, 1], max_tokens=6)
    one.step()
    large = one.submit([2] * 30, max_tokens=2)
    num_small = 0
    while not large.is_done:
        one.submit([1, 1, 1, 3], max_tokens=6)
        num_small += 1
        one.step()
        assert num_small < 100
    one.drain()
    one.check_idle()


def test_cancelling_an_old_head_lets_the_next_go_on():
    one = driver(num_pages=4, page_size=4, max_overtakes=1, headroom_tokens=0)
    one.submit([1] * 8, max_tokens=4)
    one.step()
    one.submit([2] * 16, max_tokens=1)
    one.submit([3, 3], max_tokens=1)
    one.step()
    one.core.cancel(1)
    one.drain()
    assert one.core.stats().num_finished == 2
    one.check_idle()


def test_a_request_that_meets_a_dead_end_is_told_instead_of_hanging(monkeypatch):
    one = driver()
    monkeypatch.setattr(Scheduler, "_admit", lambda self, plan, budget: None)  # a bug, put in on purpose
    listener = one.submit([1, 2], max_tokens=1)
    one.drain()
    assert "nothing can be scheduled" in str(listener.error)
