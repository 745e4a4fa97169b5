"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from forktree.backend.server.schemas.base import Refuse
from forktree.backend.server.schemas.sampling import SamplingFields

Ids = Annotated[list[int], Field(min_length=1)]


def kind_of_prompt(value: Any) -> str | None:
    if not isinstance(value, list):
        return "text" if isinstance(value, str) else None
    first = value[0] if value else ""
    return {int: "ids", list: "id_lists"}.get(type(first), "texts")


Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(min_length=1), Tag("texts")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[list[Ids], Field(min_length=1), Tag("id_lists")],
    Discriminator(
        kind_of_prompt,
        custom_error_type="prompt",
        custom_error_message="must be a text, a list of texts, a list of token ids, or a list of those",
    ),
]


class CompletionRequest(SamplingFields):
    """Prompts as they are, without a chat template."""

    prompt: Prompt | None = Field(None, description="absent or empty is the start of a text")
    max_tokens: int | None = Field(None, ge=0, description="absent is 16; 0 scores the prompt, with `echo`")
    echo: bool | None = Field(None, description="the text begins with the prompt")
    best_of: int | None = Field(
        None, ge=1, description="of so many samples the `n` likeliest a token; not with `stream`"
    )
    logprobs: int | None = Field(
        None, ge=0, le=20, description="with `echo` also of the prompt, whose alternatives are not computed"
    )
    markup: bool | None = Field(None, description="special tokens that a text prompt spells are special tokens")
    suffix: Annotated[Any, Refuse("the model is not asked to fill in: leave suffix out")] = None
