"""Calls and reasoning through the real engine, in the markup of a template: special tokens where that has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel
from real_parts import assert_idle, write_wild_model

import forktree as ft
from forktree.backend.local import Local
from forktree.backend.local_forms import AnswerText, Form, form_of
from forktree.backend.render import Prompt
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.constraints import ReasoningSpec, SchemaSpec, ToolSpec, ToolsSpec
from forktree.lang.errors import UnsupportedError

pytestmark = pytest.mark.model

# calls and reasoning between special tokens that the tokenizer has, `<issue_start>` by its name only
TEMPLATE = """{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}
{%- if m.get('reasoning_content') %}{{ '<issue_start>\n' + m['reasoning_content'] + '\n<issue_closed>\n\n' }}{% endif %}
{{- m['content'] or '' }}{% for c in m.get('tool_calls') or [] %}{% if not loop.first %}{{ '\n' }}{% endif %}
{{- '<reponame>{"name": "' + c['function']['name'] + '", "arguments": ' + c['function']['arguments'] | tojson }}
{{- '}<file_sep>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def add(a: int, b: Literal[1, 2, 3]) -> int:
    """The sum of two numbers."""
    return a + b


def flip(side: Literal["heads", "tails"] = "heads") -> str:
    """The other side of a coin."""
    return {"heads": "tails", "tails": "heads"}[side]


class Verdict(BaseModel):
    answer: Literal["yes", "no"]
    points: Literal[0, 1, 2]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Local]:
    folder = write_wild_model(tmp_path_factory.mktemp("taught"), model_dir)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    with Local(folder, kv_tokens=8192, max_running=16) as local:
        yield local.load()


@pytest.fixture(scope="module")
def tokenizer(local: Local) -> Tokenizer:
    return local._model.tokenizer()


@ft.function
def ask(s, options, turns=("Question?",)):
    for turn in turns:
        s += ft.user(turn)
    s += ft.assistant(ft.gen("v", temperature=1.0, **options))
    s += ft.user("More?")


def special(tokenizer: Tokenizer, text: str) -> int:
    (id,) = tokenizer.encode(text, markup=True)
    return id


def test_a_call_is_written_in_special_tokens_and_comes_out_typed(local: Local, tokenizer: Tokenizer) -> None:
    rows = [({"tools": [add, flip], "seed": seed, "max_tokens": 120},) for seed in range(12)]
    results = ask.using(backend=local).map(rows)
    for result in results:
        state = result.state
        call = state["v"]
        assert call.name in ("add", "flip")
        assert call() is not None
        text = state.meta("v").text
        assert text.startswith('<reponame>{"name": "' + call.name)
        assert text.endswith("}<file_sep>")
        ids = state.tokens()
        assert ids.count(special(tokenizer, "<reponame>")) == ids.count(special(tokenizer, "<file_sep>")) == 1
        assert tokenizer.eos_ids & set(ids)
    assert_idle(local)


def test_several_calls_are_a_list(local: Local) -> None:
    rows = [({"tools": [add, flip], "parallel": 3, "seed": seed, "max_tokens": 200},) for seed in range(8)]
    results = [result for result in ask.using(backend=local).map(rows) if result.state.meta("v").is_complete]
    counts = {len(result.state["v"]) for result in results}
    assert counts <= {1, 2, 3}
    assert len(results) > 4
    for result in results:
        assert result.state.meta("v").text.count("}<file_sep>") == len(result.state["v"])


def test_reasoning_comes_first_and_is_not_the_value(local: Local, tokenizer: Tokenizer) -> None:
    options = {"schema": Verdict, "reasoning": ft.Reasoning(max_tokens=9), "max_tokens": 60}
    results = ask.using(backend=local).map([({**options, "seed": seed},) for seed in range(10)])
    begin, end = special(tokenizer, "<issue_start>"), special(tokenizer, "<issue_closed>")
    for result in results:
        state, ids = result.state, result.state.tokens()
        assert isinstance(state["v"], Verdict)
        assert Verdict.model_validate_json(state.messages()[1]["content"]) == state["v"]
        assert 0 < ids.index(end) - ids.index(begin) <= 9 + 4  # at most a character's other bytes more
        assert "<issue" not in state.meta("v").reasoning
        assert ids.count(begin) == ids.count(end) == 1
    assert any(result.state.meta("v").reasoning for result in results)


def test_reasoning_goes_with_calls_and_with_free_text(local: Local) -> None:
    thinking = {"reasoning": ft.Reasoning(max_tokens=5), "seed": 3}
    state = ask.run({"tools": [flip], "max_tokens": 80, **thinking}, backend=local)
    assert state["v"].name == "flip"
    assert state.meta("v").text.startswith("<reponame>")
    free = ask.run({"max_tokens": 20, **thinking}, backend=local)
    assert "<issue_closed>" not in free["v"]
    assert free.meta("v").completion_tokens == 20


def test_output_that_is_cut_while_it_reasons_is_incomplete(local: Local) -> None:
    with pytest.raises(ft.IncompleteError):
        _ = ask.run({"schema": Verdict, "reasoning": True, "max_tokens": 4, "seed": 1}, backend=local)["v"]


def test_reasoning_and_answer_end_within_a_budget(local: Local) -> None:
    options = {"schema": Verdict, "on_budget": "close", "max_tokens": 30}
    for most in (None, 4):
        thinking = {"reasoning": ft.Reasoning(max_tokens=most)}
        results = ask.using(backend=local).map([({**options, **thinking, "seed": seed},) for seed in range(6)])
        assert all(isinstance(result.state["v"], Verdict) for result in results)
        assert all(result.state.meta("v").completion_tokens <= 30 for result in results)


def test_deltas_are_the_value_alone_and_alone_equals_in_a_batch(local: Local) -> None:
    options = {"schema": Verdict, "reasoning": ft.Reasoning(max_tokens=7), "max_tokens": 60}
    alone = []
    for seed in range(4):
        state = ask.using(backend=local).stream({**options, "seed": seed})
        text = "".join(state.text_iter("v"))
        assert text == state.meta("v").text
        alone.append((state.tokens(), state.meta("v").reasoning))
    together = ask.using(backend=local).map([({**options, "seed": seed},) for seed in range(4)])
    assert [(result.state.tokens(), result.state.meta("v").reasoning) for result in together] == alone


def test_reasoning_that_the_prompt_has_opened_is_not_opened_again(tokenizer: Tokenizer) -> None:
    spec = ReasoningSpec(SchemaSpec('{"type": "boolean"}'))
    closed = form_of(spec, Prompt(tuple(tokenizer.encode("so"))), tokenizer)
    assert (closed.begin, closed.end) == ("<issue_start>", "<issue_closed>")
    opened = form_of(spec, Prompt(tuple(tokenizer.encode("so <issue_start>\n", markup=True))), tokenizer)
    assert (opened.begin, opened.end) == ("", "<issue_closed>")


def test_what_the_markup_cannot_write_exactly_is_json(tokenizer: Tokenizer) -> None:
    odd = ToolsSpec((ToolSpec('say "hi"', '{"type": "object"}'),))
    assert form_of(odd, Prompt((1,)), tokenizer) == Form(odd)


def test_a_template_that_shows_no_reasoning_says_so(smol_tokenizer) -> None:
    plain = Tokenizer(smol_tokenizer)
    with pytest.raises(UnsupportedError, match=r"ft.Reasoning\('<think>', '</think>'\)"):
        form_of(ReasoningSpec(None), Prompt((1,)), plain)
    tools = ToolsSpec((ToolSpec("add", '{"type": "object"}'),))
    assert form_of(tools, Prompt((1,)), plain) == Form(tools)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_an_answer_is_parted_however_it_comes(size: int) -> None:
    output = "<t>\nI plan.\n</t>\n\n\nResult"
    answer = AnswerText(Form(None, "<t>", "</t>"))
    shown = "".join(answer.feed(output[at : at + size]) for at in range(0, len(output), size))
    assert shown == answer.text == "\nResult"
    assert answer.reasoning == "I plan."
    assert answer.whole == output
    assert answer.value() is None
