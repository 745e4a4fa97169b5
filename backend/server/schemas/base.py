"""What every request's model shares: strictness, null as absent, fields that are known and refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema


class Model(BaseModel):
    """Unknown names are refused, values are not converted, and a null is as good as nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


@dataclass(frozen=True)
class Refuse:
    """Marks a field that the protocol knows and this server does not honour; `unless` are values that ask nothing."""

    reason: str
    unless: tuple[Any, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [None, *self.unless]}

    def _check(self, value: Any) -> Any:
        if not any(type(value) is type(one) and value == one for one in self.unless):
            raise ValueError(self.reason)
        return value


def _kind_of_texts(value: Any) -> str | None:
    return "one" if isinstance(value, str) else "several" if isinstance(value, list) else None


NonEmpty = Annotated[str, StringConstraints(min_length=1)]

Texts = Annotated[
    Annotated[NonEmpty, Tag("one")] | Annotated[list[NonEmpty], Field(max_length=64), Tag("several")],
    Discriminator(
        _kind_of_texts,
        custom_error_type="text_or_texts",
        custom_error_message="must be a text or a list of texts, none of them empty",
    ),
]


class StreamOptions(Model):
    """How a stream is written."""

    include_usage: bool | None = Field(None, description="one more chunk at the end, with the usage and no choice")
    include_obfuscation: Annotated[Any, Refuse("chunks are not padded: leave it out or false", unless=(False,))] = (
        Field(None, description="only false")
    )
