"""What goes into the engine and what comes out of it: plain values, no tensors.

Requests cross from any thread to the engine's; events are delivered on the engine's thread, in order, and
`Finished` or `Failed` is the last one, exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from forktree.backend.engine.continuations import Continuations
from forktree.kernels.token_tree import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerParams:
    """Sampling parameters with every default filled in; see `forktree.lang.sampling.Sampling`.

    `seed` is always set: an unseeded request gets a random one when it is submitted.
    `num_logprobs`: None returns no log-probabilities, k returns the chosen token's and the k likeliest.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    num_logprobs: int | None = None


class TokenMatcher(Protocol):
    """A constraint on its way through one output (a `Matcher` of `backend.grammar`)."""

    def mask(self) -> Any:
        """Packed int32 [ceil(vocab / 32)] numpy array: bit `t % 32` of word `t // 32` says token t is legal."""
        ...

    def has_mask(self) -> bool:
        """`mask` costs next to nothing here, because it was made before; it need not be made ahead."""
        ...

    def advance(self, token: int) -> None: ...

    def is_complete(self) -> bool:
        """The text so far is one whole legal output."""
        ...

    def must_end(self) -> bool:
        """The text so far is complete and nothing can follow it."""
        ...

    def is_free(self) -> bool:
        """Everything is legal from here on: the engine may forget the matcher."""
        ...

    def forced(self) -> tuple[int, ...]:
        """Tokens that must come next whatever the model says; () where there is a choice."""
        ...

    def copy(self) -> TokenMatcher:
        """Another one that stands here and goes its own way."""
        ...


class Emission(NamedTuple):
    """What one more token did to a text.

    Attributes:
        text: what may be shown now; with a stop, all that is left of the kept text.
        stop: the stop that this token completed, or None.
        num_kept: with a stop, how many tokens from the first lie wholly within the kept text; None keeps all.
        tail_text: with a stop, the kept text behind those tokens (a token straddled the stop's beginning).
    """

    text: str
    stop: str | None = None
    num_kept: int | None = None
    tail_text: str = ""


class TextSink(Protocol):
    """Turns the tokens of one output into text that may be shown, and watches for stops. One a request.

    A sink that knows `min_tokens` reports no stop before it; the engine ends at every stop reported.
    """

    def feed(self, token: int) -> Emission:
        """Take one token."""
        ...

    def flush(self) -> str:
        """The output ended: what was held back."""
        ...


class TokenInfo(NamedTuple):
    """One generated token; `logprob` is the natural log before temperature, after penalties and bias."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Emitted:
    """New text of a running request, and the tokens behind it."""

    text: str
    tokens: tuple[TokenInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event of a request that ended well.

    Attributes:
        ids: generated ids in order, without the end token, and with a text stop only those that lie wholly
            within the kept text, so that they render to it.
        tail_text: kept text behind `ids` that no id covers, because a token straddled the stop.
        text: what was held back until the end (already without the stop string).
        reason: why it ended.
        stop: the stop string or token id that ended it.
        prompt_logprobs: [len(ids of the prompt) - score_from] natural logs, if asked for.
        continuation_logprobs: one natural log for each node of `continuations`, if there are any.
        embedding: [hidden] of length 1, if asked for.
        num_cached: tokens of the prompt that came from the cache.
        tokens: one entry for each of `ids`.
    """

    ids: tuple[int, ...]
    text: str
    reason: Literal["stop", "length"]
    stop: str | int | None = None
    is_complete: bool = True
    tail_text: str = ""
    prompt_logprobs: tuple[float, ...] = ()
    continuation_logprobs: tuple[float, ...] = ()
    embedding: tuple[float, ...] = ()
    num_prompt: int = 0
    num_cached: int = 0
    tokens: tuple[TokenInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that did not end well."""

    error: BaseException


Event = Emitted | Finished | Failed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineRequest:
    """One sequence to compute.

    Attributes:
        ids: the prompt; never empty.
        max_tokens: most tokens to generate; 0 computes (and caches) the prompt alone.
        min_tokens: end tokens and stops are not accepted before.
        stop_token_ids: ids that end the output, the model's end tokens among them unless they are ignored.
        score_from: return the log-probabilities of prompt tokens [score_from, len(ids)); at least 1.
        continuations: return the log-probabilities of their tokens behind the prompt; nothing is generated then.
        embed_from: return the direction of the sum of the final hidden states at prompt tokens
            [embed_from, len(ids)); nothing is generated then. Takes a `HiddenRunner`.
        namespace: requests of different namespaces never share cache.
        owner: the run that asks, which will go on from here: what is computed is evicted last until `Engine.end_run`.
        is_pin: the whole pages of the prompt stay in the pool until `Engine.unpin`; nothing is generated then.
        on_event: called on the engine's thread; it must not block or raise.
    """

    ids: tuple[int, ...]
    on_event: Callable[[Event], None]
    max_tokens: int = 0
    min_tokens: int = 0
    params: SamplerParams = SamplerParams()
    stop_token_ids: frozenset[int] = frozenset()
    matcher: TokenMatcher | None = None
    sink: TextSink | None = None
    score_from: int | None = None
    continuations: Continuations | None = None
    embed_from: int | None = None
    namespace: str = ""
    owner: int | None = None
    is_pin: bool = False


class SampleRow(NamedTuple):
    """One row of logits to draw from.

    Attributes:
        params: the request's parameters.
        position: number of tokens generated before; with the seed it fixes the draw.
        prompt_ids, output_ids: for the penalties.
        mask: packed int32 [ceil(vocab / 32)], or None when everything is legal.
        end_ids: where the output may already end under its constraint: drawing any token outside the mask,
            or one of these, ends it (all that mass counts as ending); empty otherwise.
        banned_ids: ids that may not be drawn (end tokens before `min_tokens`).
    """

    params: SamplerParams
    position: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    mask: Any | None = None
    end_ids: frozenset[int] = frozenset()
    banned_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One forward pass over sequences laid end to end.

    A row is one new token. Its keys and values are written to its slot before attention, and it attends to
    positions [0, position] of its sequence through the page table: place p is the slot
    `page_tables[s][p // page_size] * page_size + p % page_size`. A position's place is the position itself,
    but in the branches of a `TokenTree`: a row of one attends to what lies before the root and to its own branch.

    Attributes:
        ids: [tokens] input ids.
        positions: [tokens] absolute positions.
        seq_of_row: [tokens] index into `page_tables`, non-decreasing.
        page_tables: [seqs] lists of page ids, in order of position.
        logit_rows: rows whose logits are wanted, ascending.
        trees: of the sequences that have rows in branches, by index into `page_tables`.
        places: of the rows in branches, by row. They stand behind the other rows of their sequence, ascending.
        hidden_rows: rows whose final hidden states are wanted, ascending.
    """

    ids: list[int]
    positions: list[int]
    seq_of_row: list[int]
    page_tables: list[list[int]]
    logit_rows: list[int]
    trees: dict[int, TokenTree] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    hidden_rows: list[int] = field(default_factory=list)


class Runner(Protocol):
    """The model as the engine sees it. All calls come from the engine's thread.

    Logits stay inside the runner's own tensors: the engine passes them from `forward` to `sample` and
    `gather_logprobs` without looking.
    """

    @property
    def num_pages(self) -> int: ...

    @property
    def page_size(self) -> int: ...

    @property
    def max_context(self) -> int:
        """Most tokens of one sequence, prompt and output together."""
        ...

    def forward(self, batch: ForwardBatch) -> Any:
        """Logits, [len(logit_rows), vocab] float32."""
        ...

    def sample(self, logits: Any, rows: Sequence[tuple[int, SampleRow]]) -> list[TokenInfo]:
        """Draw one token for each (row of `logits`, what to draw)."""
        ...

    def gather_logprobs(self, logits: Any, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Natural log-probability of `tokens[i]` under row `rows[i]`, unmodified by any sampling parameter."""
        ...

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` slots of a page, all layers."""
        ...


@runtime_checkable
class HiddenRunner(Protocol):
    """A runner that also gives out final hidden states: those that logits are made of, behind the last norm.

    What `forward_hidden` and `add_hidden` return stays inside the runner's own tensors, as logits do.
    """

    @property
    def hidden_size(self) -> int:
        """Values of one state."""
        ...

    def forward_hidden(self, batch: ForwardBatch) -> tuple[Any, Any]:
        """What `forward` gives, and the states of `hidden_rows`, in order."""
        ...

    def add_hidden(self, total: Any | None, hidden: Any, rows: range) -> Any:
        """A sum of states with those of `rows` (of the states given) added one after another; None is no sum yet."""
        ...

    def direction_of(self, total: Any) -> tuple[float, ...]:
        """A sum of states divided by its length, as float32 values. Raises EngineError: it has no direction."""
        ...
