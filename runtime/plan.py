"""`Plan`: what a batch of programs would ask for, before anything runs.

The prompts of all requests form a prefix tree over tokens. Its size is what must be computed once; the sum of the
prompts is what is asked for. Text behind a generation counts as soon as it is known; what the model will write
has no tokens yet, only a budget. A figure that depends on such text is a bound, and says so.
"""

from __future__ import annotations

import html
import itertools
import math
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
        num_cacheable: of the first tokens, how many may come from a cache; None is all but the last.
        num_cached: of the first tokens, how many the backend's cache holds now.
        num_scratch, num_behind: see `protocol.PlannedPrompt`.
    """

    row: int
    label: str
    ids: tuple[int, ...]
    max_tokens: int | None
    is_exact: bool
    num_cacheable: int | None = None
    num_cached: int = 0
    num_scratch: int = 0
    num_behind: int = 0

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
        num_cached: how many of the tokens the backend's cache holds now.
    """

    num_tokens: int
    num_requests: int
    labels: tuple[tuple[str, int], ...]
    children: tuple[PlanNode, ...]
    num_cached: int = 0


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
        requested_tokens: known prompt tokens of all requests together, what is computed of options among them.
        distinct_tokens: nodes of the prefix tree, and what is computed of options.
        cached_tokens: those of them that the backend's cache holds now.
        prefill_tokens: what is left to compute, when requests come in the order of the rows and the cache can hold
            them all: distinct tokens that are not cached, and those that are computed again for their logits.
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
    cached_tokens: int = 0
    prefill_tokens: int = 0

    @property
    def shared_tokens(self) -> int:
        """Prompt tokens that are asked for again after they were computed."""
        return self.requested_tokens - self.distinct_tokens

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        about = "at least " if self.is_bound else ""
        share = self.shared_tokens / self.requested_tokens if self.requested_tokens else 0.0
        yield f"plan of {self.program}: {counted(self.num_rows, 'row')}, {counted(self.num_requests, 'request')}"
        prompt = f"{about}{self.prefill_tokens} of {counted(self.requested_tokens, 'prompt token')}"
        cached = f", {self.cached_tokens} {'is' if self.cached_tokens == 1 else 'are'} cached"
        cached = cached if self.cached_tokens else ""
        decode = "without a bound" if self.decode_tokens is None else f"at most {counted(self.decode_tokens, 'token')}"
        yield f"  prefill  {prompt}; {share:.0%} are shared{cached}"
        yield f"  decode   {decode}"
        if self.price is not None:
            shared, alone = map(priced, self.price)
            unit = "in the currency of the prices"
            yield f"  price    at most {shared} with shared prompts cached, {alone} without, {unit}"
        for node in self.tree:
            yield from node_lines(node, 1)
        for refused in self.refused:
            yield f"  row {refused.row}, {refused.label}: {refused.reason}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "shared_tokens": self.shared_tokens}


def counted(number: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def priced(amount: float) -> str:
    """Four decimals, and as many more as it takes to see two significant digits."""
    places = 1 - math.floor(math.log10(amount)) if amount > 0 else 0
    return f"{amount:.{max(4, places)}f}"


def node_lines(node: PlanNode, depth: int) -> Iterator[str]:
    """A node and what is below it, one line each."""
    labels = ", ".join(label if count == 1 else f"{label} ×{count}" for label, count in node.labels)
    length = counted(node.num_tokens, "token")
    cached = f" ({node.num_cached} cached)" if node.num_cached else ""
    yield f"{'  ' * depth}{length}{cached} ×{node.num_requests}{'  ' + labels if labels else ''}"
    for child in node.children:
        yield from node_lines(child, depth + 1)


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
        num_cached = max(0, min(max(each.num_cached for each in group), length) - depth)
        yield PlanNode(num_tokens, len(group), tuple(labels.items()), tuple(_grow(group, length)), num_cached)
        start = end


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return index
    return min(len(one), len(two))


def count_distinct(tree: Sequence[PlanNode]) -> int:
    """Known tokens in the tree."""
    return sum(node.num_tokens + count_distinct(node.children) for node in tree)


def count_cached(tree: Sequence[PlanNode]) -> int:
    """Tokens in the tree that the backend's cache holds."""
    return sum(node.num_cached + count_cached(node.children) for node in tree)


def count_prefill(requests: Sequence[PlannedRequest]) -> int:
    """Known tokens to compute, when the requests come in this order and each leaves its prompt in the cache."""
    matches = _longest_earlier(requests)
    total = 0
    for request, match in zip(requests, matches, strict=True):
        limit = max(0, len(request.ids) - 1) if request.num_cacheable is None else request.num_cacheable
        start = min(max(match, request.num_cached), limit)
        total += sum(token >= 0 for token in request.ids[start:]) + request.num_scratch
    return total


def _longest_earlier(requests: Sequence[PlannedRequest]) -> list[int]:
    """For each request, how long a beginning of its prompt some earlier prompt has.

    In sorted order the prompt that agrees longest is the nearest one. Taking requests out from the last to the
    first leaves, around each, only earlier ones; what two agree on is the least that neighbours between them do.
    """
    order = sorted(range(len(requests)), key=lambda index: requests[index].ids)
    after = dict(itertools.pairwise(order))
    before = {two: one for one, two in after.items()}
    agreed = {two: _common(requests[one].ids, requests[two].ids) for two, one in before.items()}  # with `before`
    longest = [0] * len(requests)
    for index in range(len(requests) - 1, -1, -1):
        one, two = before.pop(index, None), after.pop(index, None)
        left = agreed.pop(index, 0)
        right = 0 if two is None else agreed[two]
        longest[index] = max(left, right)
        if one is not None:
            after.pop(one)
            if two is not None:
                after[one] = two
        if two is not None:
            before.pop(two)
            agreed.pop(two)
            if one is not None:
                before[two], agreed[two] = one, min(left, right)
    return longest


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
