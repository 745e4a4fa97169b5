"""Published schemas: instances decided rightly, random outputs valid, or the schema refused with a reason."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from grammar_walks import TOY, accepts_by_tokens, brute_mask, legal, random_text
from schema_oracle import compact, loads, oracle

from forktree.backend.grammar.constraints import Schema
from forktree.lang.errors import ConstraintError

ROWS = [
    json.loads(line) for line in (Path(__file__).parents[2] / "data/grammar/schemas.jsonl").read_text().splitlines()
]


def schema_of(row: dict[str, Any]) -> Any:
    schema = row["schema"]
    if row["draft"] == "draft7" and isinstance(schema, dict):
        return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    return schema


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_instances_are_decided_rightly_and_random_outputs_validate(row: dict[str, Any]) -> None:
    schema = schema_of(row)
    try:
        constraint = Schema(schema, order="any")
    except ConstraintError as error:
        assert error.reason
        assert not (row["valid"] and "nothing can satisfy" in error.reason)
        return
    for seed, value in enumerate(row["valid"]):
        text = compact(value)
        if "0.0" not in text:  # plain integers have no fraction
            assert accepts_by_tokens(constraint, text, seed=seed), text
    for seed, value in enumerate(row["invalid"]):
        assert not accepts_by_tokens(constraint, compact(value), seed=seed), compact(value)
    validator = oracle(schema)
    for seed in range(6):
        text = random_text(constraint, random.Random(seed), most=120)
        if text is not None:
            validator.validate(loads(text))
            assert constraint.accepts(text)


@pytest.mark.parametrize("row", ROWS[::5], ids=lambda row: row["id"])
def test_masks_are_exactly_what_can_be_completed(row: dict[str, Any]) -> None:
    try:
        constraint = Schema(schema_of(row))
    except ConstraintError:
        return
    rng = random.Random(row["id"])
    matcher = constraint.compile(TOY)
    data = b""
    for _ in range(12):
        allowed = set(legal(matcher))
        assert allowed == brute_mask(constraint, data)
        texts = sorted(allowed - TOY.eos_ids)
        if not texts:
            break
        token = rng.choice(texts)
        matcher.advance(token)
        data += TOY.token_bytes[token] or b""
