"""What a program's checksums notice, and what they do not."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from forktree.backend.fake import Fake
from forktree.backend.local import Local
from forktree.lang.expressions import gen
from forktree.runtime.fingerprint import fingerprint_backend
from forktree.runtime.function import Function, function
from forktree.runtime.stored import store

HELPER = """
SIGN = "!"

def fmt(x):
    return x + SIGN
"""

SOURCE = """
import collections, dataclasses, enum, functools, re, threading, typing
import users_helper
from users_helper import fmt
from pydantic import BaseModel, Field

PROMPT = "Say: "
SHOTS = [("a", {"b", "c", "d"})]
prefix = "p"
cfg = {"p": "old", "inner": [1, 2]}
text = "left over"
calls = 0
seen = []
cache = {}
lock = threading.Lock()
API_KEY = "k1"
pattern = re.compile("x+")
partial = functools.partial(int, base=10)

class Answer:
    limit = 3

    def show(self):
        return "<" + inner_of(self) + ">"

def inner_of(answer):
    return "in"

class Kind(enum.Enum):
    A = "first"

class Item(BaseModel):
    a: int = Field(ge=0, le=9)

class Order(BaseModel):
    items: "list[Item]"

@dataclasses.dataclass
class Point:
    x: int = 1

class Row(typing.TypedDict):
    name: str

class Settings:
    def __init__(self, tone):
        self.tone = tone
        self.num_asked = 0

    def ask(self):
        self.num_asked += 1
        return self.tone

point = Point(5)
settings = Settings("kind")

def helper(x, sep=", "):
    return PROMPT + sep + x

HANDLERS = {"h": lambda x: "handled " + x}

def made(word):
    def inner():
        return word
    return inner

closed = made("closed")

@function
def other(s):
    s += "other"

@function
def program(s, x):
    global calls
    calls += 1
    seen.append(x)
    cache[x] = x
    with lock:
        s += prefix + helper(x) + gen("y") + s.text() + "".join(q for q, _ in SHOTS) + cfg["p"]
    s += fmt(x) + users_helper.fmt(x) + Answer.limit + Kind.A.value + HANDLERS["h"](x) + closed() + API_KEY
    s += gen("o", schema=Order) + gen("r", schema=Row) + str(point.x) + settings.ask() + pattern.pattern + partial("1")
    import users_later
    return Answer, other
"""

LATER = "WORD = 'later'\n"


class Loader:
    """Imports texts as a user's modules and gives back the program of the first."""

    def __init__(self, folder, monkeypatch) -> None:
        self._folder, self._patch, self._num = folder, monkeypatch, 0
        monkeypatch.syspath_prepend(str(folder))

    def __call__(self, source: str = SOURCE, helper: str = HELPER, later: str = LATER) -> Function:
        (self._folder / "users_later.py").write_text(later)
        self._import("users_helper", helper)
        return self._import("users_module", source).program

    def _import(self, name: str, source: str):
        self._num += 1
        path = self._folder / f"version_{self._num}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        module.__dict__.update(function=function, gen=gen)
        self._patch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module


@pytest.fixture
def load(tmp_path, monkeypatch):
    return Loader(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def _answered(monkeypatch):
    """Programs that name no backend have one that is data."""
    from forktree.runtime.defaults import get_defaults

    monkeypatch.setattr(get_defaults(), "_backend", Fake([]))


def changed(before, after) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('PROMPT = "Say: "', 'PROMPT = "Shout: "', "PROMPT"),
        ('[("a", {"b", "c", "d"})]', '[("z", {"b", "c", "d"})]', "SHOTS"),
        ('[("a", {"b", "c", "d"})]', '[("a", {"b", "c"})]', "SHOTS"),
        ('prefix = "p"', 'prefix = "q"', "prefix"),
        ('"p": "old"', '"p": "new"', "cfg"),
        ('"inner": [1, 2]', '"inner": [1, True]', "cfg"),
        ("PROMPT + sep", "sep + PROMPT", "helper()"),
        ('sep=", "', 'sep="; "', "helper()"),
        ('s += "other"', 's += "another"', "other()"),
        ("limit = 3", "limit = 4", "class Answer"),
        ('"<" + inner', '"[" + inner', "Answer.show()"),
        ('return "in"', 'return "out"', "inner_of()"),
        ('A = "first"', 'A = "other"', "class Kind"),
        ("le=9", "le=5", "class Item"),
        ("class Order(BaseModel):", "class Order(BaseModel):\n    n: int = 0\n", "class Order"),
        ("class Order(BaseModel):", "class Order(BaseModel):\n    n: int\n", "class Order"),
        ("x: int = 1", "x: int = 2", "class Point"),
        ("name: str", "name: int", "class Row"),
        ("Point(5)", "Point(6)", "point"),
        ('Settings("kind")', 'Settings("rude")', "settings"),
        ("return self.tone", "return self.tone + '.'", "Settings.ask()"),
        ('"handled "', '"held "', "<lambda>()"),
        ('made("closed")', 'made("open")', "word of made.<locals>.inner"),
        ('compile("x+")', 'compile("x*")', "pattern"),
        ("base=10", "base=8", "partial"),
        ('gen("y")', 'gen("y", max_tokens=3)', "program()"),
    ],
)
def test_a_change_in_what_the_program_refers_to_is_noticed_and_named(load, old, new, part) -> None:
    assert SOURCE.count(old) == 1
    before = load().fingerprint()
    assert part in changed(before, load(SOURCE.replace(old, new)).fingerprint())


def test_a_change_in_another_file_of_the_user_is_noticed(load) -> None:
    before = load().fingerprint()
    assert changed(before, load(helper=HELPER.replace("x + SIGN", "SIGN + x")).fingerprint()) == {"users_helper: fmt()"}
    assert changed(before, load(helper=HELPER.replace("!", "?")).fingerprint()) == {"users_helper: SIGN"}


def test_a_file_that_the_body_imports_counts_and_is_not_imported(load) -> None:
    before = load().fingerprint()
    assert changed(before, load(later="WORD = 'sooner'\n").fingerprint()) == {"file users_later"}
    assert load(later="# said\n" + LATER).fingerprint() == before
    assert "users_later" not in sys.modules


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("calls = 0", "calls = 5"),  # a counter
        ("seen = []", "seen = [1]"),  # what the program collects
        ("cache = {}", "cache = {1: 2}"),
        ("self.num_asked = 0", "self.num_asked = 0  # so far"),
        ('text = "left over"', 'text = "other"'),  # the body names an attribute, s.text
        ("    calls += 1", "    calls += 1  # a comment"),
        ("    calls += 1", "\n\n    calls += (1)"),
        ('API_KEY = "k1"', 'API_KEY = "k2"'),
    ],
)
def test_counters_caches_keys_and_comments_are_no_change(load, old, new) -> None:
    before = load().fingerprint()
    assert load(SOURCE.replace(old, new)).fingerprint() == before


def test_what_a_program_changes_while_it_runs_is_no_change(load) -> None:
    program = load()
    before = program.fingerprint()
    namespace = program.fn.__globals__
    namespace["settings"].ask()
    namespace["seen"].append(1)
    namespace["cache"]["a"] = 1
    namespace["calls"] = 9
    assert program.fingerprint() == before


def test_library_code_counts_by_its_version(load) -> None:
    import pydantic

    parts = load().fingerprint()
    assert parts["pydantic"] == pydantic.__version__
    assert parts["Python"].endswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert not any("threading" in name or "BaseModel" in name for name in parts)


STABLE = """
if __name__ == "__main__":
    import json
    from forktree.backend.fake import Fake
    print(json.dumps(dict(program.using(backend=Fake({"y": "z"})).fingerprint())))
"""


def test_the_parts_are_the_same_in_every_process_run_or_imported(tmp_path) -> None:
    head = "from forktree.runtime.function import function\nfrom forktree.lang.expressions import gen\n"
    (tmp_path / "users_program.py").write_text(head + SOURCE + STABLE)
    (tmp_path / "users_helper.py").write_text(HELPER)
    (tmp_path / "users_later.py").write_text(LATER)
    imported = "import sys; sys.path.insert(0, '.'); from users_program import program, Point\n" + STABLE
    commands = [["users_program.py"], ["users_program.py"], ["-m", "users_program"], ["-c", imported]]
    told = []
    for seed, command in enumerate(commands):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout))
    for each in told[1:]:
        assert changed(told[0], each) == set()


def test_bound_values_are_told_apart_and_not_by_their_address(load) -> None:
    program = load()
    assert program.bind(x="a").fingerprint() != program.bind(x="b").fingerprint()
    assert program.bind(x=object()).fingerprint() == program.bind(x=object()).fingerprint()


def test_cycles_and_long_data_end(load) -> None:
    program = load()
    ring: list[object] = []
    ring.append(ring)
    assert program.bind(x=ring).fingerprint() == program.bind(x=ring).fingerprint()
    long = list(range(60_000))
    assert program.bind(x=long).fingerprint() != program.bind(x=[*long, 1]).fingerprint()
    words = "a" * (3 << 20)
    assert program.bind(x=words).fingerprint() != program.bind(x=words + "a").fingerprint()


def test_a_function_is_told_from_another_of_its_name_by_what_it_closes_over() -> None:
    def made(word):
        @function
        def program(s):
            s += word

        return program

    assert made("a").fingerprint() != made("b").fingerprint()
    assert made("a").fingerprint() == made("a").fingerprint()


def test_another_backend_model_or_precision_is_noticed(tmp_path) -> None:
    class Own:
        def __init__(self, name, api_key):
            self.name, self.api_key = name, api_key

    local = fingerprint_backend(Local())
    assert local == fingerprint_backend(Local(kv_tokens=512, max_running=2))
    assert local != fingerprint_backend(Local(quantize="int8"))
    assert local != fingerprint_backend(Local("other"))
    (tmp_path / "model.safetensors").write_bytes(b"one")
    before = fingerprint_backend(Local(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert fingerprint_backend(Local(tmp_path)) != before
    assert fingerprint_backend(Fake(["a"])) == fingerprint_backend(Fake(["a"])) != fingerprint_backend(Fake(["b"]))
    assert fingerprint_backend(Own("m", "k1")) == fingerprint_backend(Own("m", "k2"))
    assert fingerprint_backend(Own("m", "k")) != fingerprint_backend(Own("n", "k"))


def test_functions_that_name_each_other_end() -> None:
    @function
    def ping(s):
        return pong

    @function
    def pong(s):
        return ping

    assert ping.fingerprint() == ping.fingerprint()


def test_sets_are_stored_alike_in_every_process() -> None:
    line = "from forktree.runtime.stored import store; print(store({'a', 'b', 'c', 'd', 'e'}))"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == store({"a", "b", "c", "d", "e"})
