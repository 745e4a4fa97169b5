"""What `OpenAI` sends to each dialect, and what it makes of the answers, over real HTTP."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

import forktree as ft
from forktree.backend.clients.dialects import DIALECTS, dialect_of


@dataclass
class Fact:
    name: str
    year: int


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@ft.function
def chat(s):
    s += ft.system("Be short.")
    s += ft.user("One")
    s += ft.assistant(ft.gen("a", max_tokens=2, temperature=0.5, seed=3, stop=["END", "."]))
    s += ft.user("Two")
    s += ft.assistant(ft.gen("b"))


def test_turns_and_parameters_are_sent_as_the_interface_has_them(service, openai) -> None:
    state = chat.run(backend=openai())
    first, second = service.bodies
    assert first == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "One"}],
        "temperature": 0.5,
        "seed": 3,
        "max_completion_tokens": 2,
        "stop": ["END", "."],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert second["messages"][2:] == [
        {"role": "assistant", "content": " some words"},
        {"role": "user", "content": "Two"},
    ]
    assert state["a"] == " some words"
    meta = state.meta("a")
    assert (meta.finish_reason, meta.cached_tokens, meta.completion_tokens) == ("length", 2, 2)
    assert service.seen[0].headers["authorization"] == "Bearer k"


def test_deltas_arrive_one_by_one(openai, ask) -> None:
    assert list(ask.stream(backend=openai()).text_iter("a")) == [" some", " words", " to", " read"]


@pytest.mark.parametrize("url", ["", "/"])
def test_a_slash_at_the_end_of_the_address_changes_nothing(url, service, opened, ask) -> None:
    backend = opened(ft.OpenAI("m", base_url=f"{service.url}/v1{url}", api_key="k"))
    ask.run(backend=backend)
    assert service.seen[0].path == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("dialect", "sent"),
    [
        ("vllm", {"continue_final_message": True, "add_generation_prompt": False}),
        ("sglang", {"continue_final_message": True}),
        ("llama.cpp", {}),
        ("ollama", {}),
    ],
)
def test_a_turn_that_has_begun_is_continued_as_the_dialect_says(dialect, sent, service, openai, ask) -> None:
    ask.run(before="It is ", backend=openai(dialect))
    (body,) = service.bodies
    assert body["messages"][-1] == {"role": "assistant", "content": "It is "}
    assert {name: body[name] for name in sent} == sent


def test_deepseek_marks_the_turn_that_has_begun(service, openai, ask) -> None:
    ask.run(before="It is ", backend=openai("deepseek"))
    assert service.bodies[0]["messages"][-1] == {"role": "assistant", "content": "It is ", "prefix": True}


@pytest.mark.parametrize("dialect", ["openai", "gemini", "compatible", "forktree"])
def test_a_service_that_cannot_continue_a_turn_says_so_before_any_request(dialect, service, openai, ask) -> None:
    with pytest.raises(ft.UnsupportedError, match="cannot go on with a turn of the assistant that has begun"):
        ask.run(before="It is ", backend=openai(dialect))
    assert service.seen == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 3}, "OpenAI takes no top_k; drop top_k=3"),
        ({"stop": list("abcde")}, "at most 4 stop strings, not 5"),
        ({"logprobs": 21}, "at most 20 alternatives, not 21"),
        ({"schema": int, "on_budget": "close", "max_tokens": 3}, "cannot end an output in time"),
    ],
)
def test_what_a_dialect_does_not_take_is_refused_before_any_request(options, message, service, openai, ask) -> None:
    with pytest.raises(ft.UnsupportedError, match=message):
        ask.run(backend=openai(), **options)
    assert service.seen == []


def test_a_turn_that_has_begun_can_be_told_in_words(service, openai, ask) -> None:
    @ft.function
    def choose(s):
        s += ft.user("Is it?")
        s += ft.assistant("It is: " + ft.select("x", ["yes", "no"]))

    service.answer = lambda body: " red"
    backend = openai(begun_turns="tell")
    state = ask.run(before="It is ", backend=backend)
    assert state.text().endswith("It is red")
    user, told = service.bodies[0]["messages"]
    assert (user["content"], told["role"]) == ("Hi", "system")
    assert "<<<It is>>>" in told["content"]
    assert choose.run(backend=backend)["x"] == "yes"


def test_plain_text_goes_to_the_completions_route_where_there_is_one(service, openai) -> None:
    @ft.function
    def plain(s):
        s += "Once" + ft.gen("a", max_tokens=2) + " and" + ft.gen("b", max_tokens=1)

    assert plain.run(backend=openai("vllm")).text() == "Once some words and some"
    assert [(seen.path, seen.body["prompt"]) for seen in service.seen] == [
        ("/v1/completions", "Once"),
        ("/v1/completions", "Once some words and"),
    ]
    with pytest.raises(ft.UnsupportedError, match=r"answers turns.*'Once'.*text_outside_turns"):
        plain.run(backend=openai())
    plain.run(backend=openai(text_outside_turns="user"))
    assert [message["role"] for message in service.bodies[-1]["messages"]] == ["user", "assistant", "user"]


def test_an_image_is_sent_in_the_users_turn(service, openai) -> None:
    @ft.function
    def look(s):
        s += ft.user("What is this? " + ft.image(b"\x89PNG\r\n\x1a\n"))
        s += ft.assistant(ft.gen("a"))

    look.run(backend=openai())
    text, image = service.bodies[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is this? "}
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    with pytest.raises(ft.UnsupportedError, match="cannot see"):
        look.run(backend=openai("deepseek"))


def test_a_stop_that_the_service_leaves_in_its_answer_is_cut_here(service, openai, ask) -> None:
    service.answer = lambda body: {"text": " one END two", "keeps_stops": True}
    state = ask.run(stop=["END"], backend=openai())
    assert (state["a"], state.meta("a").stop, state.meta("a").finish_reason) == (" one ", "END", "stop")


def test_a_pattern_ends_an_answer_on_this_side_and_the_rest_is_left(service, openai, ask) -> None:
    service.answer = lambda body: " one 12 two three four five six seven"
    backend = openai()
    state = ask.run(stop_regex=r"\d+ ", backend=backend)
    assert (state["a"], state.meta("a").stop) == (" one ", "12 ")
    assert "stop_regex" not in service.bodies[0]
    assert state.meta("a").prompt_tokens > 0
    assert backend.stats().num_requests == 1
    with pytest.raises(ft.ConstraintError, match="matches the empty text"):
        ask.run(stop_regex="x*", backend=backend)


# Structured output


def test_a_closed_schema_is_asked_for_strictly_and_the_value_is_typed(service, openai, ask) -> None:
    assert ask.run(schema=Fact, backend=openai())["a"] == Fact("text", 7)
    form = service.bodies[0]["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["strict"] is True
    assert set(form["json_schema"]["schema"]["properties"]) == {"name", "year"}


def test_an_open_schema_is_asked_for_without_strictness_and_in_words(service, openai, ask) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert ask.run(schema=schema, backend=openai())["a"] == {"a": 7}
    assert service.bodies[0]["response_format"]["json_schema"]["strict"] is False
    assert "JSON Schema" in service.bodies[0]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"choices": ["yes", "no"]}, "yes"),
        ({"dtype": int}, 7),
        ({"schema": {"type": "array", "items": {"type": "integer"}}}, [7]),
    ],
)
def test_what_is_no_object_is_wrapped_in_one(options, value, service, openai, ask) -> None:
    service.answer = lambda body: json.dumps({"answer": str(value) if "schema" not in options else value})
    assert ask.run(backend=openai(), **options)["a"] == value
    assert list(service.bodies[0]["response_format"]["json_schema"]["schema"]["properties"]) == ["answer"]


@pytest.mark.parametrize(
    ("dialect", "options", "sent"),
    [
        ("vllm", {"regex": "[a-z]+"}, {"structured_outputs": {"regex": "[a-z]+"}}),
        ("vllm", {"choices": ["x", "y"]}, {"structured_outputs": {"choice": ["x", "y"]}}),
        ("sglang", {"regex": "[a-z]+"}, {"regex": "[a-z]+"}),
        ("forktree", {"choices": ["x", "y"]}, {"choices": ["x", "y"]}),
        ("forktree", {"grammar": 'start: "x"'}, {"grammar": 'start: "x"'}),
        ("forktree", {"regex": "x", "on_budget": "close", "max_tokens": 4}, {"regex": "x", "on_budget": "close"}),
    ],
)
def test_an_engines_own_field_is_used(dialect, options, sent, service, openai, ask) -> None:
    service.answer = lambda body: "x"
    assert ask.run(backend=openai(dialect), **options)["a"] == "x"
    assert {name: service.bodies[0][name] for name in sent} == sent
    assert "response_format" not in service.bodies[0]


def test_a_schema_goes_where_the_dialect_has_it(service, openai, ask) -> None:
    service.answer = lambda body: '{"answer": "x"}'
    assert ask.run(choices=["x", "y"], backend=openai("llama-cpp-python"))["a"] == "x"
    form = service.bodies[0]["response_format"]
    assert form["type"] == "json_object"
    assert form["schema"]["properties"] == {"answer": {"type": "string", "enum": ["x", "y"]}}


def test_a_service_without_schemas_is_told_in_words(service, openai, ask) -> None:
    service.answer = lambda body: '```json\n{"name": "Ada", "year": 1815}\n```'
    assert ask.run(schema=Fact, backend=openai("deepseek"))["a"] == Fact("Ada", 1815)
    body = service.bodies[0]
    assert body["response_format"] == {"type": "json_object"}
    assert body["messages"][0]["role"] == "system"
    assert '"year"' in body["messages"][0]["content"]


def test_an_illegal_answer_is_asked_for_again_with_what_was_wrong(service, openai, ask) -> None:
    answers = iter(['{"name": "Ada"}', '{"name": "Ada", "year": 1815}'])
    service.answer = lambda body: next(answers)
    backend = openai()
    state = ask.run(schema=Fact, backend=backend)
    assert state["a"] == Fact("Ada", 1815)
    assert "cannot be used" in service.bodies[1]["messages"][-1]["content"]
    assert backend.stats().num_reasked == 1
    assert state.meta("a").prompt_tokens == backend.stats().prompt_tokens  # both were paid


@pytest.mark.parametrize(
    "text", ['{"name": "Ada", "year": "x"}', "no JSON", '{"name": "A", "name": "B", "year": 1}', '["a"]', ""]
)
def test_a_service_that_goes_on_being_wrong_is_an_error(text, service, openai, ask) -> None:
    service.answer = lambda body: text
    with pytest.raises(ft.BackendError, match=r"answered 2 times what the constraint forbids"):
        ask.run(schema=Fact, backend=openai(reasks=1))
    assert len(service.seen) == 2


def test_a_cut_answer_is_marked_and_not_asked_for_again(service, openai, ask) -> None:
    service.answer = lambda body: '{"name": "Ada Lovelace", "year": 1815}'
    with pytest.raises(ft.IncompleteError):
        ask.run(schema=Fact, max_tokens=2, backend=openai())
    assert len(service.seen) == 1


def test_a_cut_answer_that_was_wrong_already_is_asked_for_again_and_no_budget_is_blamed(service, openai, ask) -> None:
    service.answer = lambda body: "Bob is a boy of five years"
    with pytest.raises(ft.BackendError, match=r"answered 2 times what the constraint forbids.* name its dialect"):
        ask.run(regex="[0-9]{3}", max_tokens=2, backend=openai("compatible", reasks=1))
    assert len(service.seen) == 2


def test_a_backend_shows_what_it_is_and_not_its_key(openai) -> None:
    assert repr(openai()) == "OpenAI('m')"


def test_a_schema_that_nothing_satisfies_is_refused_before_any_request(service, openai, ask) -> None:
    with pytest.raises(ft.ConstraintError):
        ask.run(schema={"type": "integer", "minimum": 3, "maximum": 1}, backend=openai())
    assert service.seen == []


# Tools


@ft.function
def agent(s, tools, **options):
    s += ft.tools(tools)
    s += ft.user("1 + 2?")
    s += ft.assistant(ft.gen("call", tools=tools, **options))
    s += ft.tool("3")
    s += ft.assistant(ft.gen("answer"))


def test_a_call_is_forced_and_its_result_is_tied_to_it(service, openai) -> None:
    service.answer = lambda body: (
        {"calls": [("add", {"a": 1, "b": 2})]} if body["tool_choice"] != "none" else "It is 3."
    )
    state = agent.run([add], backend=openai())
    assert state["call"]() == 3
    assert state["answer"] == "It is 3."
    first, second = service.bodies
    assert first["tools"][0]["function"]["description"] == "Adds."
    assert first["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert first["parallel_tool_calls"] is False
    called, result = second["messages"][1:]
    assert called["tool_calls"][0]["function"]["name"] == "add"
    assert result == {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "3"}
    assert second["tool_choice"] == "none"


def test_a_call_with_illegal_arguments_is_asked_for_again(service, openai) -> None:
    calls = iter([[("add", {"a": 1})], [("sub", {})], [("add", {"a": 1, "b": 2})]])
    service.answer = lambda body: {"calls": next(calls)} if body["tool_choice"] != "none" else "3"
    backend = openai()
    assert agent.run([add], backend=backend)["call"].arguments == {"a": 1, "b": 2}
    assert backend.stats().num_reasked == 2


def test_a_service_that_cannot_force_a_call_is_asked_for_json(service, openai) -> None:
    service.answer = lambda body: '{"name": "add", "arguments": {"a": 1, "b": 2}}' if "response_format" in body else "3"
    assert agent.run([add], backend=openai("ollama"))["call"]() == 3
    assert "tools" in service.bodies[1]


def test_a_result_that_answers_no_call_is_refused(service, openai) -> None:
    @ft.function
    def program(s):
        s += ft.user("Hi")
        s += ft.assistant(ft.gen("a"))
        s += ft.tool("3")
        s += ft.assistant(ft.gen("b"))

    with pytest.raises(ft.UnsupportedError, match="answers no call"):
        program.run(backend=openai())


# Answers


def test_reasoning_is_kept_apart_from_the_answer(service, openai, ask) -> None:
    service.answer = lambda body: {"text": "42", "reasoning": "Six by seven."}
    state = ask.run(reasoning=True, backend=openai("vllm"))
    assert (state["a"], state.meta("a").reasoning) == ("42", "Six by seven.")
    with pytest.raises(ft.UnsupportedError, match="cannot enforce a ReasoningSpec"):
        ask.run(reasoning=True, backend=openai())


def test_log_probabilities_carry_texts_where_there_are_no_ids(openai, ask) -> None:
    first = ask.run(logprobs=2, backend=openai()).meta("a").logprobs[0]
    assert (first.token, first.text, first.logprob) == (-1, " some", -0.25)
    assert first.top_texts == ("yes", " Yes")
    assert first.top == ((-1, -0.25), (-1, -2.0))


@pytest.mark.parametrize("finish", ["content_filter", "something new"])
def test_an_answer_that_ends_for_another_reason_is_an_error(finish, service, openai, ask) -> None:
    service.answer = lambda body: {"text": "Well", "finish": finish}
    with pytest.raises(ft.BackendError, match=finish):
        ask.run(backend=openai())


def test_samples_of_one_seed_are_kept_apart(service, openai, ask) -> None:
    ask.run(n=3, seed=5, backend=openai())
    assert sorted(body["seed"] for body in service.bodies) == [5, 6, 7]
    assert all("n" not in body for body in service.bodies)


def test_further_headers_and_fields_are_sent(service, openai, ask) -> None:
    ask.run(backend=openai(headers={"X-Team": "red"}, extra={"reasoning_effort": "low"}))
    assert service.seen[0].headers["x-team"] == "red"
    assert service.bodies[0]["reasoning_effort"] == "low"


def test_generations_in_a_row_can_be_asked_for_in_one_call(service, openai) -> None:
    @ft.function(api_speculation=True)
    def program(s):
        s += "Name:" + ft.gen("name", stop="\n") + "\nAge:" + ft.gen("age", stop="\n")

    service.answer = lambda body: " Ada\nAge: 36\nJob:"
    state = program.run(backend=openai("vllm"))
    assert (state["name"], state["age"]) == (" Ada", " 36")
    assert len(service.seen) == 1


# Dialects and making one


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (None, "openai"),
        ("https://api.openai.com/v1/", "openai"),
        ("https://generativelanguage.googleapis.com/v1beta/openai/", "gemini"),
        ("https://api.deepseek.com", "deepseek"),
        ("http://10.0.0.1:30000/v1", "sglang"),
        ("http://localhost:8080/v1", "llama.cpp"),
        ("http://localhost:11434/v1", "ollama"),
        ("http://localhost:8000/v1", "compatible"),
    ],
)
def test_the_address_tells_the_dialect(url, name) -> None:
    assert dialect_of(None, url).name == name


def test_every_dialect_has_its_own_name_and_where_it_must_a_key() -> None:
    for name, dialect in DIALECTS.items():
        assert dialect.name == name
        assert dialect.key_variables or not dialect.needs_key


def test_a_missing_key_is_named_before_any_request(monkeypatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ft.AuthenticationError, match="give api_key=, or set OPENAI_API_KEY"):
        ft.OpenAI("gpt-4o-mini")
    with pytest.raises(ft.AuthenticationError, match="set GEMINI_API_KEY or GOOGLE_API_KEY"):
        ft.OpenAI("gemini-2.5-flash", dialect="gemini")
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    ft.OpenAI("gemini-2.5-flash", dialect="gemini").close()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ft.OpenAI("", api_key="k"), ft.BackendError, "takes the model's name"),
        (lambda: ft.OpenAI("m", base_url="localhost:8000", api_key="k"), ft.BackendError, "begins with http"),
        (lambda: ft.OpenAI("m", dialect="gpt", api_key="k"), ft.UnsupportedError, "'gpt' is none of"),
        (lambda: ft.OpenAI("m", dialect="vllm"), ft.BackendError, "give base_url="),
        (lambda: ft.OpenAI("m", api_key="k\n k"), ft.AuthenticationError, "api_key"),
        (lambda: ft.OpenAI("m", api_key="k", timout=3), TypeError, "timeout"),
        (lambda: ft.OpenAI("m", api_key="k", timeout=0), ValueError, "timeout must be a number above 0"),
        (lambda: ft.OpenAI("m", api_key="k", retries=-1), ValueError, "retries"),
        (lambda: ft.OpenAI("m", api_key="k", truncate="start"), ft.UnsupportedError, "truncate="),
        (lambda: ft.OpenAI("m", api_key="k", prices={"input": 1}), ValueError, "prices are numbers"),
        (lambda: ft.OpenAI("m", api_key="k", tokenizer=3), ft.BackendError, "tokenizer="),
        (lambda: ft.OpenAI("m", api_key="k", api="chat2"), ValueError, "api="),
    ],
)
def test_a_wrong_argument_is_refused_when_it_is_given(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()


def test_the_identity_tells_services_apart_and_holds_no_key(openai) -> None:
    one, other = openai(), openai("vllm", extra={"top_a": 1})
    assert one.identity != other.identity
    assert "'k'" not in repr(one.identity)


def test_a_closed_backend_says_so(openai, ask) -> None:
    backend = openai()
    ask.run(backend=backend)
    backend.close()
    with pytest.raises(ft.BackendError, match="is closed"):
        ask.run(backend=backend)
