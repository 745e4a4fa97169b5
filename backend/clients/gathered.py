"""An answer as it comes together out of pieces."""

from __future__ import annotations

from typing import Literal

from forktree.backend.clients.asks import Means
from forktree.backend.clients.calls import calls_text
from forktree.backend.clients.wire import CallPiece, Piece
from forktree.lang.errors import BackendError, ServerError
from forktree.runtime.protocol import Completion, Generated, TokenLogprob, Usage

_STOPPED = frozenset(
    {"stop", "end_turn", "stop_sequence", "eos", "tool_calls", "tool_use", "function_call", "pause_turn"}
)
_CUT = frozenset({"length", "max_tokens", "model_context_window_exceeded"})
_REFUSED = frozenset({"content_filter", "refusal", "safety", "abort"})
_EMPTY_HINT = "if the prompt may be longer than its context, context_limit= tells so before it is sent"


class Gathered:
    """What has come so far."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[str, str]] = {}
        self._logprobs: list[TokenLogprob] = []
        self._finish: str | None = None
        self._refusal = ""
        self.stop: str | int | None = None
        self.usage = Usage()

    def add(self, piece: Piece) -> None:
        self._texts.append(piece.text)
        self._reasoning.append(piece.reasoning)
        self._logprobs += piece.logprobs
        self._refusal += piece.refusal
        for call in piece.calls:
            self._add_call(call)
        if piece.finish is not None:
            self._finish, self.stop = piece.finish, piece.stop
        if piece.usage is not None:
            self.usage = _at_least(self.usage, piece.usage)

    def _add_call(self, call: CallPiece) -> None:
        name, arguments = self._calls.get(call.index, ("", ""))
        self._calls[call.index] = (name or call.name, arguments + call.arguments)

    def check_end(self, service: str) -> None:
        """
        Raises:
            BackendError: the service will not answer.
            ServerError: the answer broke off.
        """
        if self._refusal or self._finish in _REFUSED:
            raise BackendError(
                f"{service} will not answer: {self._refusal or self._finish}; it gave {self.text[-80:]!r}"
            )
        if self._finish is None:
            after = f"after {self.text[-80:]!r}" if self.text else f"before it began; {_EMPTY_HINT}"
            raise ServerError(f"{service} ended its answer without saying that it ended, {after}")
        if self._finish not in _STOPPED | _CUT:
            raise BackendError(f"{service} ended its answer for a reason that is not known: {self._finish!r}")

    def stop_at(self, stop: str) -> None:
        """This side found the stop."""
        self._finish, self.stop = "stop", stop

    def leave(self, usage: Usage) -> None:
        """No more of the answer is read."""
        self.usage = usage

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        return "length" if self._finish in _CUT else "stop"

    def value_text(self, means: Means) -> str:
        """What the constraint is about: the text, the calls, or what the one call gives."""
        if not means.tools or not self._calls:
            return self.text
        calls = [self._calls[index] for index in sorted(self._calls)]
        return calls_text(calls, is_list=means.is_list) if means.calls_are_value else calls[0][1]

    def completion(self, text: str, usage: Usage, *, is_complete: bool = True) -> Completion:
        """The end of a generation whose value is `text`."""
        return Completion(
            segment=Generated(text),
            finish_reason=self.finish_reason,
            is_complete=is_complete,
            stop=self.stop,
            reasoning="".join(self._reasoning),
            usage=usage,
            logprobs=tuple(self._logprobs),
        )


def _at_least(one: Usage, two: Usage) -> Usage:
    """Counts only grow; a service may tell some of them early and some late."""
    return Usage(
        max(one.prompt_tokens, two.prompt_tokens),
        max(one.cached_tokens, two.cached_tokens),
        max(one.completion_tokens, two.completion_tokens),
    )


def added(one: Usage, two: Usage) -> Usage:
    """The counts of two requests together."""
    return Usage(
        one.prompt_tokens + two.prompt_tokens,
        one.cached_tokens + two.cached_tokens,
        one.completion_tokens + two.completion_tokens,
    )


class BlankTaker:
    """Takes from the beginning of an answer the blanks that the program wrote already and the service did not get."""

    def __init__(self, blanks: str) -> None:
        self._blanks = blanks
        self._held = ""
        self._is_done = not blanks

    def take(self, text: str) -> str:
        """What is the value's of this piece."""
        if self._is_done:
            return text
        self._held += text
        if len(self._held) < len(self._blanks) and self._blanks.startswith(self._held):
            return ""
        return self.end()

    def end(self) -> str:
        """What is still held, when no more comes."""
        if self._is_done:
            return ""
        self._is_done = True
        if self._held.startswith(self._blanks):
            return self._held[len(self._blanks) :]
        return self._held[1:] if self._held[:1].isspace() else self._held
