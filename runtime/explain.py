"""`explain`: from rows to a `Plan`, by tracing each row and asking the backend only for token ids."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forktree.lang import ir
from forktree.lang.errors import UnsupportedError
from forktree.lang.program import Op
from forktree.lang.sampling import Sampling
from forktree.runtime import protocol
from forktree.runtime.executor import get_executor
from forktree.runtime.map import Row, check_rows, row_arguments
from forktree.runtime.plan import (
    Plan,
    PlannedRequest,
    Prices,
    Refused,
    build_tree,
    count_cached,
    count_distinct,
    count_prefill,
    price_of,
)
from forktree.runtime.run import Run
from forktree.runtime.trace import trace_as_far_as_possible

if TYPE_CHECKING:
    from forktree.runtime.function import Function

_CHARACTERS_PER_TOKEN = 4
_OUTSIDE = "explain outside of async programs"


def explain(
    program: Function,
    rows: Iterable[Row],
    backend: protocol.Backend,
    prices: Prices | Mapping[str, float] | None,
    max_context: int | None,
) -> Plan:
    """See `Function.explain`."""
    check_rows(rows)
    if prices is None:
        prices = getattr(backend, "prices", None)
    tokenizer = BranchTokenizer(backend)
    requests: list[PlannedRequest] = []
    refused: list[Refused] = []
    marks = itertools.count(-1, -1)
    num_rows = 0
    for index, row in enumerate(rows):
        num_rows += 1
        args, kwargs = row_arguments(row, index)
        arguments, options = program.arguments_of(kwargs)
        ops, stopped = trace_as_far_as_possible(program, args, arguments)
        walker = _Walker(index, tokenizer, marks, options.sampling)
        walker.walk(ops)
        requests += walker.requests
        if stopped is not None:
            refused.append(Refused(index, program.name, f"known up to here only: {stopped}"))
    requests = tokenizer.with_cached(requests)
    limit = tokenizer.context_limit() if max_context is None else max_context
    refused += _too_long(requests, limit)
    is_bound = tokenizer.is_estimate or any(not each.is_exact for each in requests) or _is_cut(refused)
    return _plan(program.name, num_rows, requests, tuple(refused), is_bound, prices)


def _is_cut(refused: list[Refused]) -> bool:
    return any(each.reason.startswith("known up to here") for each in refused)


def _too_long(requests: list[PlannedRequest], limit: int | None) -> list[Refused]:
    if limit is None:
        return []
    return [
        Refused(
            each.row, each.label, f"{each.num_known + each.num_behind} prompt tokens do not fit the context of {limit}"
        )
        for each in requests
        if each.num_known + each.num_behind + (each.max_tokens != 0) > limit  # a generation makes at least one
    ]


def _plan(
    name: str,
    num_rows: int,
    requests: list[PlannedRequest],
    refused: tuple[Refused, ...],
    is_bound: bool,
    prices: Prices | Mapping[str, float] | None,
) -> Plan:
    tree = build_tree(requests)
    budgets = [each.max_tokens for each in requests]
    decode = None if any(budget is None for budget in budgets) else sum(budget or 0 for budget in budgets)
    num_scratch = sum(each.num_scratch for each in requests)
    plan = Plan(
        name,
        num_rows,
        len(requests),
        sum(each.num_known for each in requests) + num_scratch,
        count_distinct(tree) + num_scratch,
        decode,
        is_bound,
        tree,
        refused,
        cached_tokens=count_cached(tree),
        prefill_tokens=count_prefill(requests),
    )
    return replace(plan, price=price_of(prices, plan))


class BranchTokenizer:
    """The backend's ids of a branch, or where it has none an estimate by length."""

    def __init__(self, backend: protocol.Backend) -> None:
        self._run = Run(get_executor(), backend, None, "explain")
        self.is_estimate = not backend.capabilities.tokens

    def ids(self, branch: protocol.Branch | None) -> tuple[int, ...]:
        if not self.is_estimate:
            try:
                return self._run.tokens(branch)
            except UnsupportedError:
                self.is_estimate = True
        text = "" if branch is None else branch.text()
        pieces = [text[i : i + _CHARACTERS_PER_TOKEN] for i in range(0, len(text), _CHARACTERS_PER_TOKEN)]
        return tuple(hash(piece) & 0x7FFFFFFF for piece in pieces)

    def prompts(self, request: protocol.GenerateRequest | protocol.ScoreRequest) -> list[protocol.PlannedPrompt]:
        """What the request makes the backend compute, as the backend tells (see `protocol.Planner`), or by its ids."""
        plan = getattr(self._run.backend, "plan_prompts", None)
        if plan is not None:
            return list(self._run.ask(plan(request), instead=_OUTSIDE))
        texts = request.options if isinstance(request, protocol.ScoreRequest) else ("",)
        branches = [protocol.Branch(request.branch, protocol.Text(text)) if text else request.branch for text in texts]
        return [protocol.PlannedPrompt(ids, max(0, len(ids) - 1)) for ids in map(self.ids, branches)]

    def context_limit(self) -> int | None:
        """The length of the context, where the backend can tell."""
        limit = getattr(self._run.backend, "context_limit", None)
        return None if limit is None else self._run.ask(limit(), instead=_OUTSIDE)

    def with_cached(self, requests: list[PlannedRequest]) -> list[PlannedRequest]:
        """The requests with what the backend's cache holds of each, where the backend can tell."""
        count = getattr(self._run.backend, "count_cached", None)
        if count is None or not requests:
            return requests
        known = [tuple(itertools.takewhile(lambda token: token >= 0, each.ids)) for each in requests]
        counts = self._run.ask(count(known), instead=_OUTSIDE)
        return [replace(each, num_cached=num) for each, num in zip(requests, counts, strict=True)]


@dataclass(slots=True)
class _End:
    """Where a branch of the plan stands.

    Attributes:
        before: ids up to the last generation, its mark included; `num_before` of the backend's ids are in them.
        is_exact: everything so far is known.
    """

    branch: protocol.Branch | None
    before: tuple[int, ...] = ()
    num_before: int = 0
    is_exact: bool = True


class _Walker:
    """Follows one row's operations and notes each request."""

    def __init__(self, row: int, tokenizer: BranchTokenizer, marks: Iterator[int], defaults: Sampling | None) -> None:
        self._row = row
        self._defaults = defaults
        self._tokenizer = tokenizer
        self._marks = marks
        self._ends = {0: _End(None)}
        self.requests: list[PlannedRequest] = []

    def walk(self, ops: Iterable[Op]) -> None:
        for op in ops:
            self._step(self._ends[op.branch], op.node)

    def _step(self, end: _End, node: ir.Node) -> None:
        match node:
            case ir.Text():
                end.branch = protocol.Branch(end.branch, protocol.Text(node.text, node.markup))
            case ir.RoleBegin():
                end.branch = protocol.Branch(end.branch, protocol.RoleBegin(node.role))
            case ir.RoleEnd():
                end.branch = protocol.Branch(end.branch, protocol.RoleEnd(node.role))
            case ir.Tools():
                end.branch = protocol.Branch(end.branch, protocol.Tools(node.definitions))
            case ir.Image():
                end.branch = protocol.Branch(end.branch, protocol.Image(node.data, node.media_type))
            case ir.Argument() | ir.Variable():
                self._make_unknown(end, protocol.Text(""))
            case ir.Gen():
                self._generate(end, node)
            case ir.Select():
                self._select(end, node)
            case ir.Fork(branches=branches):
                trunk = None if end.branch is None else protocol.Branch(end.branch, protocol.ForkMark())
                for child in branches:
                    self._ends[child] = _End(trunk, end.before, end.num_before, end.is_exact)
            case ir.Call(branch=branch):
                self._ends[branch] = _End(None)
            case ir.Join():
                if node.brings_text:
                    self._make_unknown(end, protocol.Text(""))
            case ir.ScopeBegin() | ir.ScopeEnd() | ir.Assign():
                pass

    def _ids(self, end: _End, branch: protocol.Branch | None) -> tuple[int, ...]:
        return (*end.before, *self._tokenizer.ids(branch)[end.num_before :])

    def _note(self, end: _End, label: str, prompt: protocol.PlannedPrompt, max_tokens: int | None) -> None:
        self.requests.append(
            PlannedRequest(
                self._row,
                label,
                prompt.ids,
                max_tokens,
                end.is_exact,
                prompt.num_cacheable,
                num_scratch=prompt.num_scratch,
                num_behind=prompt.num_behind,
            )
        )

    def _generate(self, end: _End, node: ir.Gen) -> None:
        label = f"gen {node.name or ''}".rstrip()
        if end.is_exact:
            request = protocol.GenerateRequest(branch=end.branch, heal=node.heal, name=node.name)
            (prompt,) = self._tokenizer.prompts(request)
        else:
            prompt = protocol.PlannedPrompt(ids := self._ids(end, end.branch), max(0, len(ids) - 1))
        sampling = node.sampling if self._defaults is None else node.sampling.over(self._defaults)
        for _ in range(sampling.n or 1):
            self._note(end, label, prompt, sampling.max_tokens)
        self._make_unknown(end, protocol.Generated(""))

    def _select(self, end: _End, node: ir.Select) -> None:
        label = f"select {node.name or ''}".rstrip()
        options = tuple(dict.fromkeys(node.options))
        branches = [protocol.Branch(end.branch, protocol.Text(option)) for option in options]
        if end.is_exact:
            is_relative = node.method == "unconditional_likelihood_normalized"
            request = protocol.ScoreRequest(
                branch=end.branch, options=options, unconditional=is_relative, name=node.name
            )
            for prompt in self._tokenizer.prompts(request):
                self._note(end, label, prompt, 0)
        else:
            for branch in branches:
                ids = self._ids(end, branch)
                self._note(end, label, protocol.PlannedPrompt(ids, max(0, len(ids) - 1)), 0)
        if len(options) == 1:
            end.branch = branches[0]
        else:
            self._make_unknown(end, protocol.Generated(""))

    def _make_unknown(self, end: _End, segment: protocol.Segment) -> None:
        """From here on the branch holds text that only a run knows: one mark, shared by nobody else."""
        ids = self._ids(end, end.branch)
        end.branch = protocol.Branch(end.branch, segment)
        end.before = (*ids, next(self._marks))
        end.num_before = len(self._tokenizer.ids(end.branch))
        end.is_exact = False
