"""`POST /v1/messages`, in Anthropic's form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from forktree.backend.server.schemas.base import Model, NonEmpty, Refuse
from forktree.backend.server.schemas.chat import Name

_NO_TOOLS_OF_ITS_OWN = "this server has no tools of its own: only tools with an input_schema"
_CACHED = "every prompt is cached by its tokens; changes nothing"


class CacheControl(Model):
    """A hint that changes nothing: every prompt is cached by its tokens."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Model):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = Field(None, description=_CACHED)
    citations: Annotated[Any, Refuse("there is no place for citations in a prompt", unless=([],))] = None


class ThinkingBlock(Model):
    """What the model thought before; its template decides whether it is told again."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(Model):
    type: Literal["tool_use"]
    id: str
    name: Name
    input: dict[str, Any]
    cache_control: CacheControl | None = Field(None, description=_CACHED)
    caller: Annotated[Any, Refuse("calls are made directly here", unless=({"type": "direct"},))] = None


def _refuse(kind: str) -> Any:
    raise ValueError(f"this model reads text only: leave the {kind} block out")


class UnreadBlock(Model):
    """A block that is no text."""

    model_config = ConfigDict(extra="ignore")
    type: Annotated[
        Literal["image", "document", "search_result", "redacted_thinking", "server_tool_use", "container_upload"],
        AfterValidator(_refuse),
    ]


ResultBlock = Annotated[TextBlock | UnreadBlock, Field(discriminator="type")]


def _kind(value: Any) -> str | None:
    return "whole" if isinstance(value, str) else "blocks" if isinstance(value, list) else None


def _content(block: Any, *, least: int = 1) -> Any:
    return Annotated[
        Annotated[str, Tag("whole")] | Annotated[list[block], Field(min_length=least), Tag("blocks")],
        Discriminator(_kind, custom_error_type="content", custom_error_message="must be a text or a list of blocks"),
    ]


class ToolResultBlock(Model):
    type: Literal["tool_result"]
    tool_use_id: str
    content: _content(ResultBlock, least=0) | None = None  # type: ignore[valid-type]
    is_error: bool | None = None
    cache_control: CacheControl | None = Field(None, description=_CACHED)


UserBlock = Annotated[TextBlock | ToolResultBlock | UnreadBlock, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | UnreadBlock, Field(discriminator="type")]


class UserTurn(Model):
    role: Literal["user"]
    content: _content(UserBlock)  # type: ignore[valid-type]


class AssistantTurn(Model):
    role: Literal["assistant"]
    content: _content(AssistantBlock)  # type: ignore[valid-type]


Turn = Annotated[UserTurn | AssistantTurn, Field(discriminator="role")]


class Tool(Model):
    type: Annotated[Any, Refuse(_NO_TOOLS_OF_ITS_OWN, unless=("custom",))] = Field(None, description="only `custom`")
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = Field(None, description="arguments always satisfy `input_schema`")
    cache_control: CacheControl | None = Field(None, description=_CACHED)
    input_examples: Annotated[Any, Refuse("a template has no place for examples: describe them", unless=([],))] = None
    defer_loading: Annotated[Any, Refuse("every tool is told at once", unless=(False,))] = None
    eager_input_streaming: bool | None = Field(None, description="arguments always stream as they are made")
    allowed_callers: Annotated[Any, Refuse("calls are made directly here", unless=(["direct"],))] = None


class AutoChoice(Model):
    type: Literal["auto", "any"]
    disable_parallel_tool_use: bool | None = None


class ToolChosen(Model):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(Model):
    type: Literal["none"]


Choice = Annotated[AutoChoice | ToolChosen | NoChoice, Field(discriminator="type")]


class ThinkingOn(Model):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1)
    display: Annotated[Any, Refuse("thinking is shown whole", unless=("full",))] = None


class ThinkingOff(Model):
    type: Literal["disabled"]


Thinking = Annotated[ThinkingOn | ThinkingOff, Field(discriminator="type")]


class OutputFormat(Model):
    type: Literal["json_schema"]
    schema_: dict[str, Any] | bool = Field(alias="schema")


class OutputConfig(Model):
    format: OutputFormat | None = Field(None, description="enforced")
    effort: Annotated[Any, Refuse("there is no effort here")] = None


class Metadata(Model):
    user_id: str | None = Field(None, description="a label, which changes nothing")


class CountRequest(Model):
    """What a conversation takes of the context."""

    model: str = Field(description="one of the names that `/v1/models` lists")
    messages: list[Turn] = Field(min_length=1)
    system: _content(TextBlock) | None = None  # type: ignore[valid-type]
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: Choice | None = None
    thinking: Thinking | None = Field(None, description="where the model's template has markup for reasoning")
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = Field(None, description=_CACHED)


class MessagesRequest(CountRequest):
    """A conversation in, the assistant's next message out."""

    max_tokens: int = Field(ge=1)
    stop_sequences: list[NonEmpty] | None = Field(None, max_length=64)
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0)
    metadata: Metadata | None = None
    service_tier: Annotated[Any, Refuse("there is one tier of service", unless=("auto", "standard_only"))] = Field(
        None, description="`auto` and `standard_only`"
    )
    container: Annotated[Any, Refuse("this server runs no code")] = None
    mcp_servers: Annotated[Any, Refuse("this server asks no other servers", unless=([],))] = None
    inference_geo: Annotated[Any, Refuse("there is one place")] = None
    speed: Annotated[Any, Refuse("there is one speed", unless=("standard",))] = None
