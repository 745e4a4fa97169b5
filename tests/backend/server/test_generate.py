"""SGLang's native route, as `RuntimeEndpoint` asks it and as SGLang's own users do."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx
import pytest

import forktree as ft
from forktree.backend.local import Local

GREEDY = {"temperature": 0, "max_new_tokens": 6}


@pytest.fixture
def ask(wild_url: str) -> Any:
    def post(**body: Any) -> Any:
        response = httpx.post(f"{wild_url}/generate", json={"sampling_params": GREEDY, **body}, timeout=60)
        return response.json() if response.status_code == 200 else (response.status_code, response.json()["error"])

    return post


def test_a_text_is_continued_as_the_engine_continues_it(ask: Any, wild_local: Local) -> None:
    told = ask(text="Once upon", rid="mine")
    (here,) = wild_local.generate("Once upon", ft.Sampling(temperature=0, max_tokens=6))
    assert told["text"] == here.text
    assert told["output_ids"] == here.tokens
    about = told["meta_info"]
    assert (about["id"], about["completion_tokens"]) == ("mine", 6)
    assert about["finish_reason"] == {"type": "length", "length": 6}


def test_a_list_is_answered_by_a_list_in_order(ask: Any) -> None:
    together = ask(text=["Once upon", "A dark night"])
    assert [one["text"] for one in together] == [ask(text="Once upon")["text"], ask(text="A dark night")["text"]]


def test_ids_may_be_sent_in_the_place_of_text(ask: Any, wild_local: Local) -> None:
    ids = wild_local.tokenize("Once upon")
    assert ask(input_ids=ids)["text"] == ask(text="Once upon")["text"]
    assert len(ask(input_ids=[ids, ids], sampling_params={**GREEDY, "n": 2})) == 4


def test_a_stream_says_all_of_the_text_each_time(wild_url: str, ask: Any) -> None:
    body = {"text": "Once upon", "sampling_params": GREEDY, "stream": True}
    lines = httpx.post(f"{wild_url}/generate", json=body, timeout=60).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    texts = [json.loads(line.removeprefix("data: "))["text"] for line in lines[:-2]]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert texts[-1] == ask(text="Once upon")["text"]


@pytest.mark.parametrize(
    ("constraint", "legal"),
    [
        ({"regex": "(ab|cd){2}"}, {"abab", "abcd", "cdab", "cdcd"}),
        ({"json_schema": '{"enum": [1, true]}'}, {"1", "true"}),
        ({"ebnf": 'root ::= "yes" | "no"'}, {"yes", "no"}),
        ({"ebnf": 'start: "yes" | "no"'}, {"yes", "no"}),
    ],
)
def test_a_constraint_is_satisfied(ask: Any, constraint: dict[str, Any], legal: set[str]) -> None:
    told = ask(text="x", sampling_params={**constraint, "max_new_tokens": 20})
    assert told["text"] in legal
    assert told["meta_info"]["finish_reason"]["type"] == "stop"


def test_log_probabilities_of_prompt_and_output(ask: Any) -> None:
    about = ask(text="Once upon a", return_logprob=True, logprob_start_len=0, top_logprobs_num=2)["meta_info"]
    assert about["input_token_logprobs"][0][0] is None
    assert len(about["input_token_logprobs"]) == about["prompt_tokens"]
    assert len(about["output_token_logprobs"]) == len(about["output_top_logprobs"]) == 6
    assert all(top[0][:2] == chosen[:2] for chosen, top in zip(*_two(about), strict=True))


def _two(about: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    return about["output_token_logprobs"], about["output_top_logprobs"]


def test_runtime_endpoint_runs_programs_on_it(wild_url: str, wild_local: Local) -> None:
    @ft.function
    def program(s: ft.State) -> None:
        s += "Once" + ft.gen("a", max_tokens=5, temperature=0)
        s += " so" + ft.select("b", choices=["big", "small"])

    with ft.RuntimeEndpoint(wild_url) as endpoint:
        there = program.run(backend=endpoint)
    here = program.run(backend=wild_local)
    assert there["a"] == here["a"]
    assert there["b"] in ("big", "small")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"text": []}, None),
        ({"text": "x", "input_ids": [1]}, None),
        ({"input_ids": [10**7]}, "input_ids"),
        ({"text": "x", "sampling_params": {"regex": "(?=a)"}}, "sampling_params.regex"),
        ({"text": "x", "sampling_params": {"json_schema": "{"}}, "sampling_params.json_schema"),
        ({"text": "x", "sampling_params": {"regex": "a", "ebnf": "b"}}, "sampling_params"),
        ({"text": "x", "lora_path": "y"}, "lora_path"),
        ({"text": "long " * 900}, "text"),
    ],
)
def test_what_cannot_run_is_refused(ask: Any, body: dict[str, Any], param: str | None) -> None:
    status, error = ask(**body)
    assert status == 400
    assert error["param"] == param
