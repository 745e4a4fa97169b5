"""`/v1/completions`, beyond what the cases hold: scores, the best of several, markup, budgets."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest
from starlette.testclient import TestClient

from forktree.backend.local import Local
from forktree.lang.sampling import Sampling


def test_a_completion_is_what_the_engine_makes_of_the_prompt(client: openai.OpenAI, wild_local: Local) -> None:
    answer = client.completions.create(model="wild", prompt="Once upon", max_tokens=6, temperature=0)
    (own,) = wild_local.generate("Once upon", Sampling(max_tokens=6, temperature=0))
    assert answer.choices[0].text == own.text
    assert answer.object == "text_completion"


def test_sixteen_tokens_are_the_default(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="wild", prompt="a", temperature=0, extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_a_prompt_alone_is_scored_as_it_is_generated(client: openai.OpenAI) -> None:
    made = client.completions.create(model="wild", prompt="one two", max_tokens=4, temperature=0, logprobs=0)
    logprobs = made.choices[0].logprobs
    assert logprobs is not None
    text = "one two" + made.choices[0].text
    scored = client.completions.create(model="wild", prompt=text, max_tokens=0, echo=True, logprobs=0)
    assert scored.choices[0].text == text
    found = scored.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs is not None
    if (found.tokens or [])[-4:] == logprobs.tokens:  # a text may be tokenised otherwise than it was generated
        assert found.token_logprobs[-4:] == pytest.approx(logprobs.token_logprobs, abs=1e-3)
    assert scored.usage is not None
    assert scored.usage.completion_tokens == 0


def test_the_best_of_several_is_the_likeliest_a_token(client: openai.OpenAI) -> None:
    asked: Any = {"model": "wild", "prompt": "a", "max_tokens": 5, "temperature": 1.0, "seed": 2, "logprobs": 0}
    best = client.completions.create(**asked, n=1, best_of=4)
    every = client.completions.create(**asked, n=4)
    means = {choice.text: mean(choice.logprobs.token_logprobs) for choice in every.choices if choice.logprobs}
    assert best.choices[0].text == max(means, key=lambda text: means[text])
    assert best.usage is not None
    assert every.usage is not None
    assert best.usage.completion_tokens == every.usage.completion_tokens


def mean(values: Any) -> float:
    return math.fsum(values) / len(values)


def test_a_prompt_spells_special_tokens_only_where_it_says_so(http: TestClient) -> None:
    counts = []
    for markup in (False, True):
        body = {"model": "wild", "prompt": "<|im_start|>user", "max_tokens": 1, "markup": markup}
        counts.append(http.post("/v1/completions", json=body).json()["usage"]["prompt_tokens"])
    assert counts[0] > counts[1] == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"echo": True, "logprobs": 1, "stream": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": "a\ud800"}, None),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ],
)
def test_what_cannot_be_honoured_is_refused(http: TestClient, body: dict[str, Any], param: str | None) -> None:
    import json

    content = json.dumps({"model": "wild", "prompt": "a", **body})
    answer = http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_tokens_and_text_go_both_ways(http: TestClient) -> None:
    tokens = http.post("/tokenize", json={"prompt": "Grüße, 世界!"}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": "Grüße, 世界!"}
    messages = [{"role": "user", "content": "hi"}]
    counted = http.post("/tokenize", json={"messages": messages}).json()["count"]
    body = {"model": "wild", "messages": messages, "max_tokens": 1}
    assert http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"] == counted
    assert http.post("/detokenize", json={"tokens": [-1]}).json()["error"]["param"] == "tokens[0]"
    assert http.post("/tokenize", json={}).status_code == 400
