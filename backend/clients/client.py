"""One generation from request to completion, over any wire: check, fit, ask, read, check again.

    conversation_of(branch)      turns, or plain text
    means_of(constraint)         what is asked for, by which mechanism
    fitted(...)                  cut to the context, where that was asked for
    Transport.exchange(...)       retries until the first byte
    Gathered                     pieces become deltas and a completion
    check(...)                   a constrained answer that is not legal is asked for again, so often and no oftener

Free text streams. A constrained answer comes as one delta, when it was found legal: what was shown cannot be taken
back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forktree.backend.clients.account import Account
from forktree.backend.clients.asks import means_of
from forktree.backend.clients.checks import can_go_on, check, check_constraint
from forktree.backend.clients.counting import Counter, estimate
from forktree.backend.clients.cutting import StopCutter
from forktree.backend.clients.dialects import Dialect
from forktree.backend.clients.faults import fault_of_event
from forktree.backend.clients.gathered import BlankTaker, Gathered, added
from forktree.backend.clients.http import Transport
from forktree.backend.clients.truncation import Truncate, count_tokens, fitted
from forktree.backend.clients.turns import (
    Begun,
    Conversation,
    Loose,
    Part,
    Turn,
    conversation_of,
    text_turn,
    told_begun,
)
from forktree.backend.clients.wire import Piece, Question, Wire
from forktree.lang.constraints import ConstraintSpec
from forktree.lang.errors import BackendError, ContextLengthError, UnsupportedError
from forktree.runtime import protocol
from forktree.runtime.protocol import Usage

_OPEN_BUDGET = 256
"""Tokens that a generation without `max_tokens` is counted with until it has ended."""

_MAX_FITS = 3
"""How often a prompt is cut and sent again, when only the service knows how long it may be."""

_MARGIN = 0.97
"""Of a limit that was found by an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a backend speaks to its service.

    Attributes:
        loose: see `turns.conversation_of`.
        begun: a turn that has begun is refused where the service cannot go on with it, or told to it in words.
        context_limit: most tokens of a prompt and its answer; None is what the service says when it is too much.
        reasks: how often an answer that breaks its constraint is asked for again.
        extra: further fields of every body.
    """

    model: str
    dialect: Dialect
    counter: Counter
    loose: Loose = "refuse"
    begun: Begun = "refuse"
    truncate: Truncate = "error"
    context_limit: int | None = None
    reasks: int = 2
    extra: Mapping[str, Any] = field(default_factory=dict)


_DRAIN_S = 1.0

WireOf = Callable[[Conversation], Wire]


class Client:
    """Answers requests over one transport."""

    def __init__(self, settings: Settings, transport: Transport, account: Account, wire_of: WireOf) -> None:
        self._settings = settings
        self._transport = transport
        self._account = account
        self._wire_of = wire_of

    def told(self, branch: protocol.Branch | None) -> Conversation:
        """The branch as this service is told it."""
        return conversation_of(branch, self._settings.loose)

    def told_as_taken(self, branch: protocol.Branch | None) -> tuple[Conversation, str]:
        """The same as far as the service takes it, and the blanks that the answer may begin with again."""
        told, dialect = self.told(branch), self._settings.dialect
        begun = told.begun.rstrip()
        blanks = told.begun[len(begun) :]
        if told.begun and dialect.continues is None and self._settings.begun == "tell":
            return (told_begun(told) if begun else replace(told, begun="")), blanks
        return (replace(told, begun=begun), blanks) if dialect.trims_prefix else (told, "")

    async def stream(self, request: protocol.GenerateRequest) -> AsyncIterator[protocol.Delta | protocol.Completion]:
        """See `protocol.Backend.stream`."""
        question, blanks = self._question(request)
        if request.constraint is None:
            cutter = StopCutter(request.sampling)
            async with contextlib.aclosing(self._stream_free(question, BlankTaker(blanks), cutter)) as events:
                async for event in events:
                    yield event
            return
        completion = await self._ask_checked(question, request.constraint)
        if completion.segment.text:
            yield protocol.Delta(completion.segment.text)
        yield completion

    def _question(self, request: protocol.GenerateRequest) -> tuple[Question, str]:
        """The question, and the blanks that the answer may begin with again."""
        dialect = self._settings.dialect
        closes = request.on_budget == "close"
        if closes and not dialect.closes:
            raise UnsupportedError(f'{dialect.service} cannot end an output in time; drop on_budget="close"')
        told, blanks = self.told_as_taken(request.branch)
        means = None
        if request.constraint is not None:
            means = means_of(request.constraint, dialect, has_begun=bool(told.begun))
            told = _with_words(told, means.words)
        sampling = replace(request.sampling, n=None)
        if request.constraint is None and "stop_regex" not in dialect.sampling:
            sampling = replace(sampling, stop_regex=None)  # found on this side
        if sampling.seed is not None and request.sample_index:
            sampling = replace(sampling, seed=sampling.seed + request.sample_index)
        return Question(self._settings.model, told, sampling, means, request.constraint is None, closes), blanks

    async def _stream_free(
        self, question: Question, blanks: BlankTaker, cutter: StopCutter
    ) -> AsyncGenerator[protocol.Delta | protocol.Completion, None]:
        gathered, text, is_left = Gathered(), "", False
        async with contextlib.aclosing(self.pieces(question, gathered)) as pieces:
            async for piece in pieces:
                if cutter.match is not None and piece.text:
                    is_left = True  # the service does not know this stop, and would go on
                    break
                new = cutter.take(blanks.take(piece.text))
                if new:
                    text += new
                    yield protocol.Delta(new)
        if rest := cutter.take(blanks.end()) + cutter.end():
            text += rest
            yield protocol.Delta(rest)
        if is_left:
            gathered.leave(self._usage_of_left(question, gathered))
            self._account.note_answer(gathered.usage)
        if cutter.match is not None:
            gathered.stop_at(cutter.match.text)
        yield gathered.completion(text, gathered.usage)

    def _usage_of_left(self, question: Question, gathered: Gathered) -> Usage:
        """The counts of an answer that was left before the service told them: by this side's count."""
        count, told = self._settings.counter.count, gathered.usage
        return Usage(
            told.prompt_tokens or count_tokens(question.told, count),
            told.cached_tokens,
            max(told.completion_tokens, count(gathered.text)),
        )

    async def _ask_checked(self, question: Question, spec: ConstraintSpec) -> protocol.Completion:
        """The answer, once it is legal, or was cut on its way there.

        Raises:
            ConstraintError: no text can be legal, or what is legal cannot be told; nothing is asked then.
            BackendError: the service goes on answering what is not legal.
        """
        means, spent, problems = question.means, Usage(), []
        assert means is not None
        await asyncio.to_thread(check_constraint, spec)
        for attempt in range(self._settings.reasks + 1):
            gathered = Gathered()
            async with contextlib.aclosing(self.pieces(question, gathered)) as pieces:
                async for _ in pieces:
                    pass
            spent = added(spent, gathered.usage)
            text = gathered.value_text(means)
            checked = await asyncio.to_thread(check, text, spec, means)
            if not checked.problem:
                return gathered.completion(checked.text, spent)
            if gathered.finish_reason == "length" and await asyncio.to_thread(can_go_on, text, spec, means):
                return gathered.completion(checked.text, spent, is_complete=False)
            problems.append(checked.problem)
            if attempt < self._settings.reasks:
                self._account.note_reasked()
                question = _asked_again(question, text, checked.problem)
        raise BackendError(
            f"{self._settings.dialect.service} answered {len(problems)} times what the constraint forbids; the last "
            f"time {problems[-1]}; it wrote {text[:120]!r}{_hint(self._settings.dialect)}"
        )

    async def pieces(self, question: Question, gathered: Gathered) -> AsyncGenerator[Piece, None]:
        """The answer's pieces, each added to `gathered`; at the end it is whole."""
        told, limit = question.told, self._prompt_limit(question)
        for attempt in range(_MAX_FITS + 1):
            question = replace(question, told=self._fitted(told, limit))
            try:
                async with contextlib.aclosing(self._pieces_of(question, gathered)) as pieces:
                    async for piece in pieces:
                        yield piece
                break
            except ContextLengthError as error:
                if self._settings.truncate == "error" or attempt == _MAX_FITS:
                    raise
                limit = self._learned_limit(question, error)
        gathered.check_end(str(self._transport.place))
        self._account.note_answer(gathered.usage)

    async def _pieces_of(self, question: Question, gathered: Gathered) -> AsyncGenerator[Piece, None]:
        wire = self._wire_of(question.told)
        body = {**wire.body(question), **self._settings.extra}
        num_tokens = count_tokens(question.told, estimate) + (question.sampling.max_tokens or _OPEN_BUDGET)

        def used() -> int | None:
            usage = gathered.usage
            return usage.prompt_tokens + usage.completion_tokens or None

        async with self._transport.exchange(wire.path, body, num_tokens, used) as answer:
            if not answer.is_stream:
                data = await answer.data()
                for piece in wire.pieces_of_reply(self._checked(data)):
                    gathered.add(piece)
                    yield piece
                return
            async with contextlib.aclosing(answer.events()) as events:
                async for event in events:
                    if event.data == "[DONE]":
                        await _drain(events)
                        return
                    for piece in wire.pieces_of_event(event, self._checked(self._transport.parsed(event.data))):
                        gathered.add(piece)
                        yield piece

    def _checked(self, data: Any) -> Any:
        """The data. Raises BackendError: it is an error, or nothing that an answer is made of."""
        if not isinstance(data, dict):
            raise self._transport.unreadable(data)
        if data.get("error"):
            raise fault_of_event(self._transport.place, data["error"]).error
        return data

    def _prompt_limit(self, question: Question) -> int | None:
        limit = self._settings.context_limit
        return None if limit is None else limit - (question.sampling.max_tokens or 1)

    def _fitted(self, told: Conversation, limit: int | None) -> Conversation:
        if limit is None:
            return told
        cut = fitted(told, limit, self._settings.truncate, self._settings.counter.count)
        if cut is not told:
            self._account.note_truncated()
        return cut

    def _learned_limit(self, question: Question, error: ContextLengthError) -> int:
        """Tokens, as this side counts them, that the prompt may have, by what the service said of its own count."""
        counted = count_tokens(question.told, self._settings.counter.count)
        budget = question.sampling.max_tokens or 1
        if not error.limit:
            return counted * 3 // 4
        real = max(1, error.tokens or counted)
        return min(counted - 1, int((error.limit - budget) * counted / real * _MARGIN))


async def _drain(events: AsyncIterator[Any]) -> None:
    """Read to the end of the body, so that its connection can be used again; but do not wait long for it."""
    with contextlib.suppress(TimeoutError, BackendError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in events:
                pass


def _hint(dialect: Dialect) -> str:
    """What helps where a server is spoken to in the way that all understand."""
    if dialect.name != "compatible":
        return ""
    return '. If the server can enforce a constraint, name its dialect: "forktree", "vllm", "sglang", "llama.cpp"'


def _with_words(told: Conversation, words: str) -> Conversation:
    """The conversation in which the system says this too; plain text gets it from its wire."""
    if not words or told.plain is not None:
        return told
    if told.turns and told.turns[0].role == "system":
        first, *others = told.turns
        return replace(told, turns=(Turn("system", (*first.parts, Part(f"\n\n{words}"))), *others))
    return replace(told, turns=(text_turn("system", words), *told.turns))


def _asked_again(question: Question, text: str, problem: str) -> Question:
    """The question with what was wrong with its answer."""
    told = question.told
    if told.plain is not None:
        seed = question.sampling.seed
        return question if seed is None else replace(question, sampling=replace(question.sampling, seed=seed + 1))
    said = told.begun + text
    complaint = text_turn("user", f"That answer cannot be used: {problem}. Answer again.")
    turns = (text_turn("assistant", said), complaint) if said.strip() else (complaint,)
    return replace(question, told=told.with_turns(*turns))
