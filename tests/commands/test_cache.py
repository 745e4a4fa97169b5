"""`forktree cache` on a folder of pages."""

from __future__ import annotations

import pytest

from forktree.backend.cache.disk import DiskTier
from forktree.commands.main import main


@pytest.fixture
def folder(tmp_path):
    disk = DiskTier(tmp_path, "model", limit_bytes=1 << 20)
    for number in range(3):
        disk.write(bytes([number] * 16), b"page")
    return tmp_path


def spoil(folder):
    path = next(folder.glob("*/*/*.kv"))
    path.write_bytes(path.read_bytes()[:-1])
    return path


def test_ls_counts_the_pages_of_each_model(folder, capsys):
    assert main(["cache", "ls", str(folder)]) == 0
    assert "3 pages" in capsys.readouterr().out


def test_prune_shrinks_to_a_size(folder, capsys):
    assert main(["cache", "prune", str(folder), "--to", "1K"]) == 0
    assert len(list(folder.glob("*/*/*.kv"))) == 3
    assert main(["cache", "prune", str(folder)]) == 0
    assert not list(folder.glob("*/*/*.kv"))


def test_verify_names_what_is_not_sound_and_removes_it_when_asked(folder, capsys):
    assert main(["cache", "verify", str(folder)]) == 0
    path = spoil(folder)
    assert main(["cache", "verify", str(folder)]) == 1
    assert f"{path} is torn or altered" in capsys.readouterr().out
    assert main(["cache", "verify", str(folder), "--remove"]) == 0
    assert main(["cache", "verify", str(folder)]) == 0


def test_a_wrong_argument_is_named(capsys):
    assert main(["cache", "ls", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["cache", "prune", ".", "--to", "2X"])
    assert caught.value.code == 2
    assert "--to: must be a number of bytes such as 500M or 2G, not '2X'" in capsys.readouterr().err
