"""A local backend over a tokenizer made on the spot and a model that is a table or a hash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from engine_fakes import FakeRunner, Logit, mix

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.messages import Runner
from forktree.backend.local import Local
from forktree.backend.local_source import Report
from forktree.backend.tokenizer import Tokenizer


@dataclass
class FakeSource:
    """A `ModelSource` of parts that are there already."""

    tokenizer: Tokenizer
    runner: Runner
    name: str = "fake"
    loads: list[str] = field(default_factory=list)

    def load_tokenizer(self, report: Report | None = None) -> Tokenizer:
        self.loads.append("tokenizer")
        return self.tokenizer

    def load_runner(self, tokenizer: Tokenizer) -> Runner:
        self.loads.append("runner")
        return self.runner


def fake_local(tokenizer: Tokenizer, logit: Logit, *, num_pages: int = 200, max_context: int = 10_000) -> Local:
    runner = FakeRunner(
        num_pages=num_pages, page_size=4, max_context=max_context, vocab=tokenizer.num_tokens, logit=logit
    )
    return Local.over(FakeSource(tokenizer, runner), EngineConfig())


def runner_of(local: Local) -> FakeRunner:
    runner = local._model._source.runner
    assert isinstance(runner, FakeRunner)
    return runner


def hashed(tokenizer: Tokenizer) -> Logit:
    """Every token is as likely as its hash with the history says; end tokens are not likely."""

    def logit(history: tuple[int, ...], token: int) -> float:
        return -20.0 if token in tokenizer.markup_ids else 6.0 * mix(hash(history), token)

    return logit


def table(tokenizer: Tokenizer, rows: Mapping[str, Mapping[str, float]], default: float = -30.0) -> Logit:
    """The logits of pieces after texts: the row whose text is the longest end of the history counts."""
    text_of = lru_cache(4096)(lambda history: tokenizer.decode(history))

    def logit(history: tuple[int, ...], token: int) -> float:
        text = text_of(history)
        row = max((row for row in rows if text.endswith(row)), key=len, default="")
        piece = "<end>" if token in tokenizer.eos_ids else tokenizer.token_bytes[token].decode("utf-8", "replace")
        return rows.get(row, {}).get(piece, default)

    return logit


def speaker(tokenizer: Tokenizer, *texts: str, prefers: Callable[[bytes], float] = len) -> Logit:
    """Says whole texts: from a beginning of one of them on it goes on with it, by the piece that it prefers."""
    data = [text.encode() for text in texts]
    bytes_of = lru_cache(4096)(lambda history: b"".join(tokenizer.shown_bytes[id] for id in history))

    def logit(history: tuple[int, ...], token: int) -> float:
        so_far = bytes_of(history)
        if token in tokenizer.eos_ids:
            return 50.0 if so_far in data else -30.0
        piece = tokenizer.shown_bytes[token]
        goes_on = piece and any(text.startswith(so_far + piece) for text in data)
        return 10.0 + prefers(piece) if goes_on else -30.0

    return logit


def answerer(tokenizer: Tokenizer, text: str, asks: str = "<|im_start|>assistant\n", *, markup: bool = False) -> Logit:
    """Says a text, token by token, behind whatever conversation; other tokens are unlikely, each in its own measure."""
    ids = [*tokenizer.encode(text, markup=markup), min(tokenizer.eos_ids)]
    opening = tuple(tokenizer.encode(asks, markup=True))

    def logit(history: tuple[int, ...], token: int) -> float:
        starts = [at for at in range(len(history)) if history[at : at + len(opening)] == opening]
        said = len(history) - starts[-1] - len(opening)
        return 20.0 if token == ids[min(said, len(ids) - 1)] else float(-token % 7)

    return logit
