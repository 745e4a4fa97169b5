"""`Fake`: a scripted backend, for tests of programs.

    Fake(["first answer", "second answer"])            answers in the order of the requests
    Fake({"kind": "fuel", "name": ["Ada", "Bo"]})      by variable; one text answers every time, a list in turn
    Fake(lambda request: request.prompt.upper())       a function of the request, sync or async

An answer is text; an exception is raised as itself; a number, list or dict is written as compact JSON. For `select`
it is the option that wins, or a dict from option to its log-probability (a number, or one a token). Where a script of
names says nothing about a select, its first option wins.

A token of Fake is a word with the blanks before it, and its id a checksum of its text. `stop`, `stop_regex`,
`max_tokens` and constraints are honoured: an answer that its constraint forbids is an error, unless `max_tokens`
cut it and `on_budget` is not "close".
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import re
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from forktree.lang.constraints import ALL_CONSTRAINTS, DEFAULT_REASONING, ConstraintSpec, ReasoningSpec
from forktree.lang.errors import BackendError, UnsupportedError
from forktree.lang.keywords import keyword_checked
from forktree.lang.sampling import Sampling
from forktree.runtime import protocol

Request = protocol.GenerateRequest | protocol.ScoreRequest
Script = Sequence[Any] | Mapping[str | None, Any] | Callable[[Request], Any]

_TOKEN = re.compile(r"\s*\S+|\s+")
_CAPABILITIES = protocol.Capabilities(tokens=True, constraints=ALL_CONSTRAINTS, score=True, images=True, logprobs=True)


class Fake:
    """A backend that answers from a script. Its own thread-safe counters tell what was asked.

    Attributes:
        requests: every request, in order of arrival; empty with `keep_requests=False`.
        num_requests: how many there were.
        num_cancelled: generations that were given up before their end.

    With `token_ids=False` it has none, as most services: it counts tokens, and its answers carry text alone.
    """

    @keyword_checked(name="Fake")
    def __init__(self, script: Script, *, keep_requests: bool = True, token_ids: bool = True) -> None:
        if isinstance(script, str):
            raise BackendError("Fake takes a list of answers, a dict or a function, not one text; write [text]")
        self._answer = _answerer(script)
        self._script = None if callable(script) else script
        # A function may wait for what the program does next, and a subclass may have another `stream`.
        self._is_at_hand = not callable(script) and type(self) is Fake
        self._capabilities = replace(_CAPABILITIES, tokens=token_ids)
        self._closed = False
        self._held: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._is_holding = False
        self._lock = threading.Lock()
        self._own: dict[int, BaseException] = {}  # what the script raised; kept, so that ids stay theirs
        self._keep_requests = keep_requests
        self.requests: list[Request] = []
        self.num_requests = 0
        self.num_cancelled = 0

    @property
    def name(self) -> str:
        return "Fake"

    @property
    def identity(self) -> object:
        """See `protocol.Identified`: the script where it is data. A function may answer differently each time."""
        return self._script

    @property
    def capabilities(self) -> protocol.Capabilities:
        return self._capabilities

    @property
    def num_held(self) -> int:
        """Requests that wait for `release`."""
        return len(self._held)

    def hold(self) -> None:
        """Let requests wait from now on, until `release`."""
        self._is_holding = True

    def release(self) -> None:
        """Answer what waits, and all that comes; from any thread."""
        with self._lock:
            self._is_holding = False
            held, self._held = self._held, []
        for loop, future in held:
            loop.call_soon_threadsafe(_finish, future)

    async def stream(self, request: protocol.GenerateRequest) -> AsyncIterator[protocol.Delta | protocol.Completion]:
        """The scripted answer, a token a delta."""
        try:
            *deltas, completion = self._events(request, await self._arrive(request))
            for delta in deltas:
                yield delta
        except (asyncio.CancelledError, GeneratorExit):
            self.num_cancelled += 1
            raise
        yield completion

    @property
    def answer_at_hand(self) -> protocol.AnswerAtHand | None:
        """Where the script is data: see `protocol.AtHand`."""
        return self._answer_now if self._is_at_hand and not self._is_holding else None

    def _answer_now(self, request: protocol.GenerateRequest) -> list[protocol.Delta | protocol.Completion] | None:
        if self._is_holding or self._closed:
            return None
        return self._events(request, self._ask(request))

    def _events(self, request: protocol.GenerateRequest, answer: Any) -> list[protocol.Delta | protocol.Completion]:
        constraint, reasoning, text = _parted(request.constraint, _text_of(answer))
        text, reason, stop = _cut(text, request.sampling)
        is_complete = constraint is None or _accepts(constraint, text)
        if constraint is not None and not is_complete:
            _check_cut(request, constraint, text, reason)
        tokens = _TOKEN.findall(text)
        completion = protocol.Completion(
            segment=protocol.Generated(text, tuple(map(_id_of, tokens)) if self._capabilities.tokens else ()),
            finish_reason=reason,
            is_complete=is_complete,
            stop=stop,
            reasoning=reasoning,
            usage=protocol.Usage(_count_prompt(request.branch), 0, len(tokens)),
            logprobs=_logprobs(tokens, request.sampling),
        )
        return [*map(protocol.Delta, tokens), completion]

    async def score(self, request: protocol.ScoreRequest) -> protocol.ScoreResult:
        """The scripted option is certain but for a hundredth a token; a dict of log-probabilities is taken as is."""
        answer = await self._arrive(request)
        scores = tuple(_option_score(option, answer, request) for option in request.options)
        return protocol.ScoreResult(scores, protocol.Usage(_count_prompt(request.branch)))

    async def prefill(self, branch: protocol.Branch) -> None:
        """Nothing to compute."""

    async def tokens(self, branch: protocol.Branch | None) -> tuple[int, ...]:
        """Checksums of words; what a generation made keeps its own ids."""
        if not self._capabilities.tokens:
            raise UnsupportedError("this Fake has no token ids: make it with token_ids=True")
        return tuple(_prompt_ids(branch))

    def close(self) -> None:
        self._closed = True
        self.release()

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def _arrive(self, request: Request) -> Any:
        """Count the request, wait while held, and ask the script."""
        number = self._count(request)
        if self._is_holding:
            await self._wait_for_release()
        if self._closed:
            raise BackendError("this Fake is closed")
        answer = self._answer(request, number)
        if inspect.isawaitable(answer):
            answer = await answer
        return self._raised(answer)

    def _ask(self, request: Request) -> Any:
        """The same for a script of data that is not held."""
        return self._raised(self._answer(request, self._count(request)))

    def _raised(self, answer: Any) -> Any:
        """The answer; one that is an error is raised, and known again by `is_users_own`."""
        if isinstance(answer, BaseException):
            self._own[id(answer)] = answer
            raise answer
        return answer

    def is_users_own(self, error: BaseException) -> bool:
        """See `protocol.Scripted`."""
        return id(error) in self._own

    def _count(self, request: Request) -> int:
        with self._lock:
            if self._keep_requests:
                self.requests.append(request)
            self.num_requests += 1
            return self.num_requests

    async def _wait_for_release(self) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if not self._is_holding:
                return
            self._held.append((loop, future))
        await future


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# Scripts

Answerer = Callable[[Request, int], Any | Awaitable[Any]]


def _answerer(script: Script) -> Answerer:
    if callable(script):
        return lambda request, number: script(request)
    if isinstance(script, Mapping):
        return _ByName(script)
    if isinstance(script, Sequence):
        return _InOrder(script)
    raise BackendError(f"Fake takes a list of answers, a dict or a function, not {script!r}")


class _InOrder:
    """The next answer for each request."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = iter(list(answers))

    def __call__(self, request: Request, number: int) -> Any:
        for answer in self._answers:
            return answer
        raise BackendError(f"the script has no answer left for request {number}, {request.name!r}")


class _ByName:
    """The answer of the request's variable."""

    def __init__(self, answers: Mapping[str | None, Any]) -> None:
        self._answers: dict[str | None, Iterator[Any]] = {}
        for name, answer in answers.items():
            self._answers[name] = iter(answer) if isinstance(answer, list | tuple) else itertools.repeat(answer)

    def __call__(self, request: Request, number: int) -> Any:
        answers = self._answers.get(request.name)
        if answers is None:
            if isinstance(request, protocol.ScoreRequest):
                return request.options[0]
            raise BackendError(
                f"the script has no answer for {request.name!r}; it has {sorted(map(str, self._answers))}"
            )
        for answer in answers:
            return answer
        raise BackendError(f"the script has no answer left for {request.name!r}")


def _text_of(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    try:
        return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise BackendError(f"an answer is text, an exception or plain data, not {answer!r}: {error}") from None


def _parted(spec: ConstraintSpec | None, text: str) -> tuple[ConstraintSpec | None, str, str]:
    """What constrains the answer alone, and the answer behind the reasoning that it may begin with."""
    if not isinstance(spec, ReasoningSpec):
        return spec, "", text
    begin, end = spec.begin or DEFAULT_REASONING[0], spec.end or DEFAULT_REASONING[1]
    thought, found, answer = text.partition(end)
    if not (found and text.startswith(begin)):
        return spec.content, "", text
    return spec.content, thought.removeprefix(begin).strip("\n"), answer.lstrip("\n")


# Ends


def _cut(text: str, sampling: Sampling) -> tuple[str, Any, str | None]:
    """The text up to its end, why it ended, and the stop that did it."""
    text, stop = _cut_at_stop(text, sampling)
    tokens = _TOKEN.findall(text)
    if sampling.max_tokens is not None and len(tokens) > sampling.max_tokens:
        return "".join(tokens[: sampling.max_tokens]), "length", None
    return text, "stop", stop


def _cut_at_stop(text: str, sampling: Sampling) -> tuple[str, str | None]:
    """Cut before the stop whose end comes first, the longest of several that end there."""
    found: list[tuple[int, int, str]] = []
    for stop in sampling.stop or ():
        start = text.find(stop)
        if start >= 0:
            found.append((start + len(stop), start, stop))
    if sampling.stop_regex is not None and (match := re.search(sampling.stop_regex, text)) is not None:
        found.append((match.end(), match.start(), match.group()))
    if not found:
        return text, None
    _, start, stop = min(found)
    return text[:start], stop


def _accepts(spec: ConstraintSpec, text: str) -> bool:
    from forktree.backend.grammar.constraints import constraint_from_spec

    return bool(constraint_from_spec(spec).accepts(text))


def _check_cut(request: protocol.GenerateRequest, spec: ConstraintSpec, text: str, reason: str) -> None:
    """Raises BackendError: an answer that is not whole, where `max_tokens` may not have cut it."""
    what = f"the script answers {request.name!r} with {text!r}"
    if reason != "length":
        raise BackendError(f"{what}, which its constraint forbids: {_deviation(spec, text)}")
    if request.on_budget == "close":
        raise BackendError(
            f'{what} up to max_tokens={request.sampling.max_tokens} (a token is a word here), and on_budget="close" '
            "would have ended it by then: script a shorter answer, or raise max_tokens"
        )


def _deviation(spec: ConstraintSpec, text: str) -> str:
    """Where the text leaves the constraint, and what that is."""
    from forktree.backend.grammar.constraints import constraint_from_spec

    constraint = constraint_from_spec(spec)
    low, high = 0, len(text)  # the prefix of `low` characters is legal; a longer one of `high` + 1 is not
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if constraint.accepts_prefix(text[:middle]) else (low, middle - 1)
    shown = _shortened(repr(spec))
    if low == len(text):
        return f"it ends too early for {shown}"
    return f"character {low} is {text[low]!r}, and {_before(text, low)} {shown} does not go on like that"


def _before(text: str, position: int) -> str:
    return f"behind {text[max(0, position - 20) : position]!r}" if position else "at the beginning"


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"


# Tokens


def _id_of(token: str) -> int:
    return zlib.crc32(token.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF


def _prompt_ids(branch: protocol.Branch | None) -> list[int]:
    """Adjacent text is one run; a generation, a turn and a fork close it."""
    ids: list[int] = []
    run: list[str] = []
    for segment in branch.segments() if branch is not None else ():
        if isinstance(segment, protocol.Text):
            run.append(segment.text)
            continue
        ids += map(_id_of, _TOKEN.findall("".join(run)))
        run = []
        match segment:
            case protocol.Generated():
                ids += segment.ids or map(_id_of, _TOKEN.findall(segment.text))
            case protocol.RoleBegin() | protocol.RoleEnd():
                ids.append(_id_of(f"<{type(segment).__name__} {segment.role}>"))
            case protocol.Tools():
                ids.append(_id_of(segment.definitions))
            case protocol.Image():
                ids.append(zlib.crc32(segment.data) & 0x7FFFFFFF)
            case protocol.ForkMark():
                pass
    return ids + [_id_of(token) for token in _TOKEN.findall("".join(run))]


def _count_prompt(branch: protocol.Branch | None) -> int:
    """How many ids `_prompt_ids` gives, without their checksums; from the end of the branch to its beginning."""
    count, run = 0, ""
    while branch is not None:
        segment, branch = branch.segment, branch.parent
        if isinstance(segment, protocol.Text):
            run = segment.text + run
            continue
        count, run = count + _count_tokens(run), ""
        if isinstance(segment, protocol.Generated):
            count += len(segment.ids) or _count_tokens(segment.text)
        elif not isinstance(segment, protocol.ForkMark):
            count += 1
    return count + _count_tokens(run)


def _count_tokens(text: str) -> int:
    return len(_TOKEN.findall(text)) if text else 0


def _logprobs(tokens: list[str], sampling: Sampling) -> tuple[protocol.TokenLogprob, ...]:
    if sampling.logprobs is None:
        return ()
    return tuple(protocol.TokenLogprob(_id_of(token), token, 0.0) for token in tokens)


def _option_score(option: str, answer: Any, request: protocol.ScoreRequest) -> protocol.OptionScore:
    tokens = _TOKEN.findall(option)
    ids = tuple(map(_id_of, tokens))
    if isinstance(answer, Mapping):
        if option not in answer:
            raise BackendError(f"the script scores {sorted(answer)}, and {request.name!r} also has {option!r}")
        given = answer[option]
        logprobs = tuple(map(float, given)) if isinstance(given, list | tuple) else (float(given),)
        ids = ids if len(ids) == len(logprobs) else tuple(range(len(logprobs)))
    elif answer in request.options:
        logprobs = tuple(-0.01 if option == answer else -5.0 for _ in tokens)
    else:
        raise BackendError(f"the script answers {request.name!r} with {answer!r}, which is none of {request.options}")
    unconditional = tuple(-5.0 for _ in logprobs) if request.unconditional else None
    return protocol.OptionScore(ids, logprobs, unconditional)
