"""The grammar benchmark: which texts stand for an instance, and what a schema costs that takes too long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forktree.benchmarks.grammar import Judge, Report, Verdict, counts_table, run_engine, times_table
from forktree.benchmarks.grammar_rows import Row, load_rows, written_forms

SCHEMA = {
    "type": "object",
    "properties": {"b": {"$ref": "#/$defs/pair"}, "a": {"type": "number"}},
    "$defs": {"pair": {"anyOf": [{"properties": {"y": {}, "x": {"const": 1}}}, {"properties": {"x": {}, "y": {}}}]}},
}


def test_an_instance_is_written_as_given_in_schema_order_and_with_plain_numbers() -> None:
    forms = written_forms({"extra": True, "a": 1.0, "b": {"x": 2, "y": 1e-7}}, SCHEMA)
    assert forms == (
        '{"extra":true,"a":1.0,"b":{"x":2,"y":1e-07}}',
        '{"extra":true,"a":1,"b":{"x":2,"y":0.0000001}}',
        '{"b":{"x":2,"y":1e-07},"a":1.0,"extra":true}',
        '{"b":{"x":2,"y":0.0000001},"a":1,"extra":true}',
    )


def test_keys_follow_the_branch_that_the_value_follows() -> None:
    assert '{"b":{"y":3,"x":1}}' in written_forms({"b": {"x": 1, "y": 3}}, SCHEMA)
    assert '{"b":{"y":3,"x":2}}' not in written_forms({"b": {"x": 2, "y": 3}}, SCHEMA)


def test_a_recursive_schema_and_a_dangling_reference_are_survived() -> None:
    tree = {"properties": {"z": {}, "kids": {"items": {"$ref": "#"}}}, "allOf": [{"$ref": "#/nowhere"}]}
    assert '{"z":0,"kids":[{"z":1,"kids":[]}]}' in written_forms({"kids": [{"kids": [], "z": 1}], "z": 0}, tree)


def test_a_line_without_a_schema_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"schema": {}}\n{"scheme": {}}\n')
    with pytest.raises(ValueError, match=r"rows.jsonl:2 is not a JSON object with a schema"):
        load_rows(path)


def test_tables_count_outcomes_and_give_quantiles() -> None:
    verdicts = [
        Verdict("a", "pass", first_mask_s=0.002, new_mask_s=[1e-6] * 3, cached_mask_s=[1e-6]),
        Verdict("b", "under", first_mask_s=0.004),
        Verdict("c", "refused", reason="no"),
    ]
    report = Report("e", verdicts, start_mb=10, peak_mb=20)
    assert list(counts_table([report]))[2] == "| e | 3 | 2 (66.7%) | 1 (33.3%) | 0 | 1 | 0 | 1 | 0 | 0 | 0 |"
    assert list(times_table([report]))[2] == "| e | 4 / 4 / 4 | 1 / 1 | 1 / 1 | 10 ready, 20 at most |"


@pytest.mark.model
def test_rows_are_judged_in_a_process_of_the_engine(model_dir: Path) -> None:
    valid = Row("good", {"type": "integer"}, valid=(("1",),), invalid=(('"x"',),))
    wrong = Row("wrong", {"type": "integer"}, valid=(('"x"',),), invalid=(("1",),))
    refused = Row("refused", {"type": "nothing"}, valid=(), invalid=())
    judge = Judge("forktree", str(model_dir), limit_s=30.0, walk_limit_s=30.0)
    run_engine(judge, [valid, wrong, refused])
    assert [verdict.outcome for verdict in judge.report.verdicts] == ["pass", "both", "refused"]
    assert judge.report.verdicts[0].first_mask_s is not None


class Script:
    """A worker that gives these answers; None is one that does not come in time, EOFError a death."""

    def __init__(self, *answers: dict[str, Any] | EOFError | None) -> None:
        self._answers = list(answers)
        self.is_stopped = False

    def ask(self, row: Row) -> None:
        del row

    def answer(self, limit_s: float) -> dict[str, Any] | None:
        del limit_s
        answer = self._answers.pop(0)
        if isinstance(answer, EOFError):
            raise answer
        return answer

    def stop(self) -> None:
        self.is_stopped = True


FIRST = {"event": "first_mask", "seconds": 0.1, "rss_mb": 10}


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [((None,), "timeout"), ((FIRST, None), "slow walk"), ((EOFError(),), "crash"), ((FIRST, EOFError()), "crash")],
)
def test_a_schema_that_takes_too_long_or_kills_costs_its_process(answers: tuple[Any, ...], outcome: str) -> None:
    judge = Judge("e", "m", limit_s=1.0, walk_limit_s=1.0)
    worker = Script(*answers)
    judge._worker = worker  # type: ignore[assignment]
    assert judge.judge(Row("r", {}, (), ())).outcome == outcome
    assert worker.is_stopped
    assert judge._worker is None


def test_a_row_ends_at_a_line_feed_and_at_no_other_line_end(tmp_path: Path) -> None:
    texts = ["a\u2028b", "a\u0085b", "a\x0cb"]
    file = tmp_path / "rows.jsonl"
    lines = [json.dumps({"schema": {"const": text}, "valid": [text]}, ensure_ascii=False) for text in texts]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert [row.schema["const"] for row in load_rows(file)] == texts
