"""A model is data: nothing in its folder is run, asked for or not, and no file is unpickled."""

from __future__ import annotations

import ast
import fnmatch
import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from toy_tokenizers import byte_level

from forktree.backend.model import store
from forktree.backend.model.config import read_config
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.errors import ModelError

ROOT = Path(__file__).parents[3]
FOLDERS = ("lang", "runtime", "backend", "kernels", "commands", "tutorials", "benchmarks")
CODE = "from pathlib import Path\nPath({mark!r}).write_text('ran')\n"
UNPICKLES = {"pickle", "cPickle", "dill", "marshal", "shelve", "joblib", "cloudpickle"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model folder that brings code of its own, before somebody who says yes to every question."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "own.py").write_text(CODE.format(mark=str(tmp_path / "mark")))
    maps = {"AutoConfig": "own.OwnConfig", "AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]}
    (model / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": maps}))
    byte_level().save_pretrained(model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "OwnTokenizer", "auto_map": maps}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda prompt="": questions.append(prompt) or "y")
    yield model
    assert questions == []
    assert not (tmp_path / "mark").exists()


def test_a_configuration_that_brings_code_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="cannot read the configuration"):
        read_config(folder)


def test_a_tokenizer_that_brings_code_is_refused_or_read_as_data(folder: Path) -> None:
    try:
        assert Tokenizer.load(folder).encode("a b")
    except ModelError as error:
        assert str(folder) in str(error)


def test_of_a_hub_model_neither_code_nor_pickles_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, list[str]] = {}

    def download(name: str, *, allow_patterns: list[str]) -> str:
        asked[name] = allow_patterns
        raise OSError("no network here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelError, match="could not be fetched from the hub"):
        store.resolve_model("some/model")
    names = ["config.json", "model-00001-of-00002.safetensors", "tokenizer.model", "chat_template.jinja", "merges.txt"]
    unsafe = ["modeling_own.py", "pytorch_model.bin", "model.pt", "model.pth", "weights.pkl", "weights.npy", "lib.so"]
    fetched = [name for name in names + unsafe if any(fnmatch.fnmatch(name, each) for each in asked["some/model"])]
    assert fetched == names


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Every call in the package: where it stands, what is called (its last name), and the call."""
    for each in FOLDERS:
        for path in sorted((ROOT / each).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    name = ast.unparse(node.func)
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", name, node


def test_nothing_in_the_package_unpickles_or_evaluates() -> None:
    bad = [
        (where, name)
        for where, name, call in calls()
        if name in ("eval", "exec", "__import__", "torch.load")
        or (name.split(".")[0] in UNPICKLES and name.rpartition(".")[2] in ("load", "loads", "open", "Unpickler"))
        or any(item.arg == "allow_pickle" for item in call.keywords)
    ]
    assert bad == []


def test_every_class_that_could_run_a_models_code_is_told_not_to() -> None:
    found = {
        where: [ast.unparse(item.value) for item in call.keywords if item.arg == "trust_remote_code"]
        for where, name, call in calls()
        if where.startswith("backend/") and name.startswith("Auto") and name.endswith(".from_pretrained")
    }
    assert len(found) == 3
    assert set(map(tuple, found.values())) == {("False",)}
