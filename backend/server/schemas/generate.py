"""`POST /generate`, in SGLang's native form."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from forktree.backend.server.schemas.base import Model, NonEmpty, Refuse


class Parameters(Model):
    """How tokens are drawn, by SGLang's names."""

    max_new_tokens: int | None = Field(None, ge=0, description="absent is 128; 0 only scores the prompt")
    min_new_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0, le=100, description="0 is greedy; absent is 1")
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    stop: NonEmpty | list[NonEmpty] | None = None
    stop_token_ids: list[int] | None = Field(None, max_length=64)
    stop_regex: NonEmpty | None = None
    ignore_eos: bool | None = None
    n: int | None = Field(None, ge=1)
    sampling_seed: int | None = None
    json_schema: str | None = Field(None, description="a schema as text; the whole output satisfies it")
    regex: str | None = Field(None, description="the whole output matches")
    ebnf: str | None = Field(None, description="a grammar in GBNF or lark's language; the whole output is its sentence")
    skip_special_tokens: Annotated[Any, Refuse("special tokens are no text: leave it out", unless=(True,))] = None
    spaces_between_special_tokens: Annotated[Any, Refuse("special tokens are no text", unless=(True, False))] = None
    no_stop_trim: Annotated[Any, Refuse("a stop is never part of the text", unless=(False,))] = None
    structural_tag: Annotated[Any, Refuse("use /v1/programs, with forktree's own tags")] = None
    custom_params: Annotated[Any, Refuse("there are no custom processors")] = None

    @model_validator(mode="after")
    def _has_one_constraint(self) -> Parameters:
        named = [name for name in ("json_schema", "regex", "ebnf") if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"an output obeys one constraint, not {' and '.join(named)}")
        return self


class GenerateRequest(Model):
    """One prompt, or a list of them."""

    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: Parameters = Field(default_factory=lambda: Parameters())
    return_logprob: bool | None = None
    logprob_start_len: int | None = Field(None, ge=-1, description="first token of the prompt that is scored; -1: none")
    top_logprobs_num: int | None = Field(None, ge=0, le=20)
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None
    rid: str | None = Field(None, description="a name for the request, given back as `meta_info.id`")
    image_data: Annotated[Any, Refuse("this model reads text only")] = None
    lora_path: Annotated[Any, Refuse("there are no adapters here")] = None
    return_hidden_states: Annotated[Any, Refuse("hidden states are not given out", unless=(False,))] = None
    session_params: Annotated[Any, Refuse("every prompt is cached by its tokens: no session is needed")] = None

    @model_validator(mode="after")
    def _has_one_prompt(self) -> GenerateRequest:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("give either text or input_ids")
        if self.text == [] or self.input_ids == []:
            raise ValueError("there must be a prompt")
        return self
