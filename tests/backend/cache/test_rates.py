"""The cheaper of loading and computing is done, by what both were measured to cost."""

from __future__ import annotations

from forktree.backend.cache.rates import FixedRates, MeasuredRates

MB = 1 << 20


def rates(**seconds_of):
    """Rates that have seen a step take so long for a million units, often enough to be sure."""
    made = MeasuredRates()
    for step, seconds in seconds_of.items():
        for _ in range(30):
            made.note(step, 1_000_000, seconds)
    return made


def test_a_prefix_is_read_where_the_disk_is_faster_than_the_model_and_computed_where_it_is_not():
    slow_model, fast_model = rates(compute=1000.0, disk=0.01), rates(compute=20.0, disk=0.01)
    assert slow_model.is_worth(copied=2 * MB, read=2 * MB, num_tokens=64)
    assert not fast_model.is_worth(copied=200 * MB, read=200 * MB, num_tokens=64)


def test_a_short_prefix_is_computed_where_a_read_costs_more_than_its_bytes():
    fast = rates(compute=20.0, disk=0.001)
    assert not fast.is_worth(copied=MB, read=MB, num_tokens=16)
    assert fast.is_worth(copied=100 * MB, read=100 * MB, num_tokens=100_000)


def test_host_memory_is_worth_it_where_a_disk_is_not():
    slow_disk = rates(compute=1000.0, disk=10.0, copy=0.001)
    assert not slow_disk.is_worth(copied=MB, read=MB, num_tokens=16)
    assert slow_disk.is_worth(copied=MB, read=0, num_tokens=16)


def test_rates_follow_what_is_measured():
    made = MeasuredRates()
    for _ in range(40):
        made.note("disk", MB, 1.0)
    assert 0.9 < made.seconds("disk", MB) < 1.1
    for _ in range(40):
        made.note("disk", MB, 0.01)
    assert made.seconds("disk", MB) < 0.02


def test_a_tier_that_was_slow_once_is_tried_again_in_the_end():
    made = rates(compute=1000.0, disk=10.0)
    decisions = [made.is_worth(copied=MB, read=MB, num_tokens=16) for _ in range(200)]
    assert not decisions[0]
    assert decisions[-1]


def test_what_took_no_amount_is_not_noted():
    made = MeasuredRates()
    before = made.seconds("disk", MB)
    made.note("disk", 0, 5.0)
    assert made.seconds("disk", MB) == before


def test_a_request_waits_about_as_long_as_computing_takes_and_never_for_ever():
    made = rates(compute=1000.0, disk=0.001)
    assert 0.9 < made.patience_s(read=MB, num_tokens=1000) < 1.1
    assert made.patience_s(read=MB, num_tokens=1_000_000) == 5.0
    assert FixedRates().is_worth(copied=1 << 50, read=1 << 50, num_tokens=1)
