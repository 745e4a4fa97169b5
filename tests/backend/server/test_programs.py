"""Whole programs through `/v1/programs`: what `Remote` runs there is what `Local` runs here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import forktree as ft
from forktree.backend.local import Local

_RIGHT: dict[str, Any] = {"rows": [{"word": "owl"}], "sampling": {"temperature": 0}}


@ft.function
def describe(s: ft.State, word: str) -> Any:
    s += f"The {word} is"
    s += ft.gen("what", max_tokens=6, temperature=0)
    first, second = s.fork(2)
    first += " and" + ft.gen("more", max_tokens=3, temperature=0)
    second += " but" + ft.select("end", choices=["big", "small"])
    return s["what"], second["end"]


@ft.function
def count(s: ft.State, word: str) -> Any:
    s += word + ft.gen("number", schema={"enum": [1, 22, 333]})
    return s["number"]


@pytest.fixture(scope="module")
def remote(wild_url: str) -> Iterator[ft.Remote]:
    with ft.Remote(wild_url) as one:
        yield one


def test_a_program_runs_there_as_it_runs_here(remote: ft.Remote, wild_local: Local) -> None:
    program = describe.trace(word=ft.SYMBOLIC)
    for word in ("owl", "sea"):
        there, here = program.run(word=word, backend=remote), program.run(word=word, backend=wild_local)
        assert there.ret_value == here.ret_value
        assert there["what"] == here["what"]
        assert there.text() == here.text()


def test_a_map_keeps_each_rows_failure_for_itself(remote: ft.Remote) -> None:
    words = ["owl", "long " * 900, "sea"]
    rows = [{"word": word, "backend": remote} for word in words]
    results = describe.trace(word=ft.SYMBOLIC).map(rows, progress=False)
    assert [result.ok for result in results] == [True, False, True]
    assert isinstance(results[1].error, ft.ContextLengthError)


def test_typed_values_come_back_typed(remote: ft.Remote) -> None:
    assert count.trace(word=ft.SYMBOLIC).run(word="n =", backend=remote).ret_value in (1, 22, 333)


def test_rows_stream_as_they_are_done(wild_url: str) -> None:
    rows = [{"word": word} for word in ("a", "b", "c")]
    body = {"program": _data(describe), "rows": rows, "sampling": {"seed": 3, "stop": ["."]}}
    text = httpx.post(f"{wild_url}/v1/programs", json=body, timeout=60).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert sorted(event["index"] for event in events[:-1]) == [0, 1, 2]
    assert all(event["ok"] and event["usage"]["completion_tokens"] > 6 for event in events[:-1])
    assert events[-1] == {"type": "end", "num_rows": 3}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"program": {}}, "program"),
        ({"program": {"format": "forktree.program/1", "ops": 3}}, "program"),
        ({"rows": [{"word": "owl", "other": 1}]}, "rows[0]"),
        ({"rows": [{"word": "owl"}, {}]}, "rows[1]"),
        ({"rows": [{"word": [{"$class": "forktree.lang.sampling:Sampling", "data": {}}]}]}, "rows[0]"),
        ({"rows": []}, "rows"),
        ({"sampling": {"heat": 1}}, "sampling.heat"),
        ({"sampling": {"temperature": -1}}, "sampling"),
        ({"model": "other"}, "model"),
        ({"branch": [["Text", "x"]]}, "branch[0]"),
        ({"branch": [["Text", "x", False], ["Image", {"$bytes": "eA=="}, "image/png"]]}, "branch[1]"),
        ({"branch": [["Generated", "x", {"$tuple": [1.5]}, 0]]}, "branch[0]"),
        ({"branch": [["Generated", "x", {"$tuple": [1]}, -1]]}, "branch[0]"),
        ({"branch": [["Generated", "x", {"$tuple": [3, 10**9]}, 0]]}, "branch[0][1]"),
        ({"branch": [["Generated", "x", {"$tuple": [-1]}, 0]]}, "branch[0][0]"),
        ({"branch": [[{"$class": "os:system"}]]}, "branch[0]"),
    ],
)
def test_what_cannot_run_is_refused_before_the_stream(wild_url: str, change: dict[str, Any], param: str) -> None:
    body = {"program": _data(describe), **_RIGHT} | change
    response = httpx.post(f"{wild_url}/v1/programs", json=body, timeout=60)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param


def _data(function: Any) -> dict[str, Any]:
    return json.loads(function.trace(word=ft.SYMBOLIC).to_json())
