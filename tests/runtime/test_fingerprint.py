"""What a program's checksum notices, and what it does not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from forktree.lang.expressions import gen
from forktree.runtime.function import Function, function
from forktree.runtime.stored import store

SOURCE = """
PROMPT = "Say: "
SHOTS = [("a", {"b", "c"})]
calls = 0
prefix = "p"
text = "left over"

class Answer:
    limit = 3

def helper(x):
    return PROMPT + x

@function
def other(s):
    s += "other"

@function
def program(s, x):
    global calls
    calls += 1
    s += prefix + helper(x) + gen("y") + s.text() + "".join(q for q, _ in SHOTS)
    return Answer, other
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Imports a source as a user's module and gives back its program."""

    def load(source: str) -> Function:
        path = tmp_path / f"version_{len(list(tmp_path.iterdir()))}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("users_module", path)
        module = importlib.util.module_from_spec(spec)
        module.__dict__.update(function=function, gen=gen)
        monkeypatch.setitem(sys.modules, "users_module", module)
        spec.loader.exec_module(module)
        return module.program

    return load


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('PROMPT = "Say: "', 'PROMPT = "Shout: "'),
        ('[("a", {"b", "c"})]', '[("z", {"b", "c"})]'),
        ('prefix = "p"', 'prefix = "q"'),
        ("PROMPT + x", "x + PROMPT"),
        ('s += "other"', 's += "another"'),
        ("limit = 3", "limit = 4"),
    ],
)
def test_a_change_in_what_the_body_names_is_noticed(load, old, new) -> None:
    before = load(SOURCE).fingerprint()
    assert load(SOURCE.replace(old, new)).fingerprint() != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("calls = 0", "calls = 5"),  # a counter
        ('text = "left over"', 'text = "other"'),  # the body names an attribute, s.text
        ("    calls += 1", "    calls += 1  # a comment"),
    ],
)
def test_counters_and_comments_are_no_change(load, old, new) -> None:
    before = load(SOURCE).fingerprint()
    assert load(SOURCE.replace(old, new)).fingerprint() == before


def test_bound_values_are_told_apart_and_not_by_their_address(load) -> None:
    program = load(SOURCE)
    assert program.bind(x="a").fingerprint() != program.bind(x="b").fingerprint()
    assert program.bind(x=object()).fingerprint() == program.bind(x=object()).fingerprint()


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
