"""What `Anthropic` sends and reads: system apart, turns that alternate, blocks, no blank at the end."""

from __future__ import annotations

import json

import pytest
from scripted_service import Fault

import forktree as ft


def test_system_is_apart_and_the_budget_always_given(service, anthropic) -> None:
    @ft.function
    def program(s):
        s += ft.system("Be kind.")
        s += ft.user("Hi")
        s += ft.assistant(ft.gen("a", temperature=0.5, top_k=3, stop=["words"]))

    state = program.run(backend=anthropic())
    (body,) = service.bodies
    assert body["system"] == [{"type": "text", "text": "Be kind."}]
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert (body["max_tokens"], body["temperature"], body["top_k"], body["stop_sequences"]) == (4096, 0.5, 3, ["words"])
    assert service.seen[0].headers["x-api-key"] == "k"
    assert service.seen[0].headers["anthropic-version"] == "2023-06-01"
    meta = state.meta("a")
    assert (meta.finish_reason, meta.stop) == ("stop", "words")
    assert (meta.cached_tokens, meta.prompt_tokens > 3) == (3, True)


def test_a_begun_turn_is_sent_without_its_last_blank_which_the_answer_then_lacks(service, anthropic) -> None:
    @ft.function
    def program(s):
        s += ft.user("Say")
        s += ft.user(" a word")
        s += ft.user("")
        s += ft.assistant("Word: " + ft.gen("w", stop="to"))

    state = program.run(backend=anthropic())
    (body,) = service.bodies
    assert [message["role"] for message in body["messages"]] == ["user", "assistant"]
    assert [block["text"] for block in body["messages"][0]["content"]] == ["Say", " a word"]
    assert body["messages"][1]["content"][0]["text"] == "Word:"
    assert state["w"] == "some words "
    assert state.text().endswith("Word: some words ")


def test_an_answer_without_the_blank_is_taken_as_it_is(service, anthropic, ask) -> None:
    service.answer = lambda body: "yes"
    assert ask.run(before="It is \n ", backend=anthropic())["a"] == "yes"
    service.answer = lambda body: " \n yes"
    assert ask.run(before="It is \n ", backend=anthropic())["a"] == "yes"
    service.answer = lambda body: "\n yes"
    assert ask.run(before="It is ", backend=anthropic())["a"] == " yes"


def test_what_branches_share_is_marked_for_the_cache(service, anthropic) -> None:
    @ft.function
    def program(s):
        s += ft.user("A long trunk.")
        branches = s.fork(2)
        branches += ft.assistant(ft.gen("a"))
        branches.join()

    program.run(backend=anthropic())
    for body in service.bodies:
        assert body["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}


def test_a_schema_is_a_forced_call_of_a_tool(service, anthropic, ask) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert ask.run(schema=schema, backend=anthropic())["a"] == {"a": 7}
    (body,) = service.bodies
    assert body["tool_choice"] == {"type": "tool", "name": "answer", "disable_parallel_tool_use": True}
    assert body["tools"][0]["input_schema"] == schema


def test_a_schema_behind_a_begun_turn_is_asked_for_in_words(service, anthropic, ask) -> None:
    service.answer = lambda body: "7"
    assert ask.run(before="It is ", dtype=int, backend=anthropic())["a"] == 7
    assert "tools" not in service.bodies[0]
    assert "regular expression" in service.bodies[0]["system"][0]["text"]


def test_an_illegal_answer_is_asked_for_again_and_then_an_error(service, anthropic, ask) -> None:
    service.answer = lambda body: {"calls": [("answer", {"answer": "maybe"})]}
    with pytest.raises(ft.BackendError, match="answered 3 times what the constraint forbids"):
        ask.run(choices=["yes", "no"], backend=anthropic())
    roles = [message["role"] for message in service.bodies[-1]["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]


def test_calls_of_tools_and_their_results_are_blocks(service, anthropic) -> None:
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @ft.function
    def agent(s):
        s += ft.tools([add])
        s += ft.user("1 + 2?")
        s += ft.assistant(ft.gen("calls", tools=[add], parallel=True))
        for call in s["calls"]:
            s += ft.tool(str(call()))
        s += ft.assistant(ft.gen("answer"))

    def answer(body):
        is_free = body["tool_choice"]["type"] == "none"
        return "Done." if is_free else {"calls": [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]}

    service.answer = answer
    state = agent.run(backend=anthropic())
    assert [call() for call in state["calls"]] == [3, 7]
    first, second = service.bodies
    assert first["tools"][0]["description"] == "Adds."
    assert first["tool_choice"]["disable_parallel_tool_use"] is False
    used, results = second["messages"][1:]
    assert [block["type"] for block in used["content"]] == ["tool_use", "tool_use"]
    assert [block["content"] for block in results["content"]] == ["3", "7"]
    assert [block["tool_use_id"] for block in results["content"]] == [block["id"] for block in used["content"]]


def test_what_it_has_no_place_for_is_refused_before_any_request(service, anthropic, ask) -> None:
    @ft.function
    def late(s):
        s += ft.user("Hi")
        s += ft.system("Be kind.")
        s += ft.assistant(ft.gen("a"))

    @ft.function
    def chosen(s):
        s += ft.user("Hi")
        s += ft.assistant(ft.select("a", ["x", "y"]))

    with pytest.raises(ft.RoleError, match="only before the first turn"):
        late.run(backend=anthropic())
    with pytest.raises(ft.UnsupportedError, match="cannot score options"):
        chosen.run(backend=anthropic())
    for options in ({"seed": 3}, {"logprobs": 1}, {"stop": ["\n"]}, {"min_p": 0.1}):
        with pytest.raises(ft.UnsupportedError):
            ask.run(backend=anthropic(), **options)
    assert service.seen == []


def test_errors_in_its_own_shape_are_read(service, anthropic, ask) -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    service.faults += [Fault(status=529, body=body)] * 1
    with pytest.raises(ft.ServerError, match="answered 529: Overloaded"):
        ask.run(backend=anthropic(retries=0))
    service.faults.append(Fault("event", body=body["error"]))
    with pytest.raises(ft.ServerError, match="broke off: Overloaded"):
        ask.run(backend=anthropic())


def test_a_missing_key_is_named(monkeypatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ft.AuthenticationError, match="set ANTHROPIC_API_KEY"):
        ft.Anthropic("claude")


def test_its_scripted_service_refuses_what_the_real_one_does(service, anthropic) -> None:
    """So that the tests above mean something."""
    from scripted_service import messages_problem

    def messages(*turns: tuple[str, str]) -> str:
        told = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
        return messages_problem(json.loads(json.dumps({"messages": told, "max_tokens": 1})))

    assert messages(("user", "a")) == ""
    assert "alternate" in messages(("user", "a"), ("user", "b"))
    assert "whitespace" in messages(("user", "a"), ("assistant", "b "))
