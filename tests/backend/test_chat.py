from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from toy_tokenizers import CHATML, byte_level

from forktree.backend.chat import ChatTemplate, Opening
from forktree.lang.errors import ModelError, RoleError

TEMPLATES = {
    row["id"]: row["chat_template"]
    for row in map(
        json.loads,
        (Path(__file__).parents[1] / "data" / "chat" / "templates.jsonl").read_text(encoding="utf-8").splitlines(),
    )
}
STABLE = {
    "chat_templates/qwen2.5-instruct",
    "chat_templates/granite-3.0-instruct",
    "llama.cpp/ByteDance-Seed-OSS",
    "mistral-common/v15",
    "hfjs/default/llama",
    "hfjs/custom/HuggingFaceH4/zephyr-7b-beta (add_generation_prompt=true)",
    "hfjs/custom/cognitivecomputations/dolphin-2.5-mixtral-8x7b",
}
ALTERNATING = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
)


def template(source: str | None) -> ChatTemplate:
    return ChatTemplate(byte_level(chat_template=source, bos_token="<|im_start|>"))


def compose(chat: ChatTemplate, messages: list[dict[str, str]], *, asks: bool) -> str:
    """The conversation turn by turn, as a program writes it."""
    text, roles = "", ()
    for message in messages:
        opening = chat.between(roles, message["role"])
        text += opening.text + opening.lead + message["content"]
        roles = (*roles, message["role"])
    return text + (chat.between(roles, "assistant").text if asks else chat.end(roles[:-1], roles[-1]))


def conversation(*roles: str) -> list[dict[str, str]]:
    contents = itertools.cycle(["Say when.", "When?\n\nNow, then.", "{'a': 1} é 世界", "7"])
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


def test_the_pieces_of_a_plain_template_are_what_it_writes_around_contents():
    chat = template(CHATML)
    assert chat.begin((), "system") == Opening("<|im_start|>system\n")
    assert chat.end((), "system") == "<|im_end|>\n"
    assert chat.begin(("system", "user"), "assistant") == Opening("<|im_start|>assistant\n")
    assert chat.between(("system",), "user") == Opening("<|im_end|>\n<|im_start|>user\n")
    assert chat.is_stable


def test_a_default_system_prompt_is_part_of_the_first_opening_only():
    chat = template(TEMPLATES["chat_templates/qwen2.5-instruct"])
    assert "You are Qwen" in chat.begin((), "user").text
    assert "You are Qwen" not in chat.begin((), "system").text
    assert "You are Qwen" not in chat.begin(("user", "assistant"), "user").text


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_real_templates_are_judged_stable_or_said_why_not(name):
    chat = template(TEMPLATES[name])
    assert chat.is_stable == (name in STABLE)
    assert (chat.why_unstable is None) == chat.is_stable


@pytest.mark.parametrize("name", sorted(STABLE))
@pytest.mark.parametrize(
    "roles",
    [
        ("user",),
        ("system", "user"),
        ("user", "assistant", "user"),
        ("system", "user", "assistant", "user", "assistant", "user"),
    ],
)
def test_turn_by_turn_equals_the_whole_for_stable_templates(name, roles):
    chat = template(TEMPLATES[name])
    messages = conversation(*roles)
    assert compose(chat, messages, asks=True) == chat.render(messages, add_generation_prompt=True)
    answered = [*messages, {"role": "assistant", "content": "So be it."}]
    assert compose(chat, answered, asks=False) == chat.render(answered)


@pytest.mark.parametrize("name", sorted(set(TEMPLATES) - STABLE - {"hfjs/default/blenderbot"}))
def test_an_unstable_template_still_asks_for_the_first_answer_as_it_does_itself(name):
    chat = template(TEMPLATES[name])
    messages = conversation("user")
    assert compose(chat, messages, asks=True) == chat.render(messages, add_generation_prompt=True)


def test_a_template_without_words_that_ask_opens_an_answer_as_it_quotes_one():
    chat = template(TEMPLATES["hfjs/default/blenderbot"])
    assert compose(chat, conversation("user"), asks=True) == " Say when.  "


def test_a_template_that_closes_turns_differently_when_more_follows_is_followed():
    chat = template(TEMPLATES["llama.cpp/openai-gpt-oss-120b"])
    assert chat.end(("user",), "assistant") == "<|return|>"
    assert chat.between(("user", "assistant"), "user").text == "<|end|><|start|>user<|message|>"


def test_a_blank_written_before_a_quoted_answer_but_not_asked_for_is_a_lead():
    assert template(TEMPLATES["hfjs/default/llama"]).begin(("user",), "assistant") == Opening("", " ")


def test_a_system_turn_that_waits_for_the_user_is_written_with_it():
    chat = template(TEMPLATES["hfjs/default/llama"])
    messages = conversation("system", "user")
    assert chat.end((), "system") == ""
    assert compose(chat, messages, asks=True) == chat.render(messages, add_generation_prompt=True)


def test_a_refused_order_of_turns_is_a_role_error_in_the_templates_words():
    with pytest.raises(RoleError, match=r"refuses the turns \(user, user\): roles must alternate"):
        template(ALTERNATING).begin(("user",), "user")


def test_a_role_that_the_template_ignores_is_a_role_error():
    silent = "{% for m in messages %}{% if m['role'] != 'tool' %}{{ m['content'] }}{% endif %}{% endfor %}"
    with pytest.raises(RoleError, match=r"writes nothing for a turn of 'tool' after \(user\)"):
        template(silent).begin(("user",), "tool")


def test_a_model_without_a_template_says_what_to_do():
    chat = template(None)
    assert not chat.exists
    assert not chat.is_stable
    with pytest.raises(ModelError, match="has no chat template"):
        chat.begin((), "user")


def test_a_template_that_does_not_parse_is_a_role_error():
    with pytest.raises(RoleError):
        template("{% for %}").begin((), "user")


@pytest.mark.model
def test_the_models_own_template_is_stable(smol_tokenizer):
    chat = ChatTemplate(smol_tokenizer)
    assert chat.is_stable
    assert "named SmolLM" in chat.begin((), "user").text
    assert chat.begin(("user",), "assistant") == Opening("<|im_start|>assistant\n")


# Tools

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
DEFINITIONS = json.dumps([WEATHER])


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_first_turns_of_every_real_template_say_what_tools_there_are(name):
    chat = template(TEMPLATES[name]).with_tools(DEFINITIONS)
    messages = conversation("system", "user")
    text = compose(chat, messages, asks=True)
    assert text.count("The weather in a city.") == 1
    assert all(message["content"].strip() in text for message in messages)


@pytest.mark.parametrize("name", sorted(STABLE))
@pytest.mark.parametrize("roles", [("user",), ("system", "user", "assistant", "user")])
def test_with_tools_turn_by_turn_equals_the_whole_for_stable_templates(name, roles):
    chat = template(TEMPLATES[name])
    told = chat.with_tools(DEFINITIONS)
    messages = conversation(*roles)
    if told.is_stable:
        assert compose(told, messages, asks=True) == told.render(messages, add_generation_prompt=True)
    if chat.shows_tools:
        hf = byte_level(chat_template=TEMPLATES[name], bos_token="<|im_start|>")
        whole = hf.apply_chat_template(messages, tools=[WEATHER], tokenize=False, add_generation_prompt=True)
        assert told.render(messages, add_generation_prompt=True) == whole


def test_a_template_without_a_place_for_tools_has_them_in_the_system_turn():
    told = template(CHATML).with_tools(DEFINITIONS)
    line = json.dumps(WEATHER["function"])
    text = told.render(conversation("system", "user"))
    assert text.startswith("<|im_start|>system\nSay when.\n\nYou may call these functions")
    assert f"{line}<|im_end|>\n<|im_start|>user\n" in text
    alone = told.render(conversation("user"))
    assert alone.startswith("<|im_start|>system\nYou may call these functions")
    assert told.is_stable


def test_a_template_that_takes_no_system_turn_has_them_in_the_first_one():
    told = template(ALTERNATING).with_tools(DEFINITIONS)
    text = compose(told, conversation("user", "assistant", "user"), asks=False)
    assert text.startswith("[user]You may call these functions")
    assert text.count("weather") == 1 + 1  # its name and its description


def test_equal_tools_are_one_template():
    chat = template(CHATML)
    assert chat.with_tools(DEFINITIONS) is chat.with_tools(DEFINITIONS)
