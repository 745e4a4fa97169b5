"""A sequence on its way through the engine: the mutable record of one request, and its arithmetic."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from forktree.backend.cache.radix import Node
from forktree.backend.engine.continuations import BranchRows, lay_out
from forktree.backend.engine.forest import ForestNode
from forktree.backend.engine.messages import EngineRequest, TokenInfo
from forktree.lang.errors import ContextLengthError


class Phase(Enum):
    """Where a sequence stands. WAITING sequences hold no page and no lock."""

    WAITING = auto()
    RUNNING = auto()
    DONE = auto()


class Sequence:
    """One request's state; the engine's thread owns it.

        ids      [prompt .............................][generated ............]
        KV       [cached ........][computed so far ...............)[pending ..)
        pages    [the tree's, locked ..)[the sequence's own ..................)
                  0                num_shared                        len(pages)

    Continuations are laid behind the prompt (`continuations.py`), where a position is not a place:

        ids      [prompt .............................][rows of their trie ...)

    Attributes:
        ids: prompt and generated tokens, or prompt and rows of continuations.
        branches: the rows of the request's continuations; None without any.
        output_ids: the generated tokens alone.
        output_limit: most tokens to generate: `max_tokens`, or what context and pool leave.
        num_computed: tokens whose keys and values are in `pages`.
        num_prefill: tokens that were known when it was admitted last, or brought by the request if that was the first
            time: what is computed of them is prefill.
        hidden_total: sum of the final hidden states that were asked for, of the first `num_hidden` tokens of these.
        num_cached: tokens of the prompt that the first admission found in the cache; None before it.
        pages: the page table; the first `num_shared` belong to the tree and are locked by `lock`.
        leaf: where the prompt ends in the forest of live requests.
    """

    __slots__ = (
        "branches",
        "continuation_logprobs",
        "hidden_total",
        "id",
        "ids",
        "leaf",
        "lock",
        "matcher",
        "num_cached",
        "num_computed",
        "num_hidden",
        "num_prefill",
        "num_shared",
        "output_ids",
        "output_limit",
        "pages",
        "phase",
        "prompt_logprobs",
        "request",
        "tokens",
    )

    def __init__(self, id: int, request: EngineRequest, output_limit: int) -> None:
        self.id = id
        self.request = request
        self.output_limit = output_limit
        trie = request.continuations
        self.branches: BranchRows | None = None if trie is None else lay_out(trie, len(request.ids))
        self.ids = [*request.ids, *(() if self.branches is None else self.branches.tokens)]
        self.continuation_logprobs = [0.0] * (0 if trie is None else len(trie.tokens))
        self.output_ids: list[int] = []
        self.tokens: list[TokenInfo] = []
        self.prompt_logprobs: list[float] = []
        self.hidden_total: Any | None = None
        self.num_hidden = 0
        self.matcher = request.matcher
        self.phase = Phase.WAITING
        self.num_computed = 0
        self.num_prefill = 0
        self.num_cached: int | None = None
        self.pages: list[int] = []
        self.num_shared = 0
        self.lock: Node | None = None
        self.leaf: ForestNode | None = None

    def __repr__(self) -> str:
        return f"Sequence({self.id}, {self.phase.name}, {self.num_computed}/{len(self.ids)} computed)"

    @property
    def num_prompt(self) -> int:
        return len(self.request.ids)

    @property
    def num_given(self) -> int:
        """Tokens that the request brought: the prompt, and what is computed of continuations."""
        return len(self.ids) - len(self.output_ids)

    @property
    def num_cachable(self) -> int:
        """Of the computed tokens, those that the tree may own: rows of continuations are scratch."""
        return self.num_computed if self.branches is None else min(self.num_computed, self.num_prompt)

    @property
    def num_pending(self) -> int:
        """Known tokens that a forward pass has still to compute."""
        return len(self.ids) - self.num_computed

    @property
    def num_left(self) -> int:
        """Tokens that may still be generated."""
        return self.output_limit - len(self.output_ids)

    @property
    def first_score_row(self) -> int | None:
        """Position of the first row whose logits a score still needs: it foretells the token after it."""
        if self.request.score_from is None:
            return None
        row = self.request.score_from - 1 + len(self.prompt_logprobs)
        return row if row < self.num_prompt - 1 else None

    @property
    def first_hidden_row(self) -> int | None:
        """Position of the first token whose final hidden state is still to be added to the sum."""
        if self.request.embed_from is None:
            return None
        row = self.request.embed_from + self.num_hidden
        return row if row < self.num_prompt else None

    @property
    def cacheable(self) -> int:
        """Most tokens that may come from the cache: the last is computed for its logits, and so is every
        row that a score or an embedding needs."""
        needed = [row for row in (self.first_score_row, self.first_hidden_row) if row is not None]
        if needed:
            return min(needed)
        return (len(self.ids) if self.branches is None else self.num_prompt) - 1


def make_sequence(id: int, request: EngineRequest, *, max_context: int, pool_tokens: int) -> Sequence:
    """Check a request at the door.

    The last generated token is never computed, so a sequence of `n` tokens needs room in the pool for `n - 1`.
    A request whose output cannot reach `max_tokens` is taken and ends with "length" at the limit.

    Raises:
        ContextLengthError: not one token can be generated (or, without generation, the prompt does not fit).
        ValueError: a field is out of range.
    """
    _check_fields(request)
    num_prompt = len(request.ids)
    if request.continuations is not None:
        return _make_scored(id, request, max_context, pool_tokens)
    least = num_prompt + min(request.max_tokens, 1)
    if least > max_context:
        raise ContextLengthError(
            f"the request needs {least} tokens, and the model's context holds {max_context}: shorten the prompt",
            limit=max_context,
            tokens=least,
        )
    if num_prompt > pool_tokens:
        raise ContextLengthError(
            f"the prompt needs {num_prompt} tokens of KV cache, and the pool holds {pool_tokens}: "
            "shorten the prompt or raise kv_tokens",
            limit=pool_tokens,
            tokens=num_prompt,
        )
    room = min(max_context - num_prompt, pool_tokens - num_prompt + 1)
    return Sequence(id, request, min(request.max_tokens, room))


def _make_scored(id: int, request: EngineRequest, max_context: int, pool_tokens: int) -> Sequence:
    seq = Sequence(id, request, 0)
    assert seq.branches is not None
    longest = seq.num_prompt + seq.branches.height
    if longest > max_context:
        raise ContextLengthError(
            f"prompt and continuation have {longest} tokens, and the model's context holds {max_context}: "
            "shorten the prompt",
            limit=max_context,
            tokens=longest,
        )
    if len(seq.ids) > pool_tokens:
        raise ContextLengthError(
            f"prompt and continuations need {len(seq.ids)} tokens of KV cache, and the pool holds {pool_tokens}: "
            "score fewer at once, shorten the prompt or raise kv_tokens",
            limit=pool_tokens,
            tokens=len(seq.ids),
        )
    return seq


def _check_fields(request: EngineRequest) -> None:
    if not request.ids:
        raise ValueError("ids is empty: a request needs at least one token to continue")
    if request.max_tokens < 0:
        raise ValueError(f"max_tokens must be at least 0, not {request.max_tokens}")
    if request.continuations is not None and not request.continuations.tokens:
        raise ValueError("continuations is empty: give at least one token to score, or None")
    if request.max_tokens and request.continuations is not None:
        raise ValueError(f"continuations are scored alone: max_tokens must be 0, not {request.max_tokens}")
    if request.embed_from is not None:
        _check_embedding(request, request.embed_from)
    score_from = request.score_from
    if score_from is not None and not 1 <= score_from <= len(request.ids):
        raise ValueError(f"score_from must be between 1 and the prompt's {len(request.ids)} tokens, not {score_from}")


def _check_embedding(request: EngineRequest, embed_from: int) -> None:
    if not 0 <= embed_from < len(request.ids):
        raise ValueError(f"embed_from must be between 0 and the prompt's last token, {len(request.ids) - 1}")
    if request.max_tokens or request.continuations is not None:
        raise ValueError("an embedding is asked for alone: max_tokens must be 0, and continuations None")
