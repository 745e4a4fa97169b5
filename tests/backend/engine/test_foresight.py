"""What recurs or is expected is in the pool before it is asked for, and nobody waits for it."""

from __future__ import annotations

import time

from engine_fakes import Driver, run_alone
from moving_fakes import MovingRunner, disk

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.loop import Engine
from forktree.backend.engine.messages import EngineRequest

SYSTEM = [1, 2] * 8


def driver(num_pages=32, **config):
    return Driver(MovingRunner(num_pages=num_pages, page_size=2), fixed_rows=1e9, **config)


def ask(one, ids, **fields):
    listener = one.submit(ids, max_tokens=2, **fields)
    one.drain()
    return listener.finished


def idle(one):
    """Let the engine do what it does when nobody asks."""
    for _ in range(2000):
        pause_s = one.core.prepare()
        one.core.check()
        if pause_s is None:
            return
        time.sleep(pause_s)
    raise AssertionError("it never ends")


def cached(one, ids):
    return one.core.count_cached([tuple(ids)])[0]


def push_out(one):
    for token in (7, 8, 9):
        ask(one, [token] * 58)


def teach(one):
    for token in (3, 4, 5, 6):
        ask(one, [*SYSTEM, token, token])


def test_a_prefix_that_requests_come_back_to_is_brought_up_while_nothing_runs():
    one = driver(host_bytes=1 << 20)
    teach(one)
    push_out(one)
    assert cached(one, SYSTEM) == 0
    idle(one)
    assert cached(one, SYSTEM) == 16
    assert one.core.stats().pages_foreseen == 8
    assert ask(one, [*SYSTEM, 3, 3]).ids == run_alone([*SYSTEM, 3, 3], max_tokens=2).ids
    one.check_idle()


def test_a_prompt_that_came_once_is_not_brought_up():
    one = driver(host_bytes=1 << 20)
    ask(one, SYSTEM)
    push_out(one)
    idle(one)
    assert cached(one, SYSTEM) == 0


def test_at_most_a_quarter_of_the_pool_is_taken_for_it():
    one = driver(num_pages=24, host_bytes=1 << 20)
    teach(one)
    ask(one, [7] * 44)
    idle(one)
    assert cached(one, SYSTEM) <= 2 * (24 // 4) + 2 * 2


def test_a_restarted_engine_knows_what_recurs_and_has_it_before_the_first_request(tmp_path):
    one = driver(**disk(tmp_path))
    teach(one)
    one.core.close()
    engine = Engine(MovingRunner(num_pages=32, page_size=2), EngineConfig(fixed_rows=1e9, **disk(tmp_path)))
    deadline = time.monotonic() + 20
    while engine.stats().pages_foreseen < 8 and time.monotonic() < deadline:  # nobody may ask anything meanwhile
        time.sleep(0.005)
    assert engine.count_cached([tuple(SYSTEM)]) == [16]
    events = []
    engine.submit(EngineRequest(ids=(*SYSTEM, 3, 3), on_event=events.append, max_tokens=2))
    engine.flush()
    engine.close()


def test_notes_of_something_else_cost_a_warning(tmp_path, caplog):
    one = driver(**disk(tmp_path))
    teach(one)
    one.core.close()
    (notes,) = tmp_path.glob("*/recurring.json")
    notes.write_text('{"version": 99}')
    two = driver(**disk(tmp_path))
    assert not two.core.has_plans
    assert "learned again" in caplog.text
    two.core.close()


def test_what_is_expected_comes_up_before_it_is_asked_for(tmp_path):
    one = driver(**disk(tmp_path))
    ask(one, SYSTEM)
    one.core.close()
    two = driver(**disk(tmp_path))
    two.core.expect("", [(*SYSTEM, 5), tuple(SYSTEM)])
    idle(two)
    assert cached(two, SYSTEM) == 16
    two.core.close()


def test_what_is_expected_stays_in_the_pool_though_it_was_used_longest_ago():
    one = driver(num_pages=40)
    ask(one, SYSTEM)
    ask(one, [7] * 30)
    ask(one, [8] * 20)
    one.core.expect("", [tuple(SYSTEM)])
    ask(one, [9] * 20)
    assert cached(one, SYSTEM) == 16
    assert cached(one, [7] * 30) < 30


def test_expected_prompts_of_another_namespace_or_none_at_all_bring_nothing(tmp_path):
    one = driver(**disk(tmp_path))
    ask(one, SYSTEM)
    one.core.close()
    two = driver(**disk(tmp_path))
    two.core.expect("tenant", [tuple(SYSTEM), ()])
    idle(two)
    assert two.core.stats().pages_foreseen == 0
    two.core.close()


def test_what_a_live_run_left_stays_while_others_go_and_goes_with_the_run():
    one = driver(num_pages=32)
    ask(one, SYSTEM, owner=1)
    push_out(one)
    assert cached(one, SYSTEM) == 0  # others need all of the pool: it goes in the end
    ask(one, SYSTEM, owner=1)
    for token in (7, 8, 9, 10, 11):
        ask(one, [token] * 10)
    assert cached(one, SYSTEM) == 16
    one.core.end_run(1)
    for token in (7, 8, 9, 10, 11):
        ask(one, [token] * 10)
    assert cached(one, SYSTEM) < 16
