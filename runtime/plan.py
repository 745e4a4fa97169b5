"""`Plan`: what a batch of programs would ask for, before anything runs.

The prompts of all requests form a prefix tree over tokens. Its size is what must be computed once; the sum of the
prompts is what is asked for. Text behind a generation counts as soon as it is known; what the model will write
has no tokens yet, only a budget. A figure that depends on such text is a bound, and says so.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of one row.

    Attributes:
        label: what asks, such as "gen receipt".
        ids: known tokens of the prompt, in order; a negative number stands for one generated stretch.
        max_tokens: most tokens to generate; None is open, 0 for a select.
        is_exact: every token of the prompt is known.
    """

    row: int
    label: str
    ids: tuple[int, ...]
    max_tokens: int | None
    is_exact: bool

    @property
    def num_known(self) -> int:
        """Known tokens of the prompt."""
        return sum(token >= 0 for token in self.ids)


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A stretch of tokens that the same requests share.

    Attributes:
        num_requests: how many prompts pass through.
        labels: what asks where a prompt ends here, with its count.
    """

    num_tokens: int
    num_requests: int
    labels: tuple[tuple[str, int], ...]
    children: tuple[PlanNode, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that cannot fit, or a row that could not be traced to its end."""

    row: int
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Prices:
    """What a paid backend takes for a million tokens, in any currency."""

    input: float
    output: float
    cached_input: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module.

    Attributes:
        requested_tokens: known prompt tokens of all requests together.
        distinct_tokens: nodes of the prefix tree, which is the prefill of a cold cache that can hold it.
        decode_tokens: most tokens to generate; None when a generation has no budget.
        is_bound: some text is known only when the programs run, so that the figures are bounds.
        price: of everything with every shared token paid once at the cached rate, and without sharing.
    """

    program: str
    num_rows: int
    num_requests: int
    requested_tokens: int
    distinct_tokens: int
    decode_tokens: int | None
    is_bound: bool
    tree: tuple[PlanNode, ...]
    refused: tuple[Refused, ...] = ()
    price: tuple[float, float] | None = None

    @property
    def shared_tokens(self) -> int:
        """Prompt tokens that are asked for again after they were computed."""
        return self.requested_tokens - self.distinct_tokens

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        about = "at least " if self.is_bound else ""
        share = self.shared_tokens / self.requested_tokens if self.requested_tokens else 0.0
        yield f"plan of {self.program}: {self.num_rows} rows, {self.num_requests} requests"
        prompt = f"{about}{self.distinct_tokens} of {self.requested_tokens} prompt tokens"
        decode = "without a bound" if self.decode_tokens is None else f"at most {self.decode_tokens} tokens"
        yield f"  prefill  {prompt}; {share:.0%} are shared"
        yield f"  decode   {decode}"
        if self.price is not None:
            yield f"  price    at most {self.price[0]:.4f} with shared prompts cached, {self.price[1]:.4f} without"
        for node in self.tree:
            yield from _node_lines(node, 1)
        for refused in self.refused:
            yield f"  row {refused.row}, {refused.label}: {refused.reason}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "shared_tokens": self.shared_tokens}


def _node_lines(node: PlanNode, depth: int) -> Iterator[str]:
    labels = ", ".join(label if count == 1 else f"{label} ×{count}" for label, count in node.labels)
    yield f"{'  ' * depth}{node.num_tokens} tokens ×{node.num_requests}{'  ' + labels if labels else ''}"
    for child in node.children:
        yield from _node_lines(child, depth + 1)


def build_tree(requests: Sequence[PlannedRequest]) -> tuple[PlanNode, ...]:
    """The prefix tree of the prompts; a node is as long as its requests agree."""
    ordered = sorted(requests, key=lambda request: request.ids)
    return tuple(_grow(ordered, 0))


def _grow(requests: Sequence[PlannedRequest], depth: int) -> Iterator[PlanNode]:
    start = 0
    while start < len(requests):
        if len(requests[start].ids) == depth:  # ends where its parent ends, and is counted there
            start += 1
            continue
        end = start
        while end < len(requests) and requests[end].ids[depth] == requests[start].ids[depth]:
            end += 1
        group = requests[start:end]
        # Sorted, so that the first and the last differ as early as any two.
        length = _common(group[0].ids, group[-1].ids)
        labels: dict[str, int] = {}
        for request in group:
            if len(request.ids) == length:
                labels[request.label] = labels.get(request.label, 0) + 1
        num_tokens = sum(token >= 0 for token in group[0].ids[depth:length])
        yield PlanNode(num_tokens, len(group), tuple(labels.items()), tuple(_grow(group, length)))
        start = end


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return index
    return min(len(one), len(two))


def count_distinct(tree: Sequence[PlanNode]) -> int:
    """Known tokens in the tree."""
    return sum(node.num_tokens + count_distinct(node.children) for node in tree)


def price_of(prices: Prices | Mapping[str, float] | None, plan: Plan) -> tuple[float, float] | None:
    """The most that the plan costs: with every shared token at the cached rate, and without any cache."""
    if prices is None or plan.decode_tokens is None:
        return None
    if not isinstance(prices, Prices):
        prices = Prices(**prices)
    cached = prices.input if prices.cached_input is None else prices.cached_input
    output = plan.decode_tokens * prices.output
    shared = plan.distinct_tokens * prices.input + plan.shared_tokens * cached
    return (shared + output) / 1e6, (plan.requested_tokens * prices.input + output) / 1e6
