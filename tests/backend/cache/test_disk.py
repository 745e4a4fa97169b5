"""Pages in a folder: whole or not at all, and never trusted."""

from __future__ import annotations

import logging
import os
import stat

import pytest

from forktree.backend.cache.addresses import page_addresses
from forktree.backend.cache.disk import DiskTier, page_files, prune, verify

A, B = page_addresses("", [1, 2, 3, 4], 4, 2)


def tier(folder, fingerprint="m", limit=1 << 20):
    return DiskTier(folder, fingerprint, limit_bytes=limit)


def test_an_address_tells_every_token_before_it_and_the_namespace():
    assert page_addresses("", [1, 2, 3, 4, 5], 5, 2) == [A, B]
    assert page_addresses("", [9, 2, 3, 4], 4, 2)[1] != B
    assert page_addresses("tenant", [1, 2], 2, 2) != [A]


def test_a_page_comes_back_after_a_restart_and_to_another_process(tmp_path):
    assert tier(tmp_path).write(A, b"keys")
    assert tier(tmp_path).read(A) == b"keys"
    assert tier(tmp_path).read(B) is None


def test_another_fingerprint_finds_nothing(tmp_path):
    tier(tmp_path).write(A, b"keys")
    assert tier(tmp_path, "other").read(A) is None


@pytest.mark.parametrize("spoil", [lambda d: d[:-1], lambda d: d[:20], lambda d: b"", lambda d: d[:-1] + b"!"])
def test_a_torn_or_altered_file_is_removed_with_a_warning(tmp_path, caplog, spoil):
    disk = tier(tmp_path)
    disk.write(A, b"keys")
    path = disk.path_of(A)
    path.write_bytes(spoil(path.read_bytes()))
    assert len(verify(tmp_path)) == 1
    with caplog.at_level(logging.WARNING):
        assert disk.read(A) is None
    assert str(path) in caplog.text
    assert not path.exists()


def test_the_page_of_another_address_or_model_is_never_used(tmp_path):
    disk, other = tier(tmp_path), tier(tmp_path, "other")
    disk.write(A, b"keys")
    other.write(A, b"else")
    disk.write(B, b"more")
    disk.path_of(A).write_bytes(other.path_of(A).read_bytes())
    os.replace(disk.path_of(A), disk.path_of(B))
    assert disk.read(B) is None


def test_the_folder_stays_under_its_limit_and_loses_the_least_recently_used(tmp_path):
    disk = tier(tmp_path, limit=5000)
    addresses = page_addresses("", list(range(20)), 20, 1)
    for number, address in enumerate(addresses):
        disk.write(address, bytes(500))
        os.utime(disk.path_of(address), (number, number))
    assert sum(file.num_bytes for file in page_files(tmp_path)) <= 5000
    assert disk.has(addresses[-1])
    assert not disk.has(addresses[0])
    assert prune(tmp_path, 0) == 0


def test_only_the_owner_can_read(tmp_path):
    disk = tier(tmp_path / "new")
    disk.write(A, b"keys")
    path = disk.path_of(A)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_folder_that_takes_nothing_costs_a_warning(tmp_path, caplog):
    disk = tier(tmp_path)
    disk.path_of(A).parent.write_text("a file in the way")
    assert not disk.write(A, b"keys")
    assert "not kept" in caplog.text
    assert disk.read(A) is None


def test_a_folder_in_a_file_s_place_is_nobody_s_page_and_stops_no_prune(tmp_path, caplog):
    one = tier(tmp_path)
    one.write(A, b"page")
    one.write(B, b"page")
    one.path_of(A).unlink()
    one.path_of(A).mkdir()
    assert one.read(A) is None
    assert "cannot read" in caplog.text
    assert prune(tmp_path, 0) == 0
    assert one.path_of(A).is_dir()
    assert not one.has(B)
