"""What an engine owes each request, seen from programs: its own text, its own end, its own faults."""

from __future__ import annotations

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import Driver, FakeRunner
from real_parts import assert_idle
from starlette.testclient import TestClient

import forktree as ft
from forktree.backend.engine.messages import SamplerParams
from forktree.backend.local import Local
from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings

pytestmark = pytest.mark.model


@ft.function
def says(s, prompt="Once", max_tokens=8, **options):
    s += prompt + ft.gen("v", max_tokens=max_tokens, **options)
    return s["v"]


SEEDED = {"temperature": 0.8, "seed": 42, "max_tokens": 16}


# --- seeds -----------------------------------------------------------------------------------------------------


def test_a_seeded_value_is_the_same_beside_any_others(wild: Local) -> None:
    alone = says.run(**SEEDED, backend=wild).ret_value
    unseeded = {"temperature": 0.8}
    others: list[list[dict[str, Any]]] = [
        [unseeded],
        [{"seed": 7, "temperature": 0.8}, unseeded, {"temperature": 0}],
        [{"prompt": word * 60, "max_tokens": 2} for word in (" a", " b", " c")],
    ]
    for rows in others:
        for order in itertools.permutations([SEEDED, *rows]):
            wild.flush_cache()
            results = says.using(backend=wild).map(order)
            assert all(result.ok for result in results)
            assert results[order.index(SEEDED)].value == alone


def test_samples_of_one_seed_differ_and_come_again(wild: Local) -> None:
    first = says.run(**SEEDED, n=3, backend=wild).ret_value
    assert len(set(first)) == 3
    assert says.run(**SEEDED, n=3, backend=wild).ret_value == first


def test_an_unseeded_value_is_drawn_anew(wild: Local) -> None:
    single = {says.run(temperature=1.0, backend=wild).ret_value for _ in range(4)}
    mapped = {result.value for result in says.using(backend=wild).map([{"temperature": 1.0}] * 4)}
    assert len(single | mapped) == 8


# --- requests that do not fit ----------------------------------------------------------------------------------

SIZES = [(63, 8), (64, 1), (200, 1), (40, 60), (5, 4), (300, 1)]  # of prompt and output; the pool holds 64


def test_each_request_ends_in_a_small_pool_in_any_order(wild_dir: Path) -> None:
    with Local(wild_dir, kv_tokens=64, page_size=4) as local:
        for turn in range(6):
            order = SIZES[turn:] + SIZES[:turn]
            rows = [{"prompt": " x" * num, "max_tokens": most, "heal": False} for num, most in order]
            assert [len(local.tokenize(row["prompt"])) for row in rows] == [num for num, _ in order]
            for (num, most), result in zip(order, says.using(backend=local).map(rows), strict=True):
                if num > 64:
                    assert isinstance(result.error, ft.ContextLengthError)
                    assert (result.error.limit, result.error.tokens) == (64, num)
                    assert "64" in str(result.error)
                else:
                    made = result.state.meta("v").completion_tokens
                    assert made == min(most, 64 - num + 1)
                    assert result.state.meta("v").finish_reason == "length"
        assert_idle(local)


def test_a_large_request_that_is_left_lets_the_small_one_end(wild_dir: Path) -> None:
    with Local(wild_dir, kv_tokens=64, page_size=4) as local:
        large = says.stream(" x" * 40, max_tokens=60, heal=False, ignore_eos=True, backend=local)
        pieces = large.text_iter("v")
        next(pieces)
        small = says.stream(" y" * 5, max_tokens=4, heal=False, backend=local)
        pieces.close()
        assert small.meta("v").completion_tokens == 4
        with pytest.raises(ft.RunCancelledError):
            large["v"]
        says.run(" y" * 5, backend=local)
        assert_idle(local)


# --- faults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "error", "words"),
    [
        ({"schema": "not json"}, ft.ConstraintError, "not JSON"),
        ({"schema": {"type": "strng"}}, ft.ConstraintError, "/type"),
        ({"regex": "a(b"}, ft.ConstraintError, "position 1"),
        ({"grammar": "start: nope"}, (ft.ConstraintError, ft.UnsupportedError), "(?i)grammar"),
        ({"schema": {"$ref": "#/$defs/missing"}}, ft.ConstraintError, r"/\$ref"),
        ({"schema": {"type": "object"}, "regex": "a"}, ft.LanguageError, "(?s)regex.*schema|schema.*regex"),
    ],
    ids=["no_json", "unknown_type", "open_group", "grammar", "lost_reference", "two_at_once"],
)
def test_a_bad_constraint_fails_its_own_row_and_changes_no_other(wild: Local, constraint, error, words) -> None:
    good = {"prompt": "x", "max_tokens": 20, "ignore_eos": True}
    alone = says.run(**good, backend=wild).ret_value
    wild.flush_cache()
    first, bad, last = says.using(backend=wild).map([good, {**constraint, "max_tokens": 20}, good])
    assert first.value == last.value == alone
    assert not bad.ok
    assert isinstance(bad.error, error)
    assert re.search(words, str(bad.error)), bad.error
    assert bad.value is None


FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        ({"response_format": {**FORM, "json_schema": {"name": "n", "schema": "not json"}}}, "schema"),
        ({"response_format": {**FORM, "json_schema": {"name": "n", "schema": {"type": "strng"}}}}, "strng"),
        ({"regex": "a(b"}, "position 1"),
        ({"grammar": "start: nope"}, "nope"),
        ({"response_format": {**FORM, "json_schema": {"name": "n", "schema": {"$ref": "#/$defs/no"}}}}, r"\$ref"),
        ({"response_format": FORM, "regex": "a"}, "regex"),
    ],
    ids=["no_schema", "unknown_type", "open_group", "grammar", "lost_reference", "two_at_once"],
)
def test_a_bad_constraint_is_a_400_while_others_are_answered(wild: Local, constraint, words) -> None:
    with TestClient(build(wild, Settings(model_names=("m",)))) as http:

        def ask(**fields: Any) -> Any:
            body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 0, "max_tokens": 20}
            return http.post("/v1/chat/completions", json=body | fields)

        alone = ask().json()["choices"]
        wild.flush_cache()
        with ThreadPoolExecutor(3) as pool:
            first, bad, last = pool.map(lambda fields: ask(**fields), ({}, constraint, {}))
    assert first.json()["choices"] == last.json()["choices"] == alone
    assert bad.status_code == 400
    assert re.search(words, bad.json()["error"]["message"]), bad.text


# --- penalties ---------------------------------------------------------------------------------------------------

A, B, C, OTHER = range(4)
PENALTIES = [
    (SamplerParams(frequency_penalty=1.5), (A, B, C, A, B, C)),
    (SamplerParams(presence_penalty=2.0), (A, B, C, A, A, A)),
    (SamplerParams(repetition_penalty=1.3), (C, A, A, A, A, A)),  # "aaab" brought a to 0.92 and b to 0.85; c to 0.77
    (SamplerParams(repetition_penalty=1.0, frequency_penalty=0.0), (A, A, A, A, A, A)),
]


@pytest.mark.parametrize("num_pages", [30, 6], ids=["room for all", "preemption"])
def test_penalties_count_a_requests_own_tokens_whoever_runs_beside_it(num_pages: int) -> None:
    """Expected by hand from constant logits: 1.2 for a, 1.1 for b, 1.0 for c."""
    logits = {A: 1.2, B: 1.1, C: 1.0, OTHER: -5.0}
    runner = FakeRunner(num_pages=num_pages, page_size=4, vocab=4, logit=lambda history, token: logits[token])
    one = Driver(runner, headroom_tokens=0, max_running=8)
    asked = []
    for params, expected in PENALTIES:
        asked.append((one.submit([A, A, A, B], max_tokens=6, params=params), expected))
        one.submit([OTHER, B, C] * 4, max_tokens=2, params=SamplerParams(frequency_penalty=2.0))  # a longer neighbour
        one.step()
    one.drain()
    assert [listener.finished.ids for listener, _ in asked] == [expected for _, expected in asked]
    assert (one.core.stats().num_preemptions > 0) == (num_pages == 6)


def test_a_pattern_with_a_needless_escape_is_kept_and_not_ignored(wild: Local) -> None:
    assert says.run(regex=r"^hello\!$", backend=wild).ret_value == "hello!"


# --- an output layer that is wider than the vocabulary ------------------------------------------------------------


def test_ids_beyond_the_vocabulary_are_drawn_by_nobody(wild: Local) -> None:
    size = wild._model.tokenizer().num_tokens
    padding = range(size, 49152 + 128)
    assert len(padding) == 128
    rows: list[dict[str, Any]] = [{"temperature": 50.0, "seed": seed, "max_tokens": 60} for seed in range(4)]
    rows += [{"regex": "abc[0-9]", "temperature": 50.0, "seed": seed} for seed in range(4)]
    for row, result in zip(rows, says.using(backend=wild).map(rows), strict=True):
        assert result.ok, result.error
        assert all(id < size for id in result.state.tokens())
        if "regex" in row:
            assert re.fullmatch("abc[0-9]", result.value)
            made = result.state.meta("v").completion_tokens
            assert made >= 1  # those that the pattern forced are counted
