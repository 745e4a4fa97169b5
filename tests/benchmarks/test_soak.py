"""What a soak calls flat, and what it calls a leak."""

from __future__ import annotations

import threading
from dataclasses import replace

from forktree.benchmarks.soak import Gate, Tally, Weight, _compare, judge, rise_of

FIRST = Weight(
    minutes=1.0,
    num_tasks=10,
    num_requests=20,
    rss_mib=600.0,
    num_objects=400_000,
    num_files=12,
    num_threads=15,
    num_pages_cached=90,
    computed_tokens=1_000,
    cached_tokens=2_000,
    disk_mib=1.0,
)


def weights(**per_minute: float) -> list[Weight]:
    """Sixty, a minute apart, whose values grow by so much each minute."""
    return [
        replace(
            FIRST,
            minutes=float(minute),
            **{name: getattr(FIRST, name) + growth * minute for name, growth in per_minute.items()},
        )
        for minute in range(1, 61)
    ]


def test_what_stays_is_flat() -> None:
    assert judge(weights(num_tasks=50, computed_tokens=900), Tally(), 1.0) == []


def test_a_leak_of_memory_or_objects_is_told_in_percent() -> None:
    assert round(rise_of(weights(rss_mib=1.0), "rss_mib"), 1) == 7.5  # 48 MiB of 636
    assert judge(weights(rss_mib=1.0, num_objects=100.0), Tally(), 1.0) == [
        "resident memory rose by 7.55 %",
        "live objects rose by 1.19 %",
    ]


def test_what_is_loaded_at_first_is_no_leak() -> None:
    grown = [replace(w, rss_mib=600.0 + min(10.0, w.minutes) * 20) for w in weights()]
    assert judge(grown, Tally(), 1.0) == []


def test_one_file_or_thread_more_at_the_end_is_told() -> None:
    late = [replace(w, num_files=13, num_threads=16) if w.minutes > 30 else w for w in weights()]
    assert judge(late, Tally(), 1.0) == ["open files rose from 12 to 13", "threads rose from 15 to 16"]


def test_another_answer_than_the_first_is_a_fault() -> None:
    tally = Tally()
    for answer in ("a", "a", "b"):
        _compare(tally, "gen", 7, answer, is_kept=True)
    assert tally.faults == ["gen 7: another answer than the first: b"]
    assert judge(weights(), tally, 1.0) == ["fault: gen 7: another answer than the first: b"]


def test_a_closed_gate_holds_every_thread_between_two_tasks() -> None:
    gate, at_work, num_passed = Gate(3), threading.Barrier(4), [0]
    is_over = threading.Event()

    def work() -> None:
        at_work.wait()
        while not is_over.is_set():
            gate.pass_through()
            num_passed[0] += 1
        gate.leave()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    at_work.wait()
    with gate.closed():
        before = num_passed[0]
        assert num_passed[0] == before
        is_over.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    with gate.closed():  # those that have ended count as held
        pass
