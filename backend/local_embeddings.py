"""Texts as vectors: the direction of a model's final hidden states, computed by the engine like any other request."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from forktree.backend.engine.messages import EngineRequest, Event, Finished
from forktree.backend.local_model import LocalModel
from forktree.backend.local_raw import prompt_ids, run_all
from forktree.lang.errors import EngineError
from forktree.runtime.protocol import Usage

Pooling = Literal["last", "mean"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


@dataclass(frozen=True, slots=True)
class Embedding:
    """One text as a vector of length 1; each value is exactly a float32."""

    values: tuple[float, ...]
    usage: Usage


def embed_raw(
    model: LocalModel,
    prompts: str | Sequence[str | Sequence[int]],
    *,
    pooling: Pooling,
    dimensions: int | None,
    markup: bool,
) -> list[Embedding]:
    """See `Local.embed`."""
    check_pooling(pooling)
    if dimensions is not None and (isinstance(dimensions, bool) or not isinstance(dimensions, int) or dimensions < 1):
        raise ValueError(f"dimensions must be None or a whole number from 1 on, not {dimensions!r}")
    if dimensions is not None and dimensions > model.engine().hidden_size:
        size = model.engine().hidden_size
        raise ValueError(f"dimensions is {dimensions}, and this model's embeddings have {size}")
    tokenizer = model.tokenizer()
    requests = [partial(embedding_request, ids, pooling) for ids in prompt_ids(prompts, tokenizer, markup)]
    return [embedding_of(end, dimensions) for _, end in run_all(model.engine(), requests)]


def check_pooling(pooling: str) -> None:
    """Raises ValueError: it is none."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be {' or '.join(map(repr, POOLINGS))}, not {pooling!r}")


def embedding_request(ids: tuple[int, ...], pooling: Pooling, on_event: Callable[[Event], None]) -> EngineRequest:
    """What the engine is given: the state of the last token, or those of all, whose sum has the mean's direction."""
    return EngineRequest(ids=ids, embed_from=0 if pooling == "mean" else len(ids) - 1, on_event=on_event)


def embedding_of(finished: Finished, dimensions: int | None = None) -> Embedding:
    values = finished.embedding if dimensions is None else shortened(finished.embedding, dimensions)
    return Embedding(values, Usage(finished.num_prompt, finished.num_cached))


def shortened(values: Sequence[float], dimensions: int) -> tuple[float, ...]:
    """The first values of a vector, made of length 1 again and rounded to float32.

    Raises EngineError: all of them are 0.
    """
    assert 0 < dimensions <= len(values)
    kept = values[:dimensions]
    length = math.sqrt(math.fsum(value * value for value in kept))
    if not length:
        raise EngineError(f"the first {dimensions} values of an embedding are all 0: ask for more dimensions")
    return tuple(struct.unpack(f"{dimensions}f", struct.pack(f"{dimensions}f", *(value / length for value in kept))))
