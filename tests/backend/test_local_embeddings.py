"""`Local.embed`: the engine's vectors, for texts and ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_fakes import fake_local, hashed, runner_of
from real_parts import write_wild_model
from toy_tokenizers import byte_level

from forktree.backend.local import Local
from forktree.backend.local_embeddings import shortened
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.errors import ContextLengthError, EngineError, UnsupportedError

TEXTS = ["The owl hunts at night.", "The owl", "Nothing alike"]


@pytest.fixture(scope="module")
def local(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with Local(write_wild_model(tmp_path_factory.mktemp("wild-embed"), model_dir), kv_tokens=2048) as one:
        yield one


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_text_has_the_same_vector_alone_beside_others_warm_and_as_ids(local: Local, pooling: Any) -> None:
    alone = [local.embed(text, pooling=pooling)[0].values for text in TEXTS]
    local.flush_cache()
    assert [one.values for one in local.embed(TEXTS, pooling=pooling)] == alone
    assert [one.values for one in local.embed(TEXTS, pooling=pooling)] == alone
    ids = [local.tokenizer.encode_prompt(text) for text in TEXTS]
    assert [one.values for one in local.embed(ids, pooling=pooling)] == alone
    assert len(set(alone)) == 3
    assert all(sum(value * value for value in values) == pytest.approx(1, abs=1e-6) for values in alone)


def test_the_last_token_takes_what_a_generation_cached(local: Local) -> None:
    local.flush_cache()
    text = "One text for both, of a length that fills at least a page of sixteen tokens, and a few."
    (made,) = local.generate(text)
    (warm,) = local.embed(text)
    assert (warm.usage.prompt_tokens, warm.usage.cached_tokens) == (made.usage.prompt_tokens,) * 2 or (
        warm.usage.cached_tokens == made.usage.prompt_tokens - 1
    )


async def test_ids_are_awaited_too(local: Local) -> None:
    ids = tuple(local.tokenizer.encode_prompt(TEXTS[0]))
    (found,) = await local.embed_ids([ids])
    assert found.values == local.embed(TEXTS[0])[0].values
    assert await local.hidden_size() == len(found.values)
    with pytest.raises(ValueError, match="pooling must be 'last' or 'mean', not 'max'"):
        await local.embed_ids([ids], pooling="max")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"texts": ""}, ValueError, "prompt 0 is empty"),
        ({"texts": [3]}, TypeError, "wrap one as"),
        ({"texts": "x", "pooling": "max"}, ValueError, "pooling must be"),
        ({"texts": "x", "dimensions": 0}, ValueError, "dimensions must be"),
        ({"texts": "x", "dimensions": True}, ValueError, "dimensions must be"),
        ({"texts": "x", "dimensions": 10_000}, ValueError, "this model's embeddings have"),
        ({"texts": "long " * 900}, ContextLengthError, "holds 512"),
    ],
)
def test_what_cannot_be_embedded_is_refused(local: Local, given: dict[str, Any], error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        local.embed(**given)


def test_a_model_without_hidden_states_refuses() -> None:
    tokenizer = Tokenizer(byte_level())
    with fake_local(tokenizer, hashed(tokenizer)) as fake:
        runner_of(fake).forward_hidden = None  # type: ignore[method-assign,assignment]
        with pytest.raises(UnsupportedError, match="no hidden states"):
            fake.embed("x")


def test_a_shortened_vector_has_length_1_again() -> None:
    assert shortened((0.6, 0.0, 0.8), 2) == (1.0, 0.0)
    with pytest.raises(EngineError, match="first 1 values"):
        shortened((0.0, 1.0), 1)
