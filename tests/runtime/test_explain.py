"""The plan of a batch, on prompts whose words a reader can count (a token of Fake is a word)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.fake import Fake
from forktree.lang.errors import LanguageError
from forktree.lang.expressions import gen, select
from forktree.lang.sampling import Sampling
from forktree.runtime.function import function
from forktree.runtime.plan import PlannedRequest, Prices, build_tree, count_distinct, count_prefill, priced
from forktree.runtime.protocol import Branch, PlannedPrompt, Text


@function
def few_shot(s, question):
    s += "one two three four"
    s += f" {question}"
    s += gen("answer", max_tokens=5)


ROWS = [{"question": "a b"}, {"question": "a c"}, {"question": "d"}]


def test_shared_and_distinct_tokens_are_counted() -> None:
    fake = Fake([])
    plan = few_shot.explain(ROWS, backend=fake)
    assert fake.num_requests == 0
    assert (plan.num_rows, plan.num_requests) == (3, 3)
    assert plan.requested_tokens == 6 + 6 + 5
    assert plan.distinct_tokens == 4 + 1 + 1 + 1 + 1
    assert plan.shared_tokens == 17 - 8
    assert plan.decode_tokens == 15
    assert not plan.is_bound


def test_the_tree_shows_what_is_shared_by_how_many() -> None:
    plan = few_shot.explain(ROWS, backend=Fake([]))
    (root,) = plan.tree
    assert (root.num_tokens, root.num_requests) == (4, 3)
    assert sorted((node.num_tokens, node.num_requests) for node in root.children) == [(1, 1), (1, 2)]
    shown = str(plan)
    assert "prefill  8 of 17 prompt tokens; 53% are shared" in shown
    assert "4 tokens ×3" in shown
    assert "gen answer" in shown
    assert plan._repr_html_().startswith("<pre>")
    assert plan.to_dict()["shared_tokens"] == 9


def test_the_plan_is_what_the_requests_turn_out_to_be() -> None:
    fake = Fake(lambda request: "x")
    plan = few_shot.explain(ROWS, backend=fake)
    results = few_shot.using(backend=fake).map(ROWS)
    assert sum(result.state.meta("answer").prompt_tokens for result in results) == plan.requested_tokens


def test_text_behind_a_generation_makes_the_figures_bounds() -> None:
    @function
    def two_steps(s, q):
        s += f"{q} one"
        s += gen("first", max_tokens=3)
        s += " two three"
        s += gen("second")

    plan = two_steps.explain([{"q": "a"}, {"q": "a"}], backend=Fake([]))
    assert plan.is_bound
    assert plan.decode_tokens is None
    assert plan.requested_tokens == 2 * (2 + 4)
    assert plan.distinct_tokens == 2 + 2 * 2
    assert "at least" in str(plan)
    assert "without a bound" in str(plan)


def test_forks_and_selects_are_part_of_the_tree() -> None:
    @function
    def program(s, q):
        s += f"{q} trunk"
        left, right = s.fork(2)
        left += " left" + gen("x", max_tokens=1, n=2)
        right += select("y", [" yes sir", " no"])

    plan = program.explain([{"q": "a"}], backend=Fake([]))
    assert plan.num_requests == 4
    assert plan.requested_tokens == 3 + 3 + 4 + 3
    assert plan.distinct_tokens == 2 + 1 + 2 + 1
    assert plan.decode_tokens == 2


def test_a_row_that_cannot_be_traced_to_its_end_is_planned_up_to_there() -> None:
    @function
    def agent(s, q):
        s += f"{q}" + gen("thought", max_tokens=4)
        if s["thought"] == "stop":
            s += "never"

    plan = agent.explain([{"q": "a"}], backend=Fake([]))
    assert plan.is_bound
    assert plan.num_requests == 1
    assert "decides" in plan.refused[0].reason or "compared" in plan.refused[0].reason


def test_rows_that_exceed_the_context_are_named() -> None:
    plan = few_shot.explain(ROWS, backend=Fake([]), max_context=6)
    assert [(refused.row, refused.label) for refused in plan.refused] == [(0, "gen answer"), (1, "gen answer")]
    assert "do not fit the context of 6" in str(plan)


class Planning(Fake):
    """Tells what it will compute: the last token of every prompt before a generation is withdrawn. Its cache holds
    `cached`, and its context ten tokens."""

    cached = ()

    async def plan_prompts(self, request):
        ids = await self.tokens(request.branch)
        if hasattr(request, "options"):
            return [PlannedPrompt((*ids, index), len(ids) - 1) for index, _ in enumerate(request.options)]
        return [PlannedPrompt(ids[:-1], len(ids) - 2)]

    async def count_cached(self, prompts):
        return [
            next(
                (i for i, pair in enumerate(zip(ids, self.cached, strict=False)) if pair[0] != pair[1]),
                min(len(ids), len(self.cached)),
            )
            for ids in prompts
        ]

    async def context_limit(self):
        return 10


def test_a_backend_that_knows_what_it_will_compute_is_asked() -> None:
    plan = few_shot.explain(ROWS, backend=Planning([]))
    assert plan.requested_tokens == 5 + 5 + 4
    assert plan.distinct_tokens == 4 + 1
    # The second row's prompt is the first's: its last token is computed again. So is that of the third.
    assert plan.prefill_tokens == 5 + 1 + 1

    @function
    def chosen(s):
        s += "one two" + select("x", ["a", "b c d"])

    plan = chosen.explain([{}], backend=Planning([]))
    assert plan.distinct_tokens == 2 + 2
    assert plan.prefill_tokens == 3 + 2  # the second option computes the row before it again


def test_what_is_cached_need_not_be_computed() -> None:
    backend = Planning([])
    cold = few_shot.explain(ROWS, backend=backend)
    backend.cached = asyncio.run(backend.tokens(Branch(None, Text("one two three four a"))))
    warm = few_shot.explain(ROWS, backend=backend)
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 5)
    assert warm.prefill_tokens == 1 + 1 + 1
    assert "5 are cached" in str(warm)
    assert "4 tokens (4 cached) ×3" in str(warm)
    assert warm.distinct_tokens == cold.distinct_tokens


def test_the_backend_s_context_refuses_rows_before_they_run() -> None:
    long = {"question": " ".join("abcdefgh")}
    plan = few_shot.explain([*ROWS, long], backend=Planning([]))
    assert [(refused.row, refused.reason) for refused in plan.refused] == [
        (3, "11 prompt tokens do not fit the context of 10")
    ]


@pytest.mark.parametrize("prices", [Prices(1e6, 2e6, 0.5e6), {"input": 1e6, "output": 2e6, "cached_input": 0.5e6}])
def test_the_price_counts_shared_tokens_at_the_cached_rate(prices) -> None:
    plan = few_shot.explain(ROWS, backend=Fake([]), prices=prices)
    assert plan.price == (8 + 9 * 0.5 + 15 * 2, 17 + 15 * 2)
    assert "price" in str(plan)


@pytest.mark.parametrize("row", [{"question": "a", "x": 1}, {}])
def test_rows_that_do_not_fit_are_a_type_error(row) -> None:
    with pytest.raises(TypeError):
        few_shot.explain([row], backend=Fake([]))


@pytest.mark.parametrize("rows", [["ab"], [["a"]], {"question": "a"}, [3], "ab", 3])
def test_what_map_refuses_as_a_row_the_plan_refuses_with_the_same_words(rows) -> None:
    with pytest.raises(LanguageError) as mapped:
        few_shot.using(backend=Fake([])).map(rows)
    with pytest.raises(LanguageError) as planned:
        few_shot.explain(rows, backend=Fake([]))
    assert str(planned.value) == str(mapped.value)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12))
def test_the_tree_has_one_token_for_each_distinct_prefix(prompts) -> None:
    requests = [PlannedRequest(0, "gen", tuple(ids), 1, True) for ids in prompts]
    prefixes = {tuple(ids[: n + 1]) for ids in prompts for n in range(len(ids))}
    assert count_distinct(build_tree(requests)) == len(prefixes)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=5), st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_prefill_is_what_no_earlier_prompt_left_in_the_cache(prompts) -> None:
    """Against a cache that is a set of prefixes."""
    requests, held, total = [], set(), 0
    for ids, num_cacheable, num_cached in prompts:
        limit, num_cached = min(num_cacheable, len(ids)), min(num_cached, len(ids))
        requests.append(PlannedRequest(0, "gen", tuple(ids), 1, True, limit, num_cached))
        match = max(n for n in range(len(ids) + 1) if n == 0 or tuple(ids[:n]) in held)
        total += len(ids) - min(max(match, num_cached), limit)
        held |= {tuple(ids[: n + 1]) for n in range(len(ids))}
    assert count_prefill(requests) == total


def test_what_a_run_would_use_by_default_counts() -> None:
    open_ended = few_shot_without_budget.explain(ROWS, backend=Fake([]))
    assert open_ended.decode_tokens is None
    settled = few_shot_without_budget.using(sampling=Sampling(max_tokens=5, n=2)).explain(ROWS, backend=Fake([]))
    assert (settled.decode_tokens, settled.num_requests) == (2 * 5 * len(ROWS), 2 * len(ROWS))
    by_row = few_shot_without_budget.explain(
        [{**ROWS[0], "sampling": Sampling(max_tokens=3), "seed": 1}], backend=Fake([])
    )
    assert by_row.decode_tokens == 3


@function
def few_shot_without_budget(s, question):
    s += f"Q: {question}\nA:" + gen("answer")


def test_the_printed_plan_marks_a_bound_as_one() -> None:
    assert "at least" not in str(few_shot.explain(ROWS, backend=Fake([])))

    @function
    def chat(s, question):
        s += f"{question}" + gen("a", max_tokens=3) + " and then" + gen("b", max_tokens=3)

    plan = chat.explain(ROWS, backend=Fake([]))
    assert plan.is_bound
    assert "prefill  at least" in str(plan)
    assert "decode   at most 18 tokens" in str(plan)
    assert plan.to_dict()["is_bound"] is True


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (0, "0.0000"),
        (12.5, "12.5000"),
        (0.0123, "0.0123"),
        (0.00099, "0.00099"),
        (0.0000126, "0.000013"),
        (1, "1.0000"),
    ],
)
def test_a_small_price_shows_two_significant_digits(amount, shown) -> None:
    assert priced(amount) == shown


def test_the_printed_plan_has_one_row_and_one_request_and_a_price_in_the_prices_currency() -> None:
    plan = few_shot.explain(ROWS[:1], backend=Fake([]), prices={"input": 0.15, "output": 0.6})
    assert str(plan).startswith("plan of few_shot: 1 row, 1 request\n")
    unit = "in the currency of the prices"
    assert f"price    at most 0.0000039 with shared prompts cached, 0.0000039 without, {unit}\n" in str(plan)


def test_a_react_loop_is_planned_up_to_what_only_a_run_can_know() -> None:
    @function
    def react(s, question):
        s += f"Question: {question}\n"
        for _ in range(3):
            s += "Thought:" + gen("thought", stop="\n", max_tokens=8)
            if "finish" in s["thought"]:
                break

    plan = react.explain(ROWS, backend=Fake([]))
    assert plan.is_bound
    assert plan.num_requests == len(ROWS)
    assert all("known up to here only" in refused.reason for refused in plan.refused)
    assert "test_explain.py" in plan.refused[0].reason
