"""`POST /v1/responses`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from forktree.backend.server.schemas.base import Model, Refuse
from forktree.backend.server.schemas.chat import KIND_OF_CHOICE, JsonObjectFormat, Name, TextFormat, ToolMode
from forktree.backend.server.schemas.sampling import Labels

Status = Literal["in_progress", "completed", "incomplete"]
_NOTHING_STORED = "nothing is stored here: send the whole conversation as input"


class InputText(Model):
    type: Literal["input_text"]
    text: str


class OutputText(Model):
    """What the model said before, as it was given out."""

    type: Literal["output_text"]
    text: str
    annotations: Annotated[Any, Refuse("there is no place for annotations in a prompt", unless=([],))] = None
    logprobs: list[Any] | None = None


class SaidRefusal(Model):
    type: Literal["refusal"]
    refusal: str


class UnreadPart(Model):
    """A part that is no text."""

    model_config = ConfigDict(extra="ignore")
    type: Annotated[
        Literal["input_image", "input_file", "input_audio"], AfterValidator(lambda kind: _refuse(f"{kind} part"))
    ]


def _refuse(what: str) -> Any:
    raise ValueError(f"this model reads text only: leave the {what} out")


Part = Annotated[InputText | OutputText | SaidRefusal | UnreadPart, Field(discriminator="type")]


def _kind(value: Any) -> str | None:
    return "whole" if isinstance(value, str) else "list" if isinstance(value, list) else None


Content = Annotated[
    Annotated[str, Tag("whole")] | Annotated[list[Part], Field(min_length=1), Tag("list")],
    Discriminator(_kind, custom_error_type="content", custom_error_message="must be a text or a list of parts"),
]


class MessageItem(Model):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class CallItem(Model):
    type: Literal["function_call"]
    call_id: str
    name: Name
    arguments: str
    id: str | None = None
    status: Status | None = None


class CallOutputItem(Model):
    type: Literal["function_call_output"]
    call_id: str
    output: Content
    id: str | None = None
    status: Status | None = None


class ReasonedText(Model):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Model):
    """What the model thought before; its template decides whether it is told again."""

    type: Literal["reasoning"]
    summary: list[Any] | None = None
    content: list[ReasonedText] | None = None
    id: str | None = None
    status: Status | None = None
    encrypted_content: Annotated[Any, Refuse("reasoning is not encrypted here")] = None


def _kind_of_item(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    kind = value.get("type", "message")
    return kind if kind in ("message", "function_call", "function_call_output", "reasoning") else None


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _kind_of_item,
        custom_error_type="item",
        custom_error_message="must be an item of type message, function_call, function_call_output or reasoning",
    ),
]

Input = Annotated[
    Annotated[str, Tag("whole")] | Annotated[list[Item], Field(min_length=1), Tag("list")],
    Discriminator(_kind, custom_error_type="input", custom_error_message="must be a text or a list of items"),
]


class SchemaFormat(Model):
    type: Literal["json_schema"]
    name: Name
    schema_: dict[str, Any] | bool = Field(alias="schema")
    description: str | None = None
    strict: bool | None = Field(None, description="the output always satisfies the schema")


class TextConfig(Model):
    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None = Field(
        None, description="enforced, strict or not"
    )
    verbosity: Annotated[Any, Refuse("the model has no verbosity", unless=("medium",))] = Field(
        None, description="only `medium`"
    )


class OwnTool(Model):
    type: Annotated[str, AfterValidator(lambda kind: kind if kind == "function" else _no_tool(kind))]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(None, description="arguments always satisfy `parameters`")


def _no_tool(kind: str) -> Any:
    raise ValueError(f"this server has no tools of its own, such as {kind!r}: only functions")


class ChosenFunction(Model):
    type: Literal["function"]
    name: str


class AllowedFunctions(Model):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[ChosenFunction] = Field(min_length=1)


Choice = Annotated[
    ToolMode | Annotated[ChosenFunction, Tag("named")] | Annotated[AllowedFunctions, Tag("allowed")], KIND_OF_CHOICE
]


class ReasoningConfig(Model):
    effort: Annotated[Any, Refuse("reasoning has no effort here: set max_tokens", unless=("none",))] = Field(
        None, description="only `none`"
    )
    summary: Annotated[Any, Refuse("reasoning is given out whole")] = None
    max_tokens: int | None = Field(None, ge=1, description="think first, so many tokens at most")


class ResponsesRequest(Labels):
    """A conversation in, output items out. Nothing is stored."""

    model: str = Field(description="one of the names that `/v1/models` lists")
    input: Input
    instructions: str | None = Field(None, description="the system's message")
    max_output_tokens: int | None = Field(None, ge=1, description="absent is to the end of the context")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; absent is the model's own")
    top_p: float | None = Field(None, ge=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: list[Literal["message.output_text.logprobs"]] | None = None
    text: TextConfig | None = None
    tools: list[OwnTool] | None = Field(None, max_length=128, description="arguments are enforced, strict or not")
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = Field(None, description="absent is true")
    reasoning: ReasoningConfig | None = None
    stream: bool | None = None
    user: str | None = Field(None, description="a label, which changes nothing")
    truncation: Annotated[Any, Refuse("what does not fit is refused", unless=("disabled",))] = Field(
        None, description="only `disabled`"
    )
    background: Annotated[Any, Refuse("answers are waited for", unless=(False,))] = Field(
        None, description="only false"
    )
    stream_options: Annotated[Any, Refuse("events are not padded", unless=({"include_obfuscation": False},))] = None
    previous_response_id: Annotated[Any, Refuse(_NOTHING_STORED)] = None
    conversation: Annotated[Any, Refuse(_NOTHING_STORED)] = None
    prompt: Annotated[Any, Refuse("there are no stored prompts")] = None
    max_tool_calls: Annotated[Any, Refuse("it limits tools of a server, and this one has none")] = None
    context_management: Annotated[Any, Refuse("what does not fit is refused", unless=([],))] = None
    moderation: Annotated[Any, Refuse("this server moderates nothing")] = None
    access_programs: Annotated[Any, Refuse("there are no access programs here")] = None
    background_options: Annotated[Any, Refuse("answers are waited for")] = None
    image: Annotated[Any, Refuse("this model reads and writes text only")] = None
    prompt_cache_retention: Annotated[Any, Refuse("the cache keeps what fits")] = None
    prompt_cache_options: Annotated[Any, Refuse("the cache keeps what fits")] = None

    @model_validator(mode="after")
    def _check_logprobs(self) -> ResponsesRequest:
        if self.top_logprobs and not self.include:
            raise ValueError('top_logprobs goes with include: ["message.output_text.logprobs"]')
        return self
