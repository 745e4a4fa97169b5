"""Every finished output of a constraint satisfies it, by the judgement of `jsonschema` and `re`, and nothing else.

The real engine runs a two-layer random model over the real tokenizer: what it would rather write is never legal, so
every mask matters. Real schemas and patterns, in two written forms, are generated in one batch with free text and
choices beside them, at temperature 1 under seeds. Tokens that close texts, lists and objects are made likelier:
a wild walk would hardly ever end.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field
from real_parts import assert_idle, write_wild_model
from schema_oracle import loads, oracle

import forktree as ft
from forktree.backend.local import Local
from forktree.lang.constraints import HasSpec
from forktree.runtime.map import Result

pytestmark = pytest.mark.model

DATA = Path(__file__).parents[1] / "data/constrained"
SCHEMAS = [json.loads(line) for line in (DATA / "schemas.jsonl").read_text().splitlines()]
PATTERNS = [json.loads(line) for line in (DATA / "patterns.jsonl").read_text().splitlines()]
CLOSERS = ('"', "}", "]", '"}', '"]', '",', '":', "]}", "}}", '"]}', "],", "},")
MAX_TOKENS = 120


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the batch: the id of its source, its constraint, and a schema or pattern to judge it by."""

    id: str
    constraint: HasSpec | None
    schema: Any = None
    pattern: str | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A schema that could not be honoured in full."""

    id: str
    schema: Any
    error: ft.ConstraintError


def asks_of_schemas() -> tuple[list[Ask], list[Refusal]]:
    """Each schema in keys as written and compact, and in any order with blanks."""
    asks, refusals = [], []
    for row in SCHEMAS:
        schema = row["schema"]
        try:
            asks.append(Ask(row["id"], ft.Schema(schema), schema=schema, seed=1))
            asks.append(Ask(row["id"], ft.Schema(schema, order="any", whitespace=1), schema=schema, seed=2))
        except ft.ConstraintError as error:
            refusals.append(Refusal(row["id"], schema, error))
    return asks, refusals


def asks_of_patterns() -> tuple[list[Ask], list[Refusal]]:
    asks, refusals = [], []
    for row in PATTERNS:
        schema = {"type": "string", "pattern": row["pattern"]} if "pattern" in row else None
        try:
            constraint = ft.Regex(row["regex"]) if schema is None else ft.Schema(schema)
        except ft.ConstraintError as error:
            refusals.append(Refusal(row["id"], schema, error))
            continue
        asks.append(Ask(row["id"], constraint, schema=schema, pattern=row.get("regex"), seed=3))
    return asks, refusals


ASIDE = [Ask("free text", None, seed=5), Ask("choices", ft.Choices(["yes", "no", "yes, but"]), seed=6)] * 8


@ft.function
def answer(s, ask: Ask, bias):
    constraint = {} if ask.constraint is None else {"constraint": ask.constraint}
    s += "Answer:" + ft.gen("v", max_tokens=MAX_TOKENS, temperature=1.0, seed=ask.seed, logit_bias=bias, **constraint)


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Local]:
    folder = write_wild_model(tmp_path_factory.mktemp("wild"), model_dir)
    with Local(folder, kv_tokens=16384, max_running=32) as local:
        yield local.load()


@pytest.fixture(scope="module")
def bias(wild: Local) -> dict[int, float]:
    wanted = {text.encode() for text in CLOSERS}
    return {id: 9.0 for id, spelt in enumerate(wild._model.tokenizer().token_bytes) if spelt in wanted}


@dataclass(frozen=True, slots=True)
class Outcome:
    results: list[tuple[Ask, Result]]
    refusals: list[Refusal]


@pytest.fixture(scope="module")
def outcome(wild: Local, bias: dict[int, float]) -> Outcome:
    """What became of everything, computed in one batch."""
    (schemas, refused), (patterns, also_refused) = asks_of_schemas(), asks_of_patterns()
    asks = [*schemas, *patterns, *ASIDE]
    random.Random(0).shuffle(asks)
    results = answer.using(backend=wild).map([{"ask": ask, "bias": bias} for ask in asks])
    assert_idle(wild)
    return Outcome(list(zip(asks, results, strict=True)), refused + also_refused)


def judge(ask: Ask, text: str) -> str | None:
    """What is wrong with a finished output."""
    if ask.schema is not None:
        validator = oracle(ask.schema)
        validator.format_checker = type(validator).FORMAT_CHECKER
        try:
            validator.validate(loads(text))
        except (jsonschema.ValidationError, ValueError) as error:
            return str(error)
    if ask.pattern is not None and not re.fullmatch(ask.pattern, text):
        return "no match"
    if isinstance(ask.constraint, ft.Choices) and text not in ("yes", "no", "yes, but"):
        return "no option"
    return None


def finished_and_cut(outcome: Outcome) -> tuple[list[tuple[Ask, Result]], list[tuple[Ask, Result]]]:
    constrained = [(ask, result) for ask, result in outcome.results if ask.constraint is not None]
    finished = [pair for pair in constrained if pair[1].state.meta("v").is_complete]
    return finished, [pair for pair in constrained if not pair[1].state.meta("v").is_complete]


def test_no_request_of_the_batch_fails(outcome: Outcome) -> None:
    assert [(ask.id, result.error) for ask, result in outcome.results if not result.ok] == []


def test_every_finished_output_satisfies_its_constraint(outcome: Outcome) -> None:
    finished, cut = finished_and_cut(outcome)
    assert len(finished) > 2 * len(cut)
    assert sum(ask.schema is not None for ask, _ in finished) > 60
    wrong = [
        (ask.id, fault, text)
        for ask, result in finished
        if (fault := judge(ask, text := result.state.meta("v").text)) is not None
    ]
    assert wrong == []


def test_a_finished_output_is_read_as_a_value(outcome: Outcome) -> None:
    for ask, result in finished_and_cut(outcome)[0]:
        meta, value = result.state.meta("v"), result.state["v"]
        assert meta.finish_reason == "stop" or meta.completion_tokens == MAX_TOKENS
        assert value == (meta.text if ask.schema is None else json.loads(meta.text))
        assert result.state.text() == "Answer:" + meta.text


def test_a_cut_output_is_marked_and_raises_where_its_value_is_read(outcome: Outcome) -> None:
    cut = finished_and_cut(outcome)[1]
    assert cut
    for ask, result in cut:
        meta = result.state.meta("v")
        assert meta.finish_reason == "length"
        assert ask.constraint.accepts_prefix(meta.text) or not meta.text.isprintable() or "�" in meta.text
        assert not ask.constraint.accepts(meta.text)
        with pytest.raises(ft.IncompleteError, match="raise max_tokens") as caught:
            result.state["v"]
        assert caught.value.text == meta.text


def test_a_schema_that_is_refused_says_where(outcome: Outcome) -> None:
    for refusal in outcome.refusals:
        assert refusal.error.reason
        if refusal.schema is None:
            assert refusal.error.pointer.startswith("position"), refusal.id
            continue
        at = refusal.schema
        for key in refusal.error.pointer.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            at = at[int(key)] if isinstance(at, list) else at[key]


class Item(BaseModel):
    name: str = Field(max_length=12)
    price: float = Field(ge=0)
    kind: Literal["food", "fuel"]


class Bill(BaseModel):
    items: list[Item] = Field(min_length=1, max_length=2)
    paid: bool


NOTE = 'Paid 12.40 EUR to "Café Nord" on 2024-03-01,\nthanks: naïve 道路 \\o/'
Piece = Annotated[str, ft.Verbatim(), Field(min_length=1, max_length=20)]


class Copied(BaseModel):
    what: Piece
    whole: Annotated[str, ft.Verbatim(unit="word"), Field(max_length=30)]


def test_verbatim_fields_are_pieces_and_alone_equals_in_a_batch(wild: Local, bias: dict[int, float]) -> None:
    @ft.function
    def program(s, seed):
        how = {"schema": Copied, "document": NOTE, "temperature": 1.0, "max_tokens": MAX_TOKENS, "logit_bias": bias}
        s += "Copy:" + ft.gen("copied", seed=seed, **how)

    results = program.using(backend=wild).map([{"seed": seed} for seed in range(12)])
    for result in results:
        copied = result.state["copied"]
        assert 1 <= len(copied.what) <= 20
        assert copied.what in NOTE
        assert not copied.whole or re.search(rf"(?<!\S){re.escape(copied.whole)}(?!\S)", NOTE)
    alone = [program.run(seed, backend=wild) for seed in (3, 7)]
    assert [state.tokens() for state in alone] == [results[seed].state.tokens() for seed in (3, 7)]
    assert_idle(wild)


def test_tags_hold_their_constraints_and_free_text_no_trigger(wild: Local, bias: dict[int, float]) -> None:
    tags = ft.Tags([ft.Tag("<", ft.Choices(["yes", "no"]), ">"), ft.Tag("(", {"type": "integer"}, ")")])

    @ft.function
    def program(s, seed):
        s += "Text:" + ft.gen("text", constraint=tags, max_tokens=60, temperature=1.0, seed=seed, logit_bias=bias)

    results = program.using(backend=wild).map([{"seed": seed} for seed in range(12)])
    finished = [result.state["text"] for result in results if result.state.meta("text").is_complete]
    assert finished
    for text in finished:
        assert not re.search(r"[<(]", re.sub(r"<(?:yes|no)>|\(-?\d+\)", "", text))
    alone = program.run(5, backend=wild)
    assert alone.tokens() == results[5].state.tokens()
    assert_idle(wild)


def test_a_typed_value_is_whole_or_raises(wild: Local, bias: dict[int, float]) -> None:
    @ft.function
    def program(s, seed, max_tokens):
        s += "Bill:" + ft.gen("bill", schema=Bill, max_tokens=max_tokens, temperature=1.0, seed=seed, logit_bias=bias)

    rows = [{"seed": seed, "max_tokens": most} for seed in range(6) for most in (5, 200)]
    for row, result in zip(rows, program.using(backend=wild).map(rows), strict=True):
        assert result.ok
        if result.state.meta("bill").is_complete:
            bill = result.state["bill"]
            assert isinstance(bill, Bill)
            assert Bill.model_validate_json(result.state.meta("bill").text) == bill
        else:
            with pytest.raises(ft.IncompleteError):
                result.state["bill"]
        assert result.state.meta("bill").is_complete == (row["max_tokens"] == 200)
    assert_idle(wild)
