"""SGLang's native route, `/generate`: plain text in, its continuation out, with constraints and ids of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forktree.backend.clients.dialects import Dialect
from forktree.backend.clients.sse import ServerEvent
from forktree.backend.clients.wire import Piece, Question, plain_text, sampling_fields
from forktree.runtime.protocol import TokenLogprob, Usage

_RENAMED = {"min_tokens": "min_new_tokens", "seed": "sampling_seed"}


class GenerateWire:
    """A stream says all of the text again with each event, so a wire belongs to one answer."""

    path = "generate"

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._num_seen = 0
        self._num_logprobs = 0

    def body(self, question: Question) -> dict[str, Any]:
        text = plain_text(question, self._dialect.service)
        body: dict[str, Any] = {"text": text, "sampling_params": self._parameters(question)}
        if question.is_stream:
            body["stream"] = True
        if question.sampling.logprobs is not None:
            body.update(return_logprob=True, top_logprobs_num=question.sampling.logprobs, return_text_in_logprobs=True)
        return body

    def _parameters(self, question: Question) -> dict[str, Any]:
        sampling, means = question.sampling, question.means
        given = sampling_fields(sampling, self._dialect)
        fields = {_RENAMED.get(name, name): value for name, value in given.items()}
        if sampling.max_tokens is not None:
            fields["max_new_tokens"] = sampling.max_tokens
        if sampling.stop:
            fields["stop"] = list(sampling.stop)
        if means is not None:
            fields.update(means.fields)
            if means.schema is not None:
                fields["json_schema"] = json.dumps(means.schema)
        return fields

    def pieces_of_event(self, event: ServerEvent, parsed: Any) -> Iterator[Piece]:
        yield from self.pieces_of_reply(parsed)

    def pieces_of_reply(self, data: Any) -> Iterator[Piece]:
        text, about = data.get("text") or "", data.get("meta_info") or {}
        new, self._num_seen = text[self._num_seen :], max(self._num_seen, len(text))
        finish = about.get("finish_reason") or {}
        finish = {"type": finish} if isinstance(finish, str) else finish
        if finish.get("type") == "abort":
            yield Piece(refusal=str(finish.get("message") or "the request was aborted"))
        yield Piece(
            text=new,
            logprobs=self._new_logprobs(about),
            finish=finish.get("type"),
            stop=finish.get("matched"),
            usage=_usage_of(about),
        )

    def _new_logprobs(self, about: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
        entries = list(about.get("output_token_logprobs") or ())
        tops = list(about.get("output_top_logprobs") or [None] * len(entries))
        start, self._num_logprobs = self._num_logprobs, max(self._num_logprobs, len(entries))
        pairs = zip(entries[start:], tops[start:], strict=False)
        return tuple(_logprob_of(entry, top or ()) for entry, top in pairs)


def _logprob_of(entry: Sequence[Any], top: Sequence[Sequence[Any]]) -> TokenLogprob:
    likeliest = tuple((token, logprob) for logprob, token, *_ in top)
    texts = tuple(rest[0] or "" for _, _, *rest in top if rest)
    logprob, token, *rest = entry
    return TokenLogprob(token, (rest[0] or "") if rest else "", logprob, likeliest, texts)


def _usage_of(about: Mapping[str, Any]) -> Usage:
    counts = (about.get(name) or 0 for name in ("prompt_tokens", "cached_tokens", "completion_tokens"))
    return Usage(*counts)


def scoring_body(text: str, start: int) -> dict[str, Any]:
    """The body that asks for the log-probabilities of a text's own tokens from number `start` on."""
    return {
        "text": text,
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": start,
        "return_text_in_logprobs": True,
    }


def scored_tokens(data: Mapping[str, Any]) -> list[tuple[int, float | None]]:
    """Ids of the prompt's tokens with their log-probabilities; the first has none."""
    entries = (data.get("meta_info") or {}).get("input_token_logprobs") or ()
    return [(token, logprob) for logprob, token, *_ in entries]
