"""The OpenAPI document: what each route takes and gives, from the models that check requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic.json_schema import models_json_schema

from forktree.backend.server.endpoints import Endpoint

_REFUSALS = {
    "400": "a field is wrong, or what it asks for cannot be done",
    "401": "no key, or a wrong one",
    "404": "there is no such model",
    "413": "the body is too long",
    "415": "the body is no JSON",
    "429": "too many requests",
    "503": "the engine is not there",
}


def document(endpoints: Iterable[Endpoint], *, version: str, has_keys: bool) -> dict[str, Any]:
    """The whole document, OpenAPI 3.1."""
    known = list(endpoints)
    models = list(dict.fromkeys(endpoint.body for endpoint in known if endpoint.body is not None))
    refs, shared = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    errors = {endpoint.wire.error_name: dict(endpoint.wire.error_schema) for endpoint in known}
    components: dict[str, Any] = {"schemas": {**shared.get("$defs", {}), **errors}}
    if has_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    paths: dict[str, Any] = {}
    for endpoint in known:
        body = None if endpoint.body is None else refs[endpoint.body, "validation"]
        path = re.sub(r"\{(\w+):path\}", r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, body, has_keys=has_keys)
    return {
        "openapi": "3.1.0",
        "info": {"title": "forktree", "version": version},
        "paths": paths,
        "components": components,
    }


def _operation(endpoint: Endpoint, body: dict[str, Any] | None, *, has_keys: bool) -> dict[str, Any]:
    content: dict[str, Any] = {endpoint.media_type: {"schema": endpoint.gives or {}}}
    if endpoint.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{endpoint.wire.error_name}"}}}
    responses: dict[str, Any] = {"200": {"description": "done", "content": content}}
    if not endpoint.is_open:
        responses |= {status: {"description": why, "content": error} for status, why in _REFUSALS.items()}
    elif endpoint.path == "/ready":
        responses["503"] = {"description": "not ready", "content": {"application/json": {"schema": endpoint.gives}}}
    operation: dict[str, Any] = {"summary": endpoint.summary, "responses": responses}
    names = re.findall(r"\{(\w+)", endpoint.path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if has_keys and not endpoint.is_open:
        operation["security"] = [{"key": []}]
    return operation
