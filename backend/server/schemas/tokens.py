"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from pydantic import Field, model_validator

from forktree.backend.server.schemas.base import Model
from forktree.backend.server.schemas.chat import Message, OfferedTool


class TokenizeRequest(Model):
    """A text or a conversation."""

    model: str | None = Field(None, description="absent is the one that is served")
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    tools: list[OfferedTool] | None = Field(None, description="only with `messages`")
    add_special_tokens: bool | None = Field(None, description="the tokenizer's own BOS before `prompt`; absent is true")
    add_generation_prompt: bool | None = Field(None, description="only with `messages`; absent is true")

    @model_validator(mode="after")
    def _is_one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.messages is None and (self.tools is not None or self.add_generation_prompt is not None):
            raise ValueError("tools and add_generation_prompt go with messages")
        if self.messages is not None and self.add_special_tokens is not None:
            raise ValueError("add_special_tokens goes with prompt: the chat template says what messages begin with")
        return self


class DetokenizeRequest(Model):
    """Token ids."""

    model: str | None = Field(None, description="absent is the one that is served")
    tokens: list[int]
