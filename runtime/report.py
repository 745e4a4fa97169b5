"""`explain_run`: the tree of what a batch of programs really asked for, as its plan foretold it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from forktree.lang.errors import LanguageError
from forktree.runtime import protocol
from forktree.runtime.explain import BranchTokenizer
from forktree.runtime.map import Result
from forktree.runtime.plan import (
    PlannedRequest,
    PlanNode,
    Prices,
    build_tree,
    count_distinct,
    counted,
    node_lines,
    priced,
)
from forktree.runtime.record import Answered
from forktree.runtime.state import State


@dataclass(frozen=True, slots=True)
class RunReport:
    """What ran. Counts of tokens are the backend's own, `distinct_tokens` the tree's.

    Attributes:
        num_requests: answered ones; those that failed or were cancelled are not in the figures.
        prompt_tokens: of all requests, an option of a select counted by what was scored of it.
        cached_tokens: those of them that the backend did not compute again.
        decode_tokens: generated.
        price: at the prices given, else at the backend's own; None without.
        saved_tokens: prompt tokens, at least, that API speculation did not have to send.
    """

    program: str
    num_rows: int
    num_failed: int
    num_replayed: int
    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    decode_tokens: int
    distinct_tokens: int
    tree: tuple[PlanNode, ...]
    price: float | None = None
    saved_tokens: int = 0

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that were computed."""
        return self.prompt_tokens - self.cached_tokens

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        share = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        ends = [f"{self.num_failed} failed"] if self.num_failed else []
        ends += [f"{self.num_replayed} from the journal"] if self.num_replayed else []
        rows = f"{counted(self.num_rows, 'row')}{' (' + ', '.join(ends) + ')' if ends else ''}"
        yield f"run of {self.program}: {rows}, {counted(self.num_requests, 'request')}"
        prompt = f"{self.prefill_tokens} of {counted(self.prompt_tokens, 'prompt token')}"
        yield f"  prefill  {prompt}; {share:.0%} were cached"
        yield f"  decode   {counted(self.decode_tokens, 'token')}"
        if self.saved_tokens:
            yield f"  saved    at least {counted(self.saved_tokens, 'prompt token')} by speculation"
        if self.price is not None:
            yield f"  price    {priced(self.price)}, in the currency of the prices"
        for node in self.tree:
            yield from node_lines(node, 1)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "prefill_tokens": self.prefill_tokens}


def explain_run(
    results: Iterable[Result | State] | Result | State,
    *,
    prices: Prices | Mapping[str, float] | None = None,
) -> RunReport:
    """What these runs asked for and got: results of `map`, or finished states.

    The backend that answered is asked for token ids once more, so it must still be open. Without `prices`, those of
    the backends that answered count, where they have them (`protocol.Priced`).

    Raises:
        LanguageError: something that is neither.
    """
    items = [results] if isinstance(results, Result | State) else list(results)
    states = [_state_of(item) for item in items]
    names = list(dict.fromkeys(state._run.recorder.name for state in states if state is not None))
    answers = [list(state._run.recorder.answers) if state is not None else [] for state in states]
    every = [answer for row in answers for answer in row]
    scored = sum(each.usage.completion_tokens for each in every if isinstance(each.request, protocol.ScoreRequest))
    prompt = sum(each.usage.prompt_tokens for each in every) + scored
    cached = sum(each.usage.cached_tokens for each in every)
    decode = sum(each.usage.completion_tokens for each in every) - scored
    tree = build_tree(_prompts(answers))
    return RunReport(
        program=", ".join(names),
        num_rows=len(items),
        num_failed=sum(isinstance(item, Result) and not item.ok for item in items),
        num_replayed=sum(isinstance(item, Result) and item.replayed for item in items),
        num_requests=len(every),
        prompt_tokens=prompt,
        cached_tokens=cached,
        decode_tokens=decode,
        distinct_tokens=count_distinct(tree),
        tree=tree,
        price=_price_of_all(every) if prices is None else _price(prices, prompt - cached, cached, decode),
        saved_tokens=sum(each.saved_tokens for each in every),
    )


def _state_of(item: Any) -> State | None:
    if isinstance(item, Result):
        return item.state
    if isinstance(item, State):
        return item
    raise LanguageError(f"explain_run takes results of map or states, not {item!r}")


def _prompts(rows: list[list[Answered]]) -> list[PlannedRequest]:
    """Every request's real prompts; an option of a select is one."""
    tokenizers: dict[int, BranchTokenizer] = {}
    prompts = []
    for index, answers in enumerate(rows):
        for backend, request, *_ in answers:
            tokenizer = tokenizers.get(id(backend))
            if tokenizer is None:
                tokenizer = tokenizers[id(backend)] = BranchTokenizer(backend)
            verb = "select" if isinstance(request, protocol.ScoreRequest) else "gen"
            label = f"{verb} {request.name or ''}".rstrip()
            prompts += [PlannedRequest(index, label, each.ids, None, True) for each in tokenizer.prompts(request)]
    return prompts


def _price_of_all(answers: Iterable[Answered]) -> float | None:
    """What they cost at the prices of the backends that gave them; None where one has none."""
    total, is_priced = 0.0, False
    for each in answers:
        prices = getattr(each.backend, "prices", None)
        if prices is None:
            return None
        usage, is_priced = each.usage, True
        scored = usage.completion_tokens if isinstance(each.request, protocol.ScoreRequest) else 0
        computed = usage.prompt_tokens - usage.cached_tokens + scored
        total += _price(prices, computed, usage.cached_tokens, usage.completion_tokens - scored)
    return total if is_priced else None


def _price(prices: Prices | Mapping[str, float], computed: int, cached: int, decoded: int) -> float:
    table = prices if isinstance(prices, Prices) else Prices(**prices)
    cached_price = table.input if table.cached_input is None else table.cached_input
    return (computed * table.input + cached * cached_price + decoded * table.output) / 1e6
