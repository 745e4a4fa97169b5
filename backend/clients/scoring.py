"""`select` on a service: what its log-probabilities can tell of options.

echo          plain text: the service gives the log-probabilities of a prompt's own tokens, so each option is sent
              behind the prompt, and its tokens are those that end behind the prompt's last character
first token   a conversation: one token is asked for with the likeliest in its place; an option has the probability
              of those that it begins with. Options that begin with one token cannot be told apart and are refused;
              one that is not among the likeliest has just less than the least of them
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from forktree.backend.clients.account import Account
from forktree.backend.clients.client import Client, Settings
from forktree.backend.clients.gathered import Gathered
from forktree.backend.clients.http import Transport
from forktree.backend.clients.openai_wire import NO_ID, usage_of
from forktree.backend.clients.turns import Conversation
from forktree.backend.clients.wire import Question
from forktree.lang.errors import ServerError, UnsupportedError
from forktree.lang.sampling import Sampling
from forktree.runtime.protocol import OptionScore, ScoreRequest, ScoreResult, TokenLogprob, Usage

_MAX_TOP_OF_TEXT = 5
_BELOW = 1e-3


class Scorer:
    """Scores options over one transport."""

    def __init__(self, settings: Settings, transport: Transport, account: Account, client: Client) -> None:
        self._settings = settings
        self._transport = transport
        self._account = account
        self._client = client

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """
        Raises:
            UnsupportedError: this service cannot tell these options apart, or not without the prompt.
        """
        told, _ = self._client.told_as_taken(request.branch)
        kind: Literal["echo", "first_token"] | None = self._settings.dialect.scoring
        if told.plain is None and kind == "echo":
            kind = "first_token"
        match kind:
            case "echo":
                return await self._score_by_echo(request, told.plain or "")
            case "first_token":
                return await self._score_by_first_token(request, told)
        raise UnsupportedError(f"{self._settings.dialect.service} tells no log-probabilities; use gen(choices=...)")

    # By echo

    async def _score_by_echo(self, request: ScoreRequest, prompt: str) -> ScoreResult:
        tasks = [self._echoed(prompt + option) if option else None for option in request.options]
        alone = [self._echoed(option) if option and request.unconditional else None for option in request.options]
        answers = await asyncio.gather(*(each for each in (*tasks, *alone) if each is not None))
        taken = iter(answers)
        conditional = [None if task is None else next(taken) for task in tasks]
        unconditional = [None if task is None else next(taken) for task in alone]
        scores = tuple(
            _option_score(given, len(prompt), bare, request.unconditional)
            for given, bare in zip(conditional, unconditional, strict=True)
        )
        prompt_tokens = max((usage.prompt_tokens for _, usage in answers), default=0)
        return ScoreResult(scores, Usage(prompt_tokens))

    async def _echoed(self, text: str) -> tuple[Mapping[str, Any], Usage]:
        """The tokens of a text with their log-probabilities."""
        body = {
            "model": self._settings.model,
            "prompt": text,
            "max_tokens": 0,
            "echo": True,
            "logprobs": 1,
            "temperature": 0.0,
            **self._settings.extra,
        }
        async with self._transport.exchange("completions", body, len(text) // 3) as answer:
            data = await answer.data()
        try:
            logprobs = data["choices"][0]["logprobs"]
            usage = usage_of(data.get("usage") or {})
            if not len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]):
                raise ValueError("tokens, token_logprobs and text_offset differ in length")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ServerError(
                f"{self._transport.place} did not echo the prompt with its log-probabilities "
                f"({type(error).__name__}: {error}); does the server allow it?"
            ) from error
        self._account.note_answer(usage)
        return logprobs, usage

    # By the first token

    async def _score_by_first_token(self, request: ScoreRequest, told: Conversation) -> ScoreResult:
        if request.unconditional:
            raise UnsupportedError(
                f"{self._settings.dialect.service} scores options behind a prompt alone; use another method than "
                '"unconditional_likelihood_normalized"'
            )
        most = self._settings.dialect.max_top_logprobs
        top = most if told.plain is None else min(most, _MAX_TOP_OF_TEXT)
        sampling = Sampling(max_tokens=1, temperature=1.0, logprobs=top)
        gathered = Gathered()
        question = Question(self._settings.model, told, sampling, None, False)
        async with contextlib.aclosing(self._client.pieces(question, gathered)) as pieces:
            async for _ in pieces:
                pass
        entries = gathered.completion("", gathered.usage).logprobs
        if not entries:
            raise ServerError(f"{self._transport.place} gave no log-probabilities, although it was asked for them")
        logprobs = first_token_logprobs(request.options, entries[0])
        scores = tuple(OptionScore((), ()) if value is None else OptionScore((NO_ID,), (value,)) for value in logprobs)
        return ScoreResult(scores, gathered.usage)


def _option_score(
    given: tuple[Mapping[str, Any], Usage] | None,
    num_characters: int,
    bare: tuple[Mapping[str, Any], Usage] | None,
    is_unconditional: bool,
) -> OptionScore:
    if given is None:
        return OptionScore((), (), () if is_unconditional else None)
    logprobs = _behind(given[0], num_characters)
    alone = None if bare is None else _behind(bare[0], 0)
    if alone == ():
        raise UnsupportedError(
            "the service tells no log-probability of a text's first token, which is all of an option here; use another "
            'method than "unconditional_likelihood_normalized"'
        )
    return OptionScore((NO_ID,) * len(logprobs), logprobs, alone)


def _behind(echoed: Mapping[str, Any], num_characters: int) -> tuple[float, ...]:
    """Log-probabilities of the tokens that end behind this many characters; the first of all has none."""
    ends = [*echoed["text_offset"][1:], math.inf]
    pairs = zip(ends, echoed["token_logprobs"], strict=True)
    return tuple(logprob for end, logprob in pairs if end > num_characters and logprob is not None)


def first_token_logprobs(options: Sequence[str], entry: TokenLogprob) -> list[float | None]:
    """Each option's log-probability by the first token alone; None for an empty option.

    Raises:
        UnsupportedError: two options begin with one token, or none is among the likeliest.
    """
    likeliest = dict(zip(entry.top_texts, (logprob for _, logprob in entry.top), strict=False))
    likeliest.setdefault(entry.text, entry.logprob)
    found: dict[str, list[float]] = {option: [] for option in options}
    for token, logprob in likeliest.items():
        matched = [option for option in found if _begins(option, token)]
        if len(matched) > 1:
            raise UnsupportedError(
                f"{matched[0]!r} and {matched[1]!r} begin with the same token {token!r}, which is all that this "
                "service tells; use gen(choices=...)"
            )
        if matched:
            found[matched[0]].append(logprob)
    if not any(found.values()):
        raise UnsupportedError(
            f"none of {list(options)} is among the likeliest tokens {list(likeliest)}; use gen(choices=...)"
        )
    least = min(likeliest.values()) - _BELOW
    return [None if not option.strip() else _log_sum(found[option]) if found[option] else least for option in options]


def _begins(option: str, token: str) -> bool:
    bare = token.strip()
    return bool(bare) and option.lstrip().startswith(bare)


def _log_sum(logprobs: Iterable[float]) -> float:
    values = list(logprobs)
    top = max(values)
    return min(0.0, top + math.log(math.fsum(math.exp(value - top) for value in values)))
