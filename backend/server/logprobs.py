"""Log-probabilities as OpenAI's two protocols write them. A token's bytes are exact, whatever its text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from forktree.backend.tokenizer import Place, Tokenizer
from forktree.runtime.protocol import TokenLogprob

_LEAST = -9999.0  # JSON has no infinity


def chat_logprobs(tokens: Iterable[TokenLogprob], tokenizer: Tokenizer, *, num_top: int) -> list[dict[str, Any]]:
    """`choices[].logprobs.content`."""
    return [
        {
            **_entry(token.token, token.logprob, tokenizer),
            "top_logprobs": [_entry(id, logprob, tokenizer) for id, logprob in token.top[:num_top]],
        }
        for token in tokens
    ]


def _entry(id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "token": _spelt(id, tokenizer),
        "logprob": max(logprob, _LEAST),
        "bytes": None if id in tokenizer.hidden_ids else list(tokenizer.token_bytes[id]),
    }


def _spelt(id: int, tokenizer: Tokenizer) -> str:
    """A token alone, as text; a part of a character is U+FFFD."""
    return tokenizer.token_bytes[id].decode("utf-8", "replace")


class CompletionLogprobs:
    """`choices[].logprobs` of a completion, in pieces; `text_offset` counts characters from the text's beginning."""

    def __init__(self, tokenizer: Tokenizer, *, num_top: int, place: Place = Place.INSIDE, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._decoder = tokenizer.decoder(place=place)
        self._offset = offset

    def add(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The next tokens."""
        return {
            "tokens": [_spelt(token.token, self._tokenizer) for token in tokens],
            "token_logprobs": [max(token.logprob, _LEAST) for token in tokens],
            "top_logprobs": [self._alternatives(token) for token in tokens],
            "text_offset": [self._advance(token.token) for token in tokens],
        }

    def add_prompt(self, ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
        """The prompt's tokens, and what all but the first scored."""
        scores: list[float | None] = [None, *(max(one, _LEAST) for one in logprobs)]
        spelt = [_spelt(id, self._tokenizer) for id in ids]
        return {
            "tokens": spelt,
            "token_logprobs": scores,
            "top_logprobs": [None if one is None else {text: one} for text, one in zip(spelt, scores, strict=True)],
            "text_offset": [self._advance(id) for id in ids],
        }

    def _advance(self, id: int) -> int:
        start = self._offset + self._decoder.num_chars
        self._decoder.feed(id)
        return start

    def _alternatives(self, token: TokenLogprob) -> dict[str, float]:
        """By text; of several tokens of one text, the likeliest."""
        found: dict[str, float] = {}
        for id, logprob in token.top[: self._num_top]:
            found.setdefault(_spelt(id, self._tokenizer), max(logprob, _LEAST))
        found.setdefault(_spelt(token.token, self._tokenizer), max(token.logprob, _LEAST))
        return found


def joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two pieces of a completion's log-probabilities, one after the other."""
    return {key: one[key] + other[key] for key in one}
