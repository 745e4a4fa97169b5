"""Pages go down and come up, the disk is asked nothing on the engine's thread, and the cheaper way is taken."""

from __future__ import annotations

import threading

import pytest

from forktree.backend.cache.addresses import page_addresses
from forktree.backend.cache.disk import DiskTier
from forktree.backend.cache.rates import FixedRates, MeasuredRates
from forktree.backend.cache.tiers import Tiers

IDS = [1, 2, 3, 4, 5, 6]
ADDRESSES = page_addresses("", IDS, 6, 2)


class Pool:
    """Pages are bytes."""

    def __init__(self):
        self.pages = {0: b"aaaa", 1: b"bbbb", 2: b"cccc"}
        self.is_broken = False

    def read_page(self, page):
        if self.is_broken:
            raise RuntimeError("a page cannot be read")
        return self.pages[page]

    def write_page(self, page, data):
        if self.is_broken:
            raise RuntimeError("a page cannot be written")
        self.pages[page] = bytes(data)


class SlowDisk(DiskTier):
    """Looks and reads when it is let."""

    def __init__(self, folder):
        super().__init__(folder, "m", limit_bytes=1 << 20)
        self.gate = threading.Event()
        self.threads = set()

    def has(self, address):
        self.threads.add(threading.current_thread().name)
        assert self.gate.wait(10)
        return super().has(address)

    def read(self, address):
        self.threads.add(threading.current_thread().name)
        return super().read(address)


class Refusing(FixedRates):
    def is_worth(self, *, copied, read, num_tokens):
        return False


def tiers(pool=None, folder=None, host_bytes=0, rates=None, disk=None, **options):
    disk = disk or (None if folder is None else DiskTier(folder, "m", limit_bytes=1 << 20))
    return Tiers(pool or Pool(), 2, host_bytes=host_bytes, disk=disk, rates=rates or FixedRates(), **options)


def fill(one, targets=(7, 8, 9), id=0):
    one.fetch(id, "", IDS, 0, 6)
    one.is_up(id, can_wait=True)
    return one.fill(id, "", IDS, 0, 6, list(targets))


def test_what_went_to_host_memory_comes_back_and_both_are_counted():
    pool = Pool()
    one = tiers(pool, host_bytes=100)
    one.keep("", IDS, 0, [0, 1, 2])
    assert fill(one) == 3
    assert [pool.pages[page] for page in (7, 8, 9)] == [b"aaaa", b"bbbb", b"cccc"]
    counts = one.counts()
    assert (counts.pages_to_host, counts.bytes_to_host, counts.host_pages) == (3, 12, 3)
    assert (counts.pages_from_host, counts.bytes_from_host, counts.pages_from_disk) == (3, 12, 0)
    one.close()


def test_host_memory_keeps_within_its_bytes_and_loses_what_was_used_longest_ago():
    one = tiers(host_bytes=8)
    one.keep("", IDS, 0, [0, 1, 2])
    assert one.counts().host_pages == 2
    assert fill(one) == 0  # the first page is gone
    one.close()


def test_what_went_to_the_disk_is_counted_and_comes_back_to_the_next_process(tmp_path):
    one = tiers(folder=tmp_path)
    one.keep("", IDS, 0, [0, 1, 2])
    one.begin_close()
    one.close()
    assert (one.counts().pages_to_disk, one.counts().bytes_to_disk) == (3, 12)
    two = tiers(folder=tmp_path)
    assert fill(two) == 3
    assert (two.counts().pages_from_disk, two.counts().pages_from_host) == (3, 0)
    two.close()


def test_a_page_that_the_disk_has_is_not_read_from_the_pool_again(tmp_path):
    pool = Pool()
    one = tiers(pool, tmp_path)
    one.keep("", IDS, 0, [0, 1, 2])
    one.begin_close()
    one._let_the_writer_catch_up()
    pool.is_broken = True
    one.keep("", IDS, 0, [0, 1, 2])
    assert one.counts().num_tier_faults == 0
    one.close()


def test_the_disk_is_asked_nothing_on_the_callers_thread(tmp_path):
    tiers(folder=tmp_path).close()
    disk = SlowDisk(tmp_path)
    one = tiers(disk=disk)
    one.fetch(0, "", IDS, 0, 6)
    assert not one.is_up(0, can_wait=False)
    disk.gate.set()
    assert one.fill(0, "", IDS, 0, 6, [7]) in (0, 1)
    one.keep("", IDS, 0, [0, 1, 2])
    one.close()
    assert all(name.startswith("forktree-kv") for name in disk.threads)


def test_two_requests_with_one_prefix_share_its_read_and_one_leaves_it_to_the_other(tmp_path):
    first = tiers(folder=tmp_path)
    first.keep("", IDS, 0, [0, 1, 2])
    first.begin_close()
    first.close()
    disk = SlowDisk(tmp_path)
    one = tiers(disk=disk)
    one.fetch(0, "", IDS, 0, 6)
    one.fetch(1, "", IDS, 0, 6)
    one.leave(0)
    disk.gate.set()
    assert fill(one, id=1) == 3
    assert one.counts().pages_from_disk == 3
    one.close()


def test_a_request_does_not_wait_longer_than_computing_takes(tmp_path):
    now = [0.0]
    disk = SlowDisk(tmp_path)
    rates = MeasuredRates()
    for _ in range(30):
        rates.note("compute", 1, 0.1)
    one = tiers(disk=disk, rates=rates, clock=lambda: now[0])
    one.fetch(0, "", IDS, 0, 6)
    assert not one.is_up(0, can_wait=False)
    now[0] = 0.61
    assert one.is_up(0, can_wait=False)
    disk.gate.set()
    one.close()


def test_what_is_measured_to_be_slower_than_computing_is_not_loaded_and_counted(tmp_path):
    one = tiers(folder=tmp_path, host_bytes=100, rates=Refusing())
    one.keep("", IDS, 0, [0, 1, 2])
    assert fill(one) == 0
    assert one.counts().num_declined == 1
    one.close()


def test_measured_rates_learn_from_what_is_moved(tmp_path):
    first = tiers(folder=tmp_path)
    first.keep("", IDS, 0, [0, 1, 2])
    first.begin_close()
    first.close()
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    rates = MeasuredRates()
    one = tiers(folder=tmp_path, rates=rates, clock=clock)
    one.fetch(0, "", IDS, 0, 6)
    one._fetches[0].look.result().result()
    assert one.fill(0, "", IDS, 0, 6, [7, 8, 9]) == 3
    assert rates.seconds("disk", 12) > 0.1
    assert rates.seconds("copy", 12) > 0.1
    one.close()


def test_a_writer_that_falls_behind_leaves_pages_out_and_says_how_many(tmp_path, monkeypatch):
    monkeypatch.setattr("forktree.backend.cache.tiers._MOST_UNWRITTEN_BYTES", 5)
    gate = threading.Event()

    class Stuck(DiskTier):
        def write(self, address, page):
            assert gate.wait(10)
            return super().write(address, page)

    one = tiers(disk=Stuck(tmp_path, "m", limit_bytes=1 << 20))
    one.keep("", IDS, 0, [0, 1, 2])
    assert one.counts().pages_not_written == 2
    gate.set()
    one.begin_close()  # from here on pages wait for the writer
    one.keep("", IDS, 0, [0, 1, 2])
    one.close()
    assert one.counts().pages_to_disk == 3


@pytest.mark.parametrize("host_bytes", [0, 100])
def test_a_pool_that_cannot_be_copied_costs_a_count_and_a_log(tmp_path, host_bytes, caplog):
    pool = Pool()
    one = tiers(pool, tmp_path, host_bytes)
    one.keep("", IDS, 0, [0, 1])
    one.begin_close()
    one._let_the_writer_catch_up()
    pool.is_broken = True
    one.keep("", IDS, 0, [0, 1, 2])
    assert fill(one) == 0
    assert one.counts().num_tier_faults == 2
    assert "computed again" in caplog.text
    one.close()
