"""Requests made from the OpenAPI document: whatever they hold, the answer is one that the document knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local_fakes import fake_local, hashed
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient
from toy_tokenizers import byte_level

from forktree.backend.server.app import FAMILIES, build
from forktree.backend.server.endpoints import Endpoint
from forktree.backend.server.settings import Settings
from forktree.backend.tokenizer import Tokenizer

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="session")
def small_app() -> Iterator[Any]:
    """A model of hashes with a context of 200 tokens, so that the longest answer is soon there."""
    tokenizer = Tokenizer(byte_level())
    with fake_local(tokenizer, hashed(tokenizer), max_context=200) as local:
        yield build(local, Settings(model_names=("m",), max_choices=3))


@pytest.fixture(scope="session")
def operations(small_app: Any) -> dict[str, Any]:
    described = schemathesis.openapi.from_asgi("/openapi.json", small_app)
    found = [result.ok() for result in described.get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in found}


EVERY = [endpoint for family in FAMILIES for endpoint in family.routes()]


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path.replace(':path', '')}"


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name_of(endpoint), GenerationMode.POSITIVE) for endpoint in EVERY),
        *((name_of(endpoint), GenerationMode.NEGATIVE) for endpoint in EVERY if endpoint.body is not None),
    ],
)
def test_whatever_is_sent_the_answer_is_in_the_document(
    operations: dict[str, Any], name: str, mode: GenerationMode
) -> None:
    @given(st.data())
    @settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def holds(data: st.DataObject) -> None:
        case = data.draw(operations[name].as_strategy(generation_mode=mode))
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = "m"
        case.call_and_validate(checks=CHECKS)

    holds()


def test_the_document_names_every_route_and_every_field(small_app: Any) -> None:
    with TestClient(small_app) as http:
        document = http.get("/openapi.json").json()
    assert set(document["paths"]) == {endpoint.path.replace(":path", "") for endpoint in EVERY}
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    fields = document["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]["properties"]
    assert {"messages", "tools", "response_format", "regex", "min_p"} <= set(fields)


def test_a_server_with_keys_says_so() -> None:
    tokenizer = Tokenizer(byte_level())
    app = build(fake_local(tokenizer, hashed(tokenizer)), Settings(model_names=("m",), api_keys=frozenset(["k"])))
    with TestClient(app) as http:
        document = http.get("/openapi.json").json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    assert "security" not in document["paths"]["/health"]["get"]
