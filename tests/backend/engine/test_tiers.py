"""The engine over a pool that is too small, with host memory and a disk below it."""

from __future__ import annotations

import threading

import pytest
from engine_fakes import Driver, FakeRunner, run_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from moving_fakes import MovingRunner, disk

from forktree.backend.cache.rates import MeasuredRates
from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.core import EngineCore
from forktree.lang.errors import UnsupportedError

LONG = [1, 2] * 12


def driver(num_pages=16, **config):
    return Driver(MovingRunner(num_pages=num_pages, page_size=2), fixed_rows=1e9, **config)


def ask(one, ids, **fields):
    listener = one.submit(ids, max_tokens=3, **fields)
    one.drain()
    return listener.finished


def test_an_evicted_prefix_comes_back_from_host_memory_and_changes_nothing():
    one = driver(host_bytes=1 << 20)
    first = ask(one, LONG)
    ask(one, [3] * 28)
    assert one.core.count_cached([tuple(LONG)]) == [0]
    second = ask(one, LONG)
    assert (second.ids, second.tokens) == (first.ids, first.tokens)
    assert second.num_cached == 22


def test_without_a_tier_an_evicted_prefix_is_computed_again():
    one = driver()
    ask(one, LONG)
    ask(one, [3] * 28)
    assert ask(one, LONG).num_cached == 0


def test_a_restarted_engine_serves_a_prefix_from_the_disk(tmp_path):
    one = driver(**disk(tmp_path))
    first = ask(one, LONG)
    one.core.close()
    two = driver(**disk(tmp_path))
    second = ask(two, LONG)
    assert (second.ids, second.tokens) == (first.ids, first.tokens)
    assert second.num_cached == 22


def test_a_namespace_never_finds_the_pages_of_another(tmp_path):
    one = driver(**disk(tmp_path), host_bytes=1 << 20)
    ask(one, LONG)
    one.core.close()
    assert ask(driver(**disk(tmp_path)), LONG, namespace="tenant").num_cached == 0


def test_a_spoiled_file_is_computed_again(tmp_path):
    one = driver(**disk(tmp_path))
    first = ask(one, LONG)
    one.core.close()
    for path in tmp_path.glob("*/*/*.kv"):
        path.write_bytes(path.read_bytes()[:-3])
    second = ask(driver(**disk(tmp_path)), LONG)
    assert second.num_cached == 0
    assert second.ids == first.ids


@pytest.mark.parametrize("num_sound", [0, 3])
def test_a_page_that_cannot_be_brought_up_is_computed_with_those_behind_it(num_sound, monkeypatch):
    one = driver(host_bytes=1 << 20)
    first = ask(one, LONG)
    ask(one, [3] * 28)
    write, num_written = one.runner.write_page, 0

    def fail_late(page, data):
        nonlocal num_written
        num_written += 1
        if num_written > num_sound:
            one.runner.slots[page * 2] = (-1, -1)  # half done
            raise RuntimeError("out of memory")
        write(page, data)

    monkeypatch.setattr(one.runner, "write_page", fail_late)
    second = ask(one, LONG)
    assert (second.ids, second.tokens) == (first.ids, first.tokens)
    assert second.num_cached == 2 * num_sound
    one.check_idle()


def test_flush_forgets_host_memory_too():
    one = driver(host_bytes=1 << 20)
    ask(one, LONG)
    one.core.flush()
    assert ask(one, LONG).num_cached == 0


def test_a_runner_whose_pages_cannot_be_moved_is_refused():
    with pytest.raises(UnsupportedError, match="host_bytes"):
        EngineCore(FakeRunner(), EngineConfig(host_bytes=1))


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=14), min_size=1, max_size=10),
    num_pages=st.integers(9, 14),
    host_bytes=st.sampled_from([100, 1 << 20]),
)
def test_any_load_over_a_tiny_pool_finishes_as_each_request_alone(prompts, num_pages, host_bytes):
    one = driver(num_pages, host_bytes=host_bytes, max_running=4, headroom_tokens=0)
    try:
        for _ in range(2):
            listeners = [one.submit(ids, max_tokens=4) for ids in prompts]
            one.drain()
            for ids, listener in zip(prompts, listeners, strict=True):
                assert listener.finished.ids == run_alone(ids, max_tokens=4).ids
        one.check_idle()
    finally:
        one.core.close()


def test_every_queued_request_finds_its_prefix_on_the_disk_however_many_wait(tmp_path):
    prompts = [[1 + number // 9, 1 + number % 9] * 8 for number in range(30)]
    one = driver(num_pages=24, max_running=1, **disk(tmp_path))
    first = [ask(one, ids) for ids in prompts]
    one.core.close()
    two = driver(num_pages=24, max_running=1, **disk(tmp_path))
    listeners = [two.submit(ids, max_tokens=3) for ids in prompts]
    two.drain()
    assert [each.finished.ids for each in listeners] == [each.ids for each in first]
    assert [each.finished.num_cached for each in listeners] == [14] * 30
    two.core.close()


def test_a_request_whose_prefix_is_on_its_way_holds_nobody_back(tmp_path, monkeypatch):
    one = driver(**disk(tmp_path))
    ask(one, LONG)
    one.core.close()
    two = driver(num_pages=1024, **disk(tmp_path))
    gate = threading.Event()
    read = two.core._memory.tiers._disk.read
    monkeypatch.setattr(two.core._memory.tiers._disk, "read", lambda address: gate.wait(10) and read(address))
    long = two.submit([9] * 4, max_tokens=1500)
    two.step()
    slow, quick = two.submit(LONG, max_tokens=3), two.submit([5] * 6, max_tokens=3)
    while not quick.is_done:
        two.core.step()
    assert not long.is_done
    assert not slow.events
    gate.set()
    while not slow.is_done:
        two.core.step()
    assert slow.finished.num_cached == 22
    two.core.close()


def test_what_prompts_cost_is_measured_as_they_are_computed_and_a_fast_model_computes_again():
    class Fast(MeasuredRates):
        """Each token took a nanosecond."""

        def note(self, step, amount, seconds):
            noted.append((step, amount))
            super().note(step, amount, 1e-9 * amount if step == "compute" else seconds)

    noted = []
    one = driver(host_bytes=1 << 20)
    one.core._memory.tiers._rates = Fast()
    first = ask(one, LONG)
    ask(one, [3] * 28)
    assert noted == [("compute", 24), ("compute", 28)]
    assert ask(one, LONG).num_cached == 22  # nobody is sure yet
    ask(one, [3] * 28)
    for _ in range(60):
        one.core._memory.note_step(24, 0, 1.0)
    again = ask(one, LONG)
    assert (again.ids, again.num_cached) == (first.ids, 0)
    assert one.core.stats().num_declined > 0
