"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, StringConstraints, Tag, model_validator

from forktree.backend.server.schemas.base import Model, Refuse
from forktree.backend.server.schemas.sampling import Labels, SamplingFields

Name = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]


# --- messages ----------------------------------------------------------------------------------------------


class TextPart(Model):
    type: Literal["text"]
    text: str


class RefusalPart(Model):
    type: Literal["refusal"]
    refusal: str


class UnreadPart(Model):
    """A part that is no text."""

    model_config = ConfigDict(extra="ignore")
    type: Annotated[
        Literal["image_url", "input_audio", "file"],
        AfterValidator(lambda kind: _refuse(f"this model reads text only: leave the {kind} part out")),
    ]


def _refuse(reason: str) -> Any:
    raise ValueError(reason)


def _kind_of_part(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    known = {"text": "a text", "refusal": "a refusal", "image_url": "unread", "input_audio": "unread", "file": "unread"}
    return known.get(kind) if isinstance(kind, str) else None


Part = Annotated[
    Annotated[TextPart, Tag("a text")]
    | Annotated[RefusalPart, Tag("a refusal")]
    | Annotated[UnreadPart, Tag("unread")],
    Discriminator(
        _kind_of_part,
        custom_error_type="part",
        custom_error_message='must be an object with the type "text" or "refusal"',
    ),
]


def _kind_of_content(value: Any) -> str | None:
    return "whole" if isinstance(value, str) else "parts" if isinstance(value, list) else None


Content = Annotated[
    Annotated[str, Tag("whole")] | Annotated[list[Part], Field(min_length=1), Tag("parts")],
    Discriminator(
        _kind_of_content, custom_error_type="content", custom_error_message="must be a text or a list of parts"
    ),
]


class InstructionMessage(Model):
    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Model):
    role: Literal["user"]
    content: Content
    name: str | None = None


class CalledFunction(Model):
    name: Name
    arguments: str


class MadeCall(Model):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Model):
    role: Literal["assistant"]
    content: Content | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[MadeCall] | None = None
    reasoning_content: str | None = None
    audio: Annotated[Any, Refuse("this model makes no audio")] = None
    function_call: Annotated[Any, Refuse("function_call is deprecated: write tool_calls")] = None
    annotations: Annotated[Any, Refuse("there is no place for annotations in a prompt", unless=([],))] = None

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and self.refusal is None and not self.tool_calls:
            raise ValueError("an assistant's message needs content, or tool_calls")
        return self


class ToolMessage(Model):
    role: Literal["tool"]
    content: Content
    tool_call_id: str


Message = Annotated[InstructionMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


# --- tools -------------------------------------------------------------------------------------------------


class FunctionTool(Model):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(None, description="arguments always satisfy `parameters`")


class OfferedTool(Model):
    type: Literal["function"]
    function: FunctionTool


class NamedFunction(Model):
    name: str


class NamedTool(Model):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Model):
    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


class AllowedToolsChoice(Model):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind_of_choice(value: Any) -> str | None:
    if isinstance(value, dict):
        return {"function": "named", "allowed_tools": "allowed"}.get(str(value.get("type")))
    return "mode" if isinstance(value, str) else None


ToolMode = Annotated[Literal["none", "auto", "required"], Tag("mode")]
KIND_OF_CHOICE = Discriminator(
    _kind_of_choice,
    custom_error_type="tool_choice",
    custom_error_message='must be "none", "auto", "required", or an object of type "function" or "allowed_tools"',
)
"""Which of `ToolMode`, "named" and "allowed" a choice is."""

ToolChoice = Annotated[
    ToolMode | Annotated[NamedTool, Tag("named")] | Annotated[AllowedToolsChoice, Tag("allowed")], KIND_OF_CHOICE
]


# --- formats -----------------------------------------------------------------------------------------------


class TextFormat(Model):
    type: Literal["text"]


class JsonObjectFormat(Model):
    type: Literal["json_object"]


class NamedSchema(Model):
    name: Name
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = Field(None, description="the output always satisfies the schema")


class JsonSchemaFormat(Model):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class Reasoning(Model):
    """Reasoning before the answer, where the model's template has markup for it."""

    max_tokens: int | None = Field(None, ge=1)


class ChatRequest(SamplingFields, Labels):
    """Messages in, the assistant's next one out."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, description="absent is to the end of the context")
    max_completion_tokens: int | None = Field(None, ge=1, description="the same; with both, they must be equal")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20, description="only with `logprobs`")
    response_format: ResponseFormat | None = Field(None, description="enforced, strict or not")
    tools: list[OfferedTool] | None = Field(None, max_length=128, description="arguments are enforced, strict or not")
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(None, description="absent is true")
    reasoning: Reasoning | None = Field(None, description="think first; the thought is `reasoning_content`")
    modalities: Annotated[Any, Refuse("this model writes text only", unless=(["text"],))] = Field(
        None, description='only `["text"]`'
    )
    reasoning_effort: Annotated[Any, Refuse("reasoning has no effort here: use reasoning", unless=("none",))] = Field(
        None, description="only `none`; see `reasoning`"
    )
    verbosity: Annotated[Any, Refuse("the model has no verbosity", unless=("medium",))] = Field(
        None, description="only `medium`"
    )
    prediction: Annotated[Any, Refuse("there is no need for one: forktree speculates by itself")] = None
    audio: Annotated[Any, Refuse("this model makes no audio")] = None
    web_search_options: Annotated[Any, Refuse("this server does not search the web")] = None
    functions: Annotated[Any, Refuse("functions is deprecated: write tools")] = None
    function_call: Annotated[Any, Refuse("function_call is deprecated: write tool_choice")] = None
    moderation: Annotated[Any, Refuse("this server moderates nothing")] = None
    prompt_cache_retention: Annotated[Any, Refuse("the cache keeps what fits")] = None
    prompt_cache_options: Annotated[Any, Refuse("the cache keeps what fits")] = None
