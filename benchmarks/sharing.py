"""How much of what programs asked for was shared, beside the most that could have been.

The prompts that a run really had form a tree of tokens, and what the model wrote lies in the same tree. A token of a
prompt has to be computed once for all prompts that begin alike, and never where the model itself wrote it. Whatever
a cache holds, a request computes the last token of its prompt (its logits are wanted) and the options of a select;
and the last token of an output that was cut by its length was drawn but never fed. All else is what the best cache
and the best order could spare.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forktree.runtime.explain import BranchTokenizer
from forktree.runtime.protocol import (
    Backend,
    Completion,
    Delta,
    GenerateRequest,
    PlannedPrompt,
    ScoreRequest,
    ScoreResult,
)


class Sharing(NamedTuple):
    """Prompt tokens: asked for, computed, and the fewest that could have been computed."""

    requested: int
    computed: int
    least: int

    @property
    def hit_rate(self) -> float:
        """The share that was not computed."""
        return 1 - self.computed / max(1, self.requested)

    @property
    def best_rate(self) -> float:
        """The largest share that could have been spared."""
        return 1 - self.least / max(1, self.requested)


class Written(NamedTuple):
    """A whole context; the tokens from `start` on were made, and computed, by a generation."""

    ids: tuple[int, ...]
    start: int


@dataclass(slots=True, eq=False)
class _Node:
    """A token behind all before it. `num_own` requests compute it for themselves, whatever a cache holds."""

    children: dict[int, _Node] = field(default_factory=dict)
    num_own: int = 0
    is_asked: bool = False
    is_written: bool = False

    def along(self, ids: Sequence[int]) -> list[_Node]:
        """The nodes of these tokens, made where they are missing."""
        nodes, node = [], self
        for token in ids:
            node = node.children.setdefault(token, _Node())
            nodes.append(node)
        return nodes


def count_least(prompts: Iterable[PlannedPrompt], written: Iterable[Written]) -> int:
    """The fewest prompt tokens that requests with these prompts compute, when nothing is cached at first."""
    root, asked, total = _Node(), list[_Node](), 0
    for prompt in prompts:
        total += prompt.num_scratch
        for index, node in enumerate(root.along(prompt.ids)):
            node.num_own += index >= prompt.num_cacheable
            if not node.is_asked:
                node.is_asked = True
                asked.append(node)
    for ids, start in written:
        for node in root.along(ids)[start:]:
            node.is_written = True
    return total + sum(node.num_own or not node.is_written for node in asked)


class Tap:
    """A backend that notes what it was asked, and what it generated, on the way to another."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._generated: list[tuple[GenerateRequest, Completion]] = []
        self._scored: list[ScoreRequest] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def stream(self, request: GenerateRequest) -> AsyncIterator[Delta | Completion]:
        """As the other's."""
        async with aclosing(self._backend.stream(request)) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Completion):
                    self._generated.append((request, event))
                yield event

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """As the other's."""
        self._scored.append(request)
        return await self._backend.score(request)

    def clear(self) -> None:
        """Forget what was noted."""
        self._generated.clear()
        self._scored.clear()

    def least_prefill(self) -> int:
        """The fewest prompt tokens that the other could have computed for all that was noted."""
        tokenizer = BranchTokenizer(self._backend)
        prompts = [prompt for request in self._scored for prompt in tokenizer.prompts(request)]
        written = []
        for request, completion in self._generated:
            found = tokenizer.prompts(request)
            prompts += found
            made = completion.segment.ids
            fed = made[:-1] if completion.finish_reason == "length" else made
            written += [Written(prompt.ids + fed, len(prompt.ids)) for prompt in found]
        return count_least(prompts, written)
