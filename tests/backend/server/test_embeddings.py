"""`/v1/embeddings` through OpenAI's own client, and what it refuses."""

from __future__ import annotations

import base64
import struct
from typing import Any

import openai
import pytest
from real_parts import assert_idle, let_cancelled_work_end
from servers import aborted
from starlette.testclient import TestClient

from forktree.backend.local import Local
from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings

TEXTS = ["The owl hunts at night.", "The owl hunts by day.", "x"]


def asked(client: openai.OpenAI, **fields: Any) -> list[list[float]]:
    given = client.embeddings.create(model="wild", **fields)
    assert [one.index for one in given.data] == list(range(len(given.data)))
    return [one.embedding for one in given.data]


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_are_those_of_the_engine_in_both_encodings(
    client: openai.OpenAI, wild_local: Local, pooling: Any
) -> None:
    right = [list(one.values) for one in wild_local.embed(TEXTS, pooling=pooling)]
    own = {"pooling": pooling}
    assert asked(client, input=TEXTS, extra_body=own) == right  # the client asks for base64 by itself
    assert asked(client, input=TEXTS, encoding_format="float", extra_body=own) == right
    assert [asked(client, input=text, extra_body=own)[0] for text in TEXTS] == right
    given = client.embeddings.create(model="wild", input=TEXTS[0], encoding_format="base64", extra_body=own)
    packed: Any = given.data[0].embedding
    assert list(struct.unpack(f"<{len(right[0])}f", base64.b64decode(packed))) == right[0]


def test_ids_alone_and_in_lists_are_as_good_as_their_text(client: openai.OpenAI, wild_local: Local) -> None:
    lists = [wild_local.tokenizer.encode_prompt(text) for text in TEXTS]
    right = asked(client, input=TEXTS)
    assert asked(client, input=lists) == right
    assert asked(client, input=lists[1]) == right[1:2]


def test_usage_counts_what_was_cached(client: openai.OpenAI) -> None:
    text = "A sentence that nobody has sent before, long enough for a page of tokens or two of them."
    first, second = (client.embeddings.create(model="wild", input=text).usage for _ in range(2))
    assert first.prompt_tokens == first.total_tokens == second.prompt_tokens > 16
    details: Any = second.model_extra
    assert details["prompt_tokens_details"] == {"cached_tokens": second.prompt_tokens - 1}


def test_fewer_dimensions_are_the_first_ones_made_of_length_1(client: openai.OpenAI) -> None:
    (whole,), (short,) = asked(client, input="x"), asked(client, input="x", dimensions=5)
    length = sum(value * value for value in whole[:5]) ** 0.5
    assert short == pytest.approx([value / length for value in whole[:5]], abs=1e-6)
    assert asked(client, input="x", dimensions=len(whole))[0] == pytest.approx(whole, abs=1e-6)


def test_many_texts_take_turns_and_keep_their_order(client: openai.OpenAI) -> None:
    many = [f"Text {number}" for number in range(70)]
    found = asked(client, input=many)
    assert found[33] == asked(client, input=many[33])[0]
    assert found[69] == asked(client, input=many[69])[0]


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"input": ""}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["x", ""]}, "input[1]", "invalid_value"),
        ({"input": [[]]}, "input[0]", "invalid_value"),
        ({"input": [[1], [10**6]]}, "input[1][0]", "invalid_value"),
        ({"input": [-1]}, "input[0]", "invalid_value"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": 3}, "input", "invalid_value"),
        ({"input": ["x"] * 2049}, "input", None),
        ({"input": ["x", "long " * 900]}, "input[1]", "context_length_exceeded"),
        ({"dimensions": 0}, "dimensions", "invalid_value"),
        ({"dimensions": 5000}, "dimensions", "invalid_value"),
        ({"encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"pooling": "max"}, "pooling", "invalid_value"),
    ],
)
def test_what_cannot_be_embedded_is_refused(
    http: TestClient, change: dict[str, Any], param: str, code: str | None
) -> None:
    response = http.post("/v1/embeddings", json={"model": "wild", "input": "x"} | change)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


def test_the_clients_own_exceptions_are_raised(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="another", input="x")
    with pytest.raises(openai.BadRequestError, match="holds 512"):
        client.embeddings.create(model="wild", input=[5] * 513)


def test_an_answer_that_takes_too_long_is_given_up_and_frees_its_pages(wild_local: Local) -> None:
    settings = Settings(model_names=("wild",), timeout_s=1e-3)
    with TestClient(build(wild_local, settings)) as http:
        body = {"model": "wild", "input": [[number] * 500 for number in range(3, 67)], "pooling": "mean"}
        answers = [http.post("/v1/embeddings", json=body), http.post("/v1/score", json={"options": ["long " * 400]})]
        metrics = http.get("/metrics").text
    assert [answer.status_code for answer in answers] == [504, 504]
    assert answers[0].json()["error"]["code"] == "timeout"
    assert 'forktree:request_aborted_total{model="wild"} 2.0' in metrics
    let_cancelled_work_end(wild_local)
    assert_idle(wild_local)


def test_one_that_is_aborted_is_answered(wild_url: str, wild_local: Local) -> None:
    body = {"model": "wild", "input": [[number] * 500 for number in range(3, 200)], "pooling": "mean"}
    answer = aborted(wild_url, "/v1/embeddings", body)
    assert answer.status_code == 409
    let_cancelled_work_end(wild_local)
    assert_idle(wild_local)
