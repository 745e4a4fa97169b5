"""What every way of speaking to a service has in common: a question as a body, and an answer in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from forktree.backend.clients.asks import Means
from forktree.backend.clients.dialects import Dialect
from forktree.backend.clients.sse import ServerEvent
from forktree.backend.clients.turns import Conversation
from forktree.lang.errors import UnsupportedError
from forktree.lang.sampling import Sampling
from forktree.runtime.protocol import TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class Question:
    """One question to a service.

    Attributes:
        means: how a constraint is asked for; None is free text.
        is_stream: the answer comes as events.
        closes: a constrained output is to end within its budget.
    """

    model: str
    told: Conversation
    sampling: Sampling
    means: Means | None = None
    is_stream: bool = True
    closes: bool = False


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of a call of a tool: all that is known of it so far comes in order."""

    index: int
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer.

    Attributes:
        finish: why it ended, as the service says it, once it has.
        stop: the stop string or id that ended it, where the service tells.
        refusal: the service will not answer, and why.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: str | None = None
    stop: str | int | None = None
    usage: Usage | None = None
    refusal: str = ""


def plain_text(question: Question, service: str) -> str:
    """The text to continue, with what is told of the constraint before it.

    Raises:
        UnsupportedError: there is none.
    """
    if not question.told.plain:
        raise UnsupportedError(f"{service} continues text, and there is none yet")
    words = "" if question.means is None else question.means.words
    return f"{words}\n\n{question.told.plain}" if words else question.told.plain


class Wire(Protocol):
    """One route of one dialect."""

    @property
    def path(self) -> str:
        """Where questions go, below the base URL."""
        ...

    def body(self, question: Question) -> dict[str, Any]:
        """The question as the route takes it. Raises UnsupportedError: the route cannot ask it."""
        ...

    def pieces_of_event(self, event: ServerEvent, parsed: Any) -> Iterator[Piece]:
        """What an event of a stream says; `parsed` is its data."""
        ...

    def pieces_of_reply(self, data: Any) -> Iterator[Piece]:
        """What a whole answer says."""
        ...


def sampling_fields(sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    """The parameters that are given, under the dialect's names; the budget and the stops are not among them.

    Raises:
        UnsupportedError: one is given that the dialect does not take, or too many stops.
    """
    fields: dict[str, Any] = {}
    for name in _PARAMETERS:
        value = getattr(sampling, name)
        if value is None:
            continue
        if name not in dialect.sampling:
            raise UnsupportedError(f"{dialect.service} takes no {name}; drop {name}={value!r}, or ask a local engine")
        fields[dialect.sampling[name]] = _PLAIN.get(name, _as_it_is)(value)
    stops = sampling.stop or ()
    if dialect.max_stops is not None and len(stops) > dialect.max_stops:
        raise UnsupportedError(f"{dialect.service} takes at most {dialect.max_stops} stop strings, not {len(stops)}")
    return fields


_PARAMETERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "stop_regex",
)


def _as_it_is(value: Any) -> Any:
    return value


_PLAIN: Mapping[str, Any] = {
    "logit_bias": lambda pairs: {str(token): bias for token, bias in pairs},
    "stop_token_ids": list,
}
