"""After a run: the plan's tree over what was really asked, and the backend's own counts."""

from __future__ import annotations

import pytest

import forktree as ft
from forktree.backend.fake import Fake
from forktree.lang.errors import LanguageError
from forktree.runtime.plan import Prices


@ft.function
def steps(s, question):
    s += f"one two {question}"
    s += ft.gen("first", max_tokens=3)
    s += " three" + ft.select("second", [" yes", " no way"])


ROWS = [{"question": "a"}, {"question": "b"}]
SCRIPT = {"first": " x y", "second": " yes"}


def test_the_report_counts_what_was_asked_and_what_came_back() -> None:
    report = ft.explain_run(steps.using(backend=Fake(SCRIPT)).map(ROWS))
    assert (report.num_rows, report.num_failed, report.num_requests) == (2, 0, 4)
    assert report.prompt_tokens == 2 * (3 + 6)
    assert report.cached_tokens == 0
    assert report.prefill_tokens == report.prompt_tokens
    assert report.decode_tokens == 2 * 2


def test_its_tree_is_the_plan_s_with_what_was_generated_in_its_place() -> None:
    plan = steps.explain(ROWS, backend=Fake([]))
    report = ft.explain_run(steps.using(backend=Fake(SCRIPT)).map(ROWS))
    (planned,), (real,) = plan.tree, report.tree
    assert (planned.num_tokens, real.num_tokens) == (2, 2)
    assert planned.num_requests == real.num_requests == 2 * 3
    # Of each row: its question, two generated words, "three", and the three words of the options.
    assert plan.distinct_tokens == 2 + 2 * (1 + 1 + 3)
    assert report.distinct_tokens == 2 + 2 * (1 + 2 + 1 + 3)
    shown = str(report)
    assert shown.startswith("run of steps: 2 rows, 4 requests\n  prefill  18 of 18 prompt tokens; 0% were cached\n")
    assert "gen first" in shown
    assert "select second" in shown
    assert report._repr_html_().startswith("<pre>")
    assert report.to_dict()["prefill_tokens"] == 18


def test_one_state_can_be_reported_too_with_what_it_called() -> None:
    @ft.function
    def outer(s):
        inner = steps("c")
        s += f"Seen: {inner['first']}" + ft.gen("last", max_tokens=1)

    report = ft.explain_run(outer.run(backend=Fake({**SCRIPT, "last": "ok"})))
    assert report.program == "outer"
    assert report.num_requests == 3


def test_a_failed_row_reports_what_it_got_and_a_replayed_one_asked_nothing(tmp_path) -> None:
    journal = tmp_path / "rows.db"
    script = Fake(lambda request: SCRIPT[request.name] if " a" in request.prompt else RuntimeError("no"))
    first = steps.using(backend=script).map(ROWS, journal=journal)
    report = ft.explain_run(first)
    assert (report.num_failed, report.num_replayed, report.num_requests) == (1, 0, 2)
    again = ft.explain_run(steps.using(backend=script).map(ROWS, journal=journal))
    assert (again.num_replayed, again.num_requests) == (1, 0)
    assert "2 rows (1 failed, 1 from the journal), 0 requests" in str(again)


def test_samples_are_requests_of_their_own() -> None:
    @ft.function
    def program(s):
        s += "a b" + ft.gen("x", n=3)

    report = ft.explain_run(program.run(backend=Fake(lambda request: "w")))
    assert (report.num_requests, report.prompt_tokens, report.distinct_tokens) == (3, 6, 2)


def test_the_price_takes_cached_tokens_at_their_own_rate() -> None:
    state = steps.run("a", backend=Fake(SCRIPT))
    prices = Prices(input=1e6, output=2e6, cached_input=5e5)
    assert ft.explain_run(state, prices=prices).price == 9 + 2 * 2
    assert ft.explain_run(state, prices={"input": 1e6, "output": 0}).price == 9
    shown = str(ft.explain_run(state, prices={"input": 1e6, "output": 0}))
    assert "price    9.0000, in the currency of the prices\n" in shown


def test_one_of_a_thing_is_not_many() -> None:
    @ft.function
    def program(s):
        s += "a" + ft.gen("x", max_tokens=1)

    report = str(ft.explain_run(program.run(backend=Fake(["b"])), prices={"input": 0.15, "output": 0.6}))
    assert report.startswith("run of program: 1 row, 1 request\n  prefill  1 of 1 prompt token; 0% were cached\n")
    assert "  decode   1 token\n" in report
    assert "  1 token ×1  gen x\n" in report
    assert "  price    0.00000075, in" in report


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(LanguageError, match="results of map or states"):
        ft.explain_run(["text"])
