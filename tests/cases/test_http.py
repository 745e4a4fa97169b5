"""Faults that servers of this kind had over HTTP, and what is right."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_fakes import answerer, fake_local, hashed, speaker
from real_parts import write_wild_model
from starlette.testclient import TestClient
from toy_tokenizers import byte_level

from forktree.backend.local import Local
from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings
from forktree.backend.tokenizer import Tokenizer

TALK = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def wild(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = write_wild_model(tmp_path_factory.mktemp("wild-http"), model_dir)
    with Local(folder, kv_tokens=2048).load() as local, TestClient(build(local, Settings(model_names=("m",)))) as http:
        yield http


def saying(*texts: str) -> TestClient:
    """A server whose model says one of these texts, a character or part of one at a time."""
    tokenizer = Tokenizer(byte_level())
    return TestClient(build(fake_local(tokenizer, speaker(tokenizer, *texts)), Settings(model_names=("m",))))


def post(http: TestClient, path: str = "/v1/chat/completions", **body: Any) -> Any:
    answer = http.post(path, json={"model": "m", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(http: TestClient, path: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    answer = http.post(path, json={"model": "m", **body})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


def events(http: TestClient, path: str = "/v1/chat/completions", **body: Any) -> list[Any]:
    with http.stream("POST", path, json={"model": "m", "stream": True, **body}) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


# --- h01: null and absent are the same ---------------------------------------------------------------------

NULLS = [
    *("response_format", "stop", "tools", "tool_choice", "stream", "stream_options", "max_tokens", "temperature"),
    *("top_p", "seed", "logprobs", "top_logprobs", "n", "user", "logit_bias", "frequency_penalty", "presence_penalty"),
    *("max_completion_tokens", "regex", "grammar", "choices", "top_k", "min_p"),
]
TOOL_TURNS = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
]


def test_h01_a_null_field_is_as_good_as_none(wild: TestClient) -> None:
    plain = post(wild, messages=TOOL_TURNS, max_completion_tokens=4)
    nulls = dict.fromkeys(NULLS) | {"max_completion_tokens": 4}
    assert post(wild, messages=TOOL_TURNS, **nulls)["choices"] == plain["choices"]


@pytest.mark.parametrize("field", NULLS)
def test_h01_each_field_may_be_null_alone(wild: TestClient, field: str) -> None:
    post(wild, messages=TALK, **{"max_completion_tokens": 1, field: None} | {"max_completion_tokens": 1})


def test_h01_an_answer_without_content_needs_calls(wild: TestClient) -> None:
    error = refused(wild, messages=[*TALK, {"role": "assistant", "content": None}])
    assert error["param"] == "messages[1]"


def test_h01_an_unknown_field_is_refused_by_name(wild: TestClient) -> None:
    error = refused(wild, messages=TALK, max_token=4)
    assert (error["param"], error["code"]) == ("max_token", "unknown_parameter")


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_h01_content_may_be_a_list_of_text_parts_in_every_role(wild: TestClient, role: str) -> None:
    own = {"tool_call_id": "c1"} if role == "tool" else {}
    one = {"role": role, "content": "two parts", **own}
    parts = {"role": role, "content": [{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}], **own}
    answers = [post(wild, messages=[turn, *TALK], max_tokens=3, temperature=0) for turn in (one, parts)]
    assert answers[0]["choices"] == answers[1]["choices"]


# --- h03: usage in streams ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_h03_usage_is_not_sent_unless_asked_for(wild: TestClient, options: Any) -> None:
    chunks = events(wild, messages=TALK, max_tokens=3, stream_options=options)
    assert all(chunk.get("usage") is None and chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize("body", [{}, {"n": 2}, {"stop": ["e", "a"]}, {"logprobs": True}])
def test_h03_usage_comes_once_at_the_end_and_is_that_of_the_whole_answer(wild: TestClient, body: Any) -> None:
    asked = {"messages": TALK, "max_tokens": 6, "seed": 1, "temperature": 1.0, **body}
    post(wild, **asked)  # the prompt is cached from here on
    whole = post(wild, **asked)
    *rest, last = events(wild, **asked, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert all(chunk.get("usage") is None and chunk["choices"] for chunk in rest)


def test_h03_tokens_of_a_stop_are_counted_and_samples_add_up() -> None:
    http = saying("ab.cd")
    usage = post(http, "/v1/completions", prompt="", stop=".", n=2, max_tokens=9, temperature=0)["usage"]
    assert usage["completion_tokens"] == 2 * len("ab.")


def test_h03_stream_options_without_a_stream_are_refused(wild: TestClient) -> None:
    assert refused(wild, messages=TALK, stream_options={"include_usage": True})["param"] == "stream_options"


# --- h05: log-probabilities --------------------------------------------------------------------------------

PARTIAL = "H\U0001f600 é"


@pytest.mark.parametrize(("body", "num_top"), [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 3}, 3)])
def test_h05_bytes_join_to_the_text_and_parts_of_characters_are_valid(body: Any, num_top: int) -> None:
    tokenizer = Tokenizer(byte_level())
    local = fake_local(tokenizer, answerer(tokenizer, PARTIAL))
    with TestClient(build(local, Settings(model_names=("m",)))) as http:
        answer = post(http, messages=TALK, logprobs=True, max_tokens=30, temperature=0, **body)["choices"][0]
    content = answer["logprobs"]["content"]
    assert answer["message"]["content"] == PARTIAL
    assert b"".join(bytes(entry["bytes"]) for entry in content) == PARTIAL.encode()
    assert num_top or not any(entry["top_logprobs"] for entry in content)
    assert "\ufffd" in [entry["token"] for entry in content]


def test_h05_alternatives_without_logprobs_are_refused(wild: TestClient) -> None:
    assert refused(wild, messages=TALK, top_logprobs=3)["param"] == "top_logprobs"


def test_h05_streamed_logprobs_are_those_of_the_whole_answer(wild: TestClient) -> None:
    asked = {"messages": TALK, "max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = post(wild, **asked)["choices"][0]["logprobs"]["content"]
    streamed = [entry for chunk in events(wild, **asked) for entry in (logs(chunk) or {"content": []})["content"]]
    assert streamed == whole
    assert all(len(entry["top_logprobs"]) == 2 for entry in whole)


def logs(chunk: Any) -> Any:
    return chunk["choices"][0]["logprobs"]


def test_h05_an_echoed_prompt_has_offsets_into_the_text(wild: TestClient) -> None:
    choice = post(wild, "/v1/completions", prompt="H\U0001f600 né", logprobs=2, echo=True, max_tokens=3)["choices"][0]
    found = choice["logprobs"]
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    assert all(value <= 0 for value in found["token_logprobs"][1:])
    offsets, text = found["text_offset"], choice["text"]
    assert offsets == sorted(offsets)
    assert len(offsets) == len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"])
    for at, token in zip(offsets, found["tokens"], strict=True):
        assert "\ufffd" in token or text[at:].startswith(token)


# --- h07: model name and key -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[TestClient]:
    tokenizer = Tokenizer(byte_level())
    local = fake_local(tokenizer, hashed(tokenizer))
    settings = Settings(model_names=("served-name", "other"), api_keys=frozenset(["right-key", "second"]))
    with TestClient(build(local, settings)) as http:
        yield http


def ask(http: TestClient, model: Any = "served-name", key: str | None = "Bearer right-key") -> Any:
    headers = {} if key is None else {"Authorization": key}
    named = {} if model is ... else {"model": model}
    return http.post("/v1/chat/completions", json={"messages": TALK, "max_tokens": 1, **named}, headers=headers)


@pytest.mark.parametrize("name", ["no-such-model", "", "served-name "])
def test_h07_an_unknown_model_is_not_found_and_the_known_ones_are_named(guarded: TestClient, name: str) -> None:
    answer = ask(guarded, name)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'served-name'" in error["message"]


@pytest.mark.parametrize("name", [..., None])
def test_h07_a_request_has_to_name_its_model(guarded: TestClient, name: Any) -> None:
    answer = ask(guarded, name)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize("name", ["served-name", "other"])
def test_h07_the_answer_names_the_model_as_it_was_asked_for(guarded: TestClient, name: str) -> None:
    assert ask(guarded, name).json()["model"] == name


@pytest.mark.parametrize("key", [None, "", "Bearer", "Bearer wrong", "Basic right-key", "right-key", "Bearer right"])
def test_h07_without_a_right_key_nothing_is_done(guarded: TestClient, key: str | None) -> None:
    answer = ask(guarded, key=key)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("key", ["Bearer right-key", "bearer right-key", "BEARER  second"])
def test_h07_a_right_key_is_taken_whatever_the_case_of_its_scheme(guarded: TestClient, key: str) -> None:
    assert ask(guarded, key=key).status_code == 200


def test_h07_models_are_listed_with_a_key_and_health_needs_none(guarded: TestClient) -> None:
    headers = {"Authorization": "Bearer second"}
    assert guarded.get("/health").status_code == guarded.get("/ready").status_code == 200
    assert guarded.get("/v1/models").status_code == 401
    listed = guarded.get("/v1/models", headers=headers).json()["data"]
    assert [model["id"] for model in listed] == ["served-name", "other"]
    assert guarded.get("/v1/models/other", headers=headers).json()["id"] == "other"
    missing = guarded.get("/v1/models/no-such-model", headers=headers)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


# --- h09: lists of prompts ---------------------------------------------------------------------------------

PROMPTS = ["one", "two", "three"]


@pytest.mark.parametrize("as_ids", [False, True])
def test_h09_choices_follow_their_prompts(wild: TestClient, as_ids: bool) -> None:
    prompts: list[Any] = PROMPTS
    if as_ids:
        prompts = [wild.post("/tokenize", json={"prompt": one}).json()["tokens"] for one in PROMPTS]
    asked: Any = {"prompt": prompts, "n": 2, "echo": True, "max_tokens": 2, "temperature": 1.0, "seed": 4}
    choices = post(wild, "/v1/completions", **asked)["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    for choice in choices:
        assert choice["text"].startswith(PROMPTS[choice["index"] // 2])
    texts = [""] * 6
    for chunk in events(wild, "/v1/completions", **asked):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [choice["text"] for choice in choices]


def test_h09_one_list_of_ids_is_one_prompt(wild: TestClient) -> None:
    ids = wild.post("/tokenize", json={"prompt": "one two"}).json()["tokens"]
    (choice,) = post(wild, "/v1/completions", prompt=ids, echo=True, max_tokens=1)["choices"]
    assert choice["text"].startswith("one two")


def test_h09_no_prompt_in_a_list_is_refused(wild: TestClient) -> None:
    assert refused(wild, "/v1/completions", prompt=[])["param"] == "prompt"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (["short", "long " * 600], "prompt[1]"),
        ([[1, 2], [10**9]], "prompt[1][0]"),
        ([[1, 2], []], "prompt[1]"),
        (["a", 3], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
    ],
)
def test_h09_a_bad_prompt_is_named_and_none_runs(wild: TestClient, prompt: Any, param: str) -> None:
    local: Local = wild.app.state.served.backend  # type: ignore[attr-defined]
    before = local.stats()
    error = refused(wild, "/v1/completions", prompt=prompt, max_tokens=2)
    assert error["param"] == param
    assert param in error["message"]
    assert local.stats().prefill_tokens == before.prefill_tokens


def test_h09_prompts_run_side_by_side() -> None:
    """Steps are counted, not seconds: three prompts take as many as one."""
    tokenizer = Tokenizer(byte_level())
    steps = []
    for prompts in (["one"], PROMPTS):
        local = fake_local(tokenizer, hashed(tokenizer))
        with TestClient(build(local, Settings(model_names=("m",)))) as http:
            post(http, "/v1/completions", prompt=prompts, max_tokens=20, temperature=0, ignore_eos=True)
            steps.append(len(local.timeline()))
    assert steps[1] < 2 * steps[0]


def test_h09_embeddings_keep_the_order_of_their_inputs(wild: TestClient) -> None:
    together = post(wild, "/v1/embeddings", input=["b", "a", "b c"])["data"]
    assert [entry["index"] for entry in together] == [0, 1, 2]
    alone = [post(wild, "/v1/embeddings", input=one)["data"][0]["embedding"] for one in ("b", "a", "b c")]
    assert [entry["embedding"] for entry in together] == alone
    packed = post(wild, "/v1/embeddings", input=["b", "a", "b c"], encoding_format="base64")["data"]
    for entry, vector in zip(packed, alone, strict=True):
        found = struct.unpack(f"<{len(vector)}f", base64.b64decode(entry["embedding"]))
        assert found == pytest.approx(vector, abs=1e-6)


def test_h09_an_empty_input_among_others_is_named(wild: TestClient) -> None:
    assert refused(wild, "/v1/embeddings", input=["b", "a", ""])["param"] == "input[2]"


# --- h11: stops --------------------------------------------------------------------------------------------

SCRIPT = "line one\nEND é \U0001f600"


def stopped(stop: Any) -> str:
    with saying(SCRIPT) as http:
        choice = post(http, "/v1/completions", prompt="", max_tokens=60, temperature=0, stop=stop)["choices"][0]
        chunks = events(http, "/v1/completions", prompt="", max_tokens=60, temperature=0, stop=stop)
    text: str = choice["text"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    assert choice["finish_reason"] == "stop"
    return text


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("\n", "line one"),
        (["\n"], "line one"),
        (["\n", "END"], "line one"),
        (["END"], "line one\n"),
        ([], SCRIPT),
        (None, SCRIPT),
        (["x"] * 5, SCRIPT),
        ("é", "line one\nEND "),
        ("\U0001f600", "line one\nEND é "),
    ],
)
def test_h11_a_stop_ends_the_text_before_it(stop: Any, text: str) -> None:
    assert stopped(stop) == text


@pytest.mark.parametrize(("stop", "param"), [("", "stop"), ([""], "stop[0]"), (["a", ""], "stop[1]"), ([3], "stop[0]")])
def test_h11_an_empty_stop_or_one_that_is_no_text_is_refused_by_name(wild: TestClient, stop: Any, param: str) -> None:
    assert refused(wild, messages=TALK, stop=stop)["param"] == param


def test_h11_there_are_at_most_64_stops(wild: TestClient) -> None:
    assert "64" in refused(wild, messages=TALK, stop=[str(n) for n in range(65)])["message"]
