"""Parsers of untrusted input either take it or refuse it as they document: nothing else comes out, and none hangs.

Here each has a few inputs, the same in every run; `make fuzz` goes on for minutes with new ones. What that found is
listed in `FOUND`.
"""

from __future__ import annotations

import json
import logging
import struct
import warnings
from collections.abc import Iterator

import pytest
from fuzz_routes import server_targets
from fuzz_targets import CONFIG, parser_targets
from fuzzing import Target
from hypothesis import HealthCheck, given, settings

from forktree.backend.server.app import FAMILIES

PARSERS = {target.name: target for target in parser_targets()}
NESTED = b"[" * 100_000 + b"]" * 100_000
NAMES = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/responses",
    "POST /v1/programs",
    "POST /v1/embeddings",
    "POST /v1/score",
    "POST /generate",
    "POST /tokenize",
    "POST /detokenize",
    "POST /abort",
    "POST /flush_cache",
]


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Target]]:
    with server_targets() as targets:
        yield {target.name: target for target in targets}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Warnings about damaged files are what is wanted here."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def feed(target: Target, max_examples: int) -> None:
    chosen = settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

    @chosen
    @given(target.inputs())
    def run(data: bytes) -> None:
        target.accepts(data)

    run()


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_takes_its_seeds(name: str) -> None:
    target = PARSERS[name]
    if name != "OpenAI error":
        assert any(map(target.accepts, target.seeds))


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_takes_an_input_or_refuses_it(name: str) -> None:
    feed(PARSERS[name], 25)


@pytest.mark.parametrize("name", NAMES)
def test_a_route_answers_or_refuses_a_body(name: str, served: dict[str, Target]) -> None:
    feed(served[name], 12)


def test_every_post_route_is_fed(served: dict[str, Target]) -> None:
    posted = {f"POST {each.path}" for family in FAMILIES for each in family.routes() if each.method == "POST"}
    assert set(NAMES) == set(served) == posted


def gguf(*fields: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)) + b"".join(fields)


def gguf_array(kind: int, count: int) -> bytes:
    return struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, kind, count)


FOUND: list[tuple[str, bytes]] = [
    ("config.json", NESTED),
    ("config.json", json.dumps(CONFIG | {"hidden_size": "48"}).encode()),
    ("config.json", json.dumps(CONFIG | {"num_attention_heads": 0}).encode()),
    ("config.json", json.dumps(CONFIG | {"rms_norm_eps": None}).encode()),
    ("config.json", json.dumps(CONFIG | {"eos_token_id": "</s>"}).encode()),
    ("IR JSON", NESTED),
    ("stored values", NESTED),
    ("stored values", b""),
    ("stored values", b'{"$date":"no day"}'),
    ("stored values", b'{"$dict":[1]}'),
    ("recording", NESTED),
    ("recording", b"[]\n"),
    ("GGUF", b""),
    ("GGUF", gguf()),
    ("GGUF", gguf(gguf_array(8, 1 << 60))),  # looped for ever
    ("GGUF", gguf(gguf_array(9, 1 << 60))),
    ("GGUF", gguf(gguf_array(4, 1 << 60))),
    ("GGUF", gguf(struct.pack("<Q", 1 << 62))),
]


@pytest.mark.parametrize(("name", "data"), FOUND, ids=lambda value: value if isinstance(value, str) else None)
def test_what_was_found_is_refused(name: str, data: bytes) -> None:
    assert not PARSERS[name].accepts(data)


def test_a_long_pattern_is_no_deep_one() -> None:
    assert PARSERS["regex"].accepts(b"^\\d{1,4" + b'{"a":' * 3000)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("POST /v1/programs", "sampling", {"temperature": 10**400}),
        ("POST /v1/programs", "sampling", {"n": 1 << 62}),  # asked for all memory
        ("POST /v1/completions", "temperature", 10**400),
        ("POST /v1/completions", "n", 1 << 62),
        ("POST /generate", "sampling_params", {"n": 1 << 62}),
    ],
)
def test_a_number_beyond_all_bounds_is_refused(name: str, field: str, value: object, served: dict[str, Target]) -> None:
    body = json.loads(served[name].seeds[0]) | {field: value}
    assert not served[name].accepts(json.dumps(body).encode())


def test_a_lone_surrogate_in_bytes_is_no_unicode(served: dict[str, Target]) -> None:
    assert not served["POST /tokenize"].accepts(b'{"\xed\xa0\x80prompt": "a"}')
