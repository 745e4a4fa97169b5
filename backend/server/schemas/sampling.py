"""How tokens are drawn, the same in chat and completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from forktree.backend.server.schemas.base import Model, Refuse, StreamOptions, Texts

_LABEL = "a label, which changes nothing"


def _check_bias(value: dict[str, float]) -> dict[str, float]:
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 19):
            raise ValueError(f"logit_bias must map token ids to numbers, and {key!r} is no token id")
        if not -100 <= bias <= 100:
            raise ValueError(f"logit_bias of token {key} must be between -100 and 100, not {bias:g}")
    return value


class SamplingFields(Model):
    """Fields of every request that generates."""

    model: str = Field(description="one of the names that `/v1/models` lists")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; absent is the model's own")
    top_p: float | None = Field(None, ge=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Annotated[dict[str, float], AfterValidator(_check_bias)] | None = Field(
        None, description="from token id to what its logit is raised by, -100 to 100"
    )
    seed: int | None = Field(None, description="the same seed and prompt draw the same tokens, whatever runs beside")
    n: int | None = Field(None, ge=1, description="samples of each prompt")
    stop: Texts | None = Field(None, description="a text or up to 64; none may be empty")
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="only with `stream`")
    user: str | None = Field(None, description=_LABEL)
    # what OpenAI's protocol does not have
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    min_tokens: int | None = Field(None, ge=0, description="no end before so many tokens")
    ignore_eos: bool | None = Field(None, description="go on past the model's end token")
    stop_token_ids: list[int] | None = Field(None, max_length=64)
    regex: str | None = Field(None, description="the whole output matches, by Python's syntax")
    grammar: str | None = Field(None, description="the whole output is a sentence of this lark grammar")
    choices: list[str] | None = Field(None, min_length=1, description="the whole output is one of these")
    priority: int | None = Field(None, description="of one key's waiting requests, the lowest goes first; absent is 0")
    cache_salt: str | None = Field(None, min_length=1, description="cached prompts are shared only within a salt")
    on_budget: Literal["cut", "close"] | None = Field(
        None, description="`close` ends a constrained output legally within the budget"
    )


class Labels(Model):
    """Labels of OpenAI's that change nothing here, and a tier that there is only one of."""

    metadata: dict[str, str] | None = Field(None, description=_LABEL)
    safety_identifier: str | None = Field(None, description=_LABEL)
    prompt_cache_key: str | None = Field(None, description="every prompt is cached by its tokens; changes nothing")
    service_tier: Annotated[Any, Refuse("there is one tier of service", unless=("auto", "default"))] = Field(
        None, description="`auto` and `default`"
    )
    store: Annotated[Any, Refuse("nothing is stored", unless=(False,))] = Field(None, description="only false")
