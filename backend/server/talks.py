"""A conversation that asks for the assistant's next message, in whichever protocol it came: taken by the engine.

Other protocols write their requests as a `ChatRequest` and read what comes back in their own way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from forktree.backend.grammar.markup import Spec
from forktree.backend.local_generation import Ask
from forktree.backend.server import asked
from forktree.backend.server.choices import opened
from forktree.backend.server.conversation import conversation_ids
from forktree.backend.server.errors import ApiError, api_error
from forktree.backend.server.flights import Watched
from forktree.backend.server.schemas.chat import ChatRequest, OfferedTool
from forktree.backend.server.served import Served
from forktree.backend.server.tool_calls import CallPlan
from forktree.lang.errors import ModelError


@dataclass(frozen=True, slots=True)
class Talk:
    """One request on its way; whoever has it closes its generations.

    Attributes:
        generations: one a choice.
        calls: the calls that each may make; None is none.
        num_prompt_tokens: of the conversation.
    """

    body: ChatRequest
    generations: Sequence[Watched]
    calls: CallPlan | None
    num_prompt_tokens: int


async def begin(served: Served, body: ChatRequest) -> Talk:
    """Have the engine take it. Raises ApiError: it cannot run."""
    max_tokens = _check(body)
    asks, calls = await asyncio.to_thread(_asks, served, body, max_tokens)
    generations = await opened(
        served, asks, lambda index: "messages", priority=body.priority or 0, salt=body.cache_salt
    )
    return Talk(body, generations, calls, num_prompt_tokens=len(asks[0].ids))


def prompt_ids(served: Served, body: ChatRequest) -> tuple[int, ...]:
    """What the model is told. Raises ApiError: its template refuses the conversation."""
    return _ids(served, body, asked.offered_tools(body))


def _check(body: ChatRequest) -> int | None:
    """The budget. Raises ApiError: fields that contradict each other."""
    asked.check_stream(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs goes with logprobs: true", param="top_logprobs")
    limits = {limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None}
    if len(limits) > 1:
        raise ApiError(400, "max_tokens and max_completion_tokens differ: send one", param="max_tokens")
    return limits.pop() if limits else None


def _asks(served: Served, body: ChatRequest, max_tokens: int | None) -> tuple[list[Ask], CallPlan | None]:
    """What the engine is to compute; takes a while, so not on the loop."""
    count = asked.num_samples(body, 1, served.settings.max_choices)
    tools = asked.offered_tools(body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sampling = asked.sampling_of(body, max_tokens=max_tokens, logprobs=logprobs)
    spec: Spec | None = asked.constraint_of(body)
    calls = asked.calls_of(body, tools, served.tokenizer)
    if calls is not None and spec is not None and calls.is_required:
        raise ApiError(400, "an output that has to be a call has no other form", param="tool_choice")
    constraint = asked.with_reasoning(body, spec if calls is None else calls.spec(spec), served.tokenizer)
    ids = _ids(served, body, tools)
    on_budget = body.on_budget or "cut"
    asks = [
        Ask(ids=ids, sampling=sampling, constraint=constraint, sample_index=index, on_budget=on_budget)
        for index in range(count)
    ]
    return asks, calls


def _ids(served: Served, body: ChatRequest, tools: Sequence[OfferedTool]) -> tuple[int, ...]:
    try:
        return conversation_ids(body.messages, tools, served.tokenizer, served.hidden)
    except ModelError as error:  # it has no template
        raise ApiError(400, str(error), param="messages", code="unsupported") from None
    except ApiError:
        raise
    except Exception as error:
        raise api_error(error, param="messages") from error
