"""`POST /v1/embeddings`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from forktree.backend.server.schemas.base import Model, NonEmpty
from forktree.backend.server.schemas.completions import Ids, kind_of_prompt

Input = Annotated[
    Annotated[NonEmpty, Tag("text")]
    | Annotated[list[NonEmpty], Field(min_length=1), Tag("texts")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[list[Ids], Field(min_length=1), Tag("id_lists")],
    Discriminator(
        kind_of_prompt,
        custom_error_type="input",
        custom_error_message="must be a text, a list of texts, a list of token ids, or a list of those, none empty",
    ),
]


class EmbeddingsRequest(Model):
    """Texts as vectors."""

    model: str = Field(description="one of the names that `/v1/models` lists")
    input: Input = Field(description="at most 2048; a text gets the tokenizer's own BOS")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="`base64` is of float32, little-endian; absent is `float`"
    )
    dimensions: int | None = Field(None, ge=1, description="the first so many values, of length 1 again")
    user: str | None = Field(None, description="a label, which changes nothing")
    # what OpenAI's protocol does not have
    pooling: Literal["last", "mean"] | None = Field(
        None, description="the last token's state, or the mean over the text; absent is `last`"
    )
    priority: int | None = Field(None, description="of one key's waiting requests, the lowest goes first; absent is 0")
    cache_salt: str | None = Field(None, min_length=1, description="cached prompts are shared only within a salt")
