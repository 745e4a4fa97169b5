"""The raw door for those who wait on an event loop: requests that the engine took, and what it makes of each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from forktree.backend.engine.loop import Engine
from forktree.backend.engine.messages import EngineRequest, Event, Failed, Finished, TokenInfo
from forktree.backend.local_answers import completion_of, logprobs_of
from forktree.backend.local_forms import AnswerText
from forktree.backend.local_requests import Work, closing, engine_request, plan
from forktree.backend.mailbox import Mailbox
from forktree.backend.render import Prompt
from forktree.backend.tokenizer import Place, Tokenizer
from forktree.lang.errors import ForktreeError
from forktree.lang.sampling import Sampling
from forktree.runtime.protocol import Completion, TokenLogprob

Send = Callable[[Mailbox, int, Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One sequence to continue, as ids.

    Attributes:
        ids: the prompt, BOS and all; never empty.
        constraint: a specification, or one that is put together of several (`backend.grammar.markup`).
        sample_index: which of several samples of this prompt this is.
        on_budget: as `GenerateRequest`.
        scores_prompt: also the log-probabilities of the prompt's tokens, but for the first.
        only_prompt: nothing is generated.
    """

    ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    constraint: Any = None
    sample_index: int = 0
    on_budget: Literal["cut", "close"] = "cut"
    scores_prompt: bool = False
    only_prompt: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added: text, reasoning before it, and the tokens that all of the text so far is made of.

    `tokens` come with log-probabilities, if those were asked for, once the last character of each is shown.
    """

    text: str = ""
    reasoning: str = ""
    tokens: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """The end of a generation: all of it, and what its prompt scored ([len(ids) - 1] natural logs)."""

    completion: Completion
    prompt_logprobs: tuple[float, ...] = ()


class AskError(Exception):
    """One of several could not be taken; `index` says which, and the cause says why."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Generation:
    """A request that the engine took. The loop's thread owns it; whoever stops early calls `close`."""

    def __init__(self, engine: Engine, id: int, mailbox: Mailbox, work: Work, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._id: int | None = id  # None: it has ended
        self._mailbox = mailbox
        self._work = work
        self._tokenizer = tokenizer

    def close(self) -> None:
        """Cancel what is still to be done. Harmless when it has ended."""
        if self._id is not None:
            self._engine.cancel(self._id)
            self._id = None

    def stop(self, error: BaseException) -> None:
        """Cancel it, and let whoever reads it know why: `pieces` raises the error. Harmless when it has ended."""
        if self._id is not None:
            self._engine.cancel(self._id)
            self._mailbox.put(0, Failed(error))

    async def pieces(self) -> AsyncIterator[Piece | End]:
        """What comes, then one End. To be called once. Raises what the engine failed with, or `stop` was given."""
        answer = AnswerText(self._work.form)
        shown = _ShownTokens(self._work, self._tokenizer)
        num_reasoned = 0
        while self._id is not None:
            for _, event in await self._mailbox.take():
                if isinstance(event, Failed):
                    self._id = None
                    raise event.error
                text = answer.feed(event.text)
                thought = answer.reasoning if isinstance(event, Finished) else answer.thought
                reasoning, num_reasoned = thought[num_reasoned:], len(thought)
                tokens = shown.take(event.tokens, len(answer.whole), is_last=isinstance(event, Finished))
                if text or reasoning or tokens:
                    yield Piece(text, reasoning, tokens)
                if isinstance(event, Finished):
                    self._id = None
                    yield End(completion_of(event, answer, self._work, self._tokenizer), event.prompt_logprobs)


class _ShownTokens:
    """Tokens of one output, let out when their last character is shown, so that none is taken back by a stop."""

    def __init__(self, work: Work, tokenizer: Tokenizer) -> None:
        self._work = work
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decoder(
            place=Place.INSIDE, num_skip_bytes=len(work.prompt.prefix), shows_special=work.form.shows_special
        )
        self._held: list[TokenInfo] = []
        self._ends: list[int] = []  # of each held token: characters up to the next whole one
        self._num_out = 0

    def take(self, tokens: Sequence[TokenInfo], num_shown: int, *, is_last: bool) -> tuple[TokenLogprob, ...]:
        """Take more tokens, of which `num_shown` characters are shown; the last time all tokens that are kept."""
        if self._work.params.num_logprobs is None:
            return ()
        if is_last:
            out: Sequence[TokenInfo] = tokens[self._num_out :]
        else:
            for info in tokens:
                self._decoder.feed(info.token)
                partial_one = self._decoder.has_partial_character
                self._held.append(info)
                self._ends.append(self._decoder.num_chars + (1 if partial_one else 0))
            count = next((i for i, end in enumerate(self._ends) if end > num_shown), len(self._ends))
            out, self._held, self._ends = self._held[:count], self._held[count:], self._ends[count:]
        self._num_out += len(out)
        return logprobs_of(out, self._work, self._tokenizer)


def plan_asks(asks: Sequence[Ask], tokenizer: Tokenizer, context: int) -> list[Work]:
    """Each ready for the engine. Raises AskError: one cannot be honoured."""
    works = []
    for index, ask in enumerate(asks):
        try:
            work = plan(Prompt(ask.ids), ask.sampling, tokenizer, spec=ask.constraint, sample_index=ask.sample_index)
            works.append(closing(work, tokenizer, context - len(ask.ids)) if ask.on_budget == "close" else work)
        except ForktreeError as error:
            raise AskError(index) from error
    return works


def submit_all(
    asks: Sequence[Ask], works: Sequence[Work], engine: Engine, tokenizer: Tokenizer, send: Send, namespace: str = ""
) -> list[Generation]:
    """Have the engine take all or none.

    The longest goes first: where it fits, so do the others.

    Args:
        namespace: those of different namespaces share no cache.
    Raises:
        AskError: one can never fit.
        EngineError: the engine is closed.
    """
    taken: dict[int, Generation] = {}
    try:
        for index in sorted(range(len(asks)), key=lambda i: -len(asks[i].ids) - (not asks[i].only_prompt)):
            mailbox = Mailbox()
            request = _request(asks[index], works[index], partial(send, mailbox, 0))
            request = replace(request, namespace=namespace)
            try:
                id = engine.submit(request)
            except ForktreeError as error:
                raise AskError(index) from error
            taken[index] = Generation(engine, id, mailbox, works[index], tokenizer)
    except BaseException:
        for generation in taken.values():
            generation.close()
        raise
    return [taken[index] for index in range(len(asks))]


def _request(ask: Ask, work: Work, on_event: Callable[[Event], None]) -> EngineRequest:
    request = engine_request(work, on_event)
    if ask.scores_prompt and len(ask.ids) > 1:
        request = replace(request, score_from=1)
    if ask.only_prompt:
        request = replace(request, max_tokens=0, min_tokens=0, matcher=None)
    return request
