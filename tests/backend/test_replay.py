"""Recording a run, and replaying it exactly."""

from __future__ import annotations

import pytest

from forktree.backend.fake import Fake
from forktree.backend.replay import Replay
from forktree.lang.errors import BackendError, RateLimitError
from forktree.lang.expressions import assistant, gen, image, select, user
from forktree.runtime.function import function


@function
def program(s, q):
    s += user(q)
    left, right = s.fork(2)
    left += assistant(gen("a", max_tokens=8, temperature=0.7, n=2))
    right += assistant("It is " + select("b", ["x", "y"]))
    s.join(left, right)
    s += f"{s['a'][0]} {s['b']}" + gen("c", choices=["one", "two"])
    return s["c"], s.tokens()


SCRIPT = {"a": ["first sample", "second sample"], "b": "y", "c": "two"}


def record(path, script=SCRIPT, q="why?"):
    with Replay(path, Fake(script)) as recording:
        return program.run(q, backend=recording)


def test_a_replay_gives_the_recorded_run_again_and_asks_nobody(tmp_path) -> None:
    path = tmp_path / "run.jsonl"
    before = record(path)
    replay = Replay(path)
    after = program.run("why?", backend=replay)
    assert after.ret_value == before.ret_value
    assert after.variables() == before.variables()
    assert after.text() == before.text()
    assert after.meta("b") == before.meta("b")
    assert after.program == before.program
    assert replay.num_unused == 1  # the tokens, which may be asked for again and again


def test_streaming_replays_piece_by_piece(tmp_path) -> None:
    path = tmp_path / "run.jsonl"

    @function
    def streamed(s):
        s += gen("x")

    with Replay(path, Fake(["one two three"])) as recording:
        streamed.run(backend=recording)
    assert list(streamed.stream(backend=Replay(path)).text_iter("x")) == ["one", " two", " three"]


@pytest.mark.parametrize(
    ("question", "options", "message"),
    [
        ("why not?", {}, "differs at character 3: recorded '.*', now ' not"),
        ("why?", {"seed": 5}, "other sampling"),
    ],
)
def test_the_first_divergence_is_an_error_that_shows_it(tmp_path, question, options, message) -> None:
    path = tmp_path / "run.jsonl"
    record(path)
    with pytest.raises(BackendError, match=rf"diverges from .*run\.jsonl.*{message}"):
        program.run(question, backend=Replay(path), **options)


def test_a_request_of_a_name_that_was_not_recorded_says_so(tmp_path) -> None:
    path = tmp_path / "run.jsonl"
    record(path)

    @function
    def other(s):
        s += "x" + gen("other")

    with pytest.raises(BackendError, match="'other' was not recorded"):
        other.run(backend=Replay(path))


def test_a_request_made_more_often_than_recorded_says_so(tmp_path) -> None:
    path = tmp_path / "run.jsonl"

    @function
    def once(s):
        s += "x" + gen("a")

    with Replay(path, Fake(["1"])) as recording:
        once.run(backend=recording)
    replay = Replay(path)
    once.run(backend=replay)
    with pytest.raises(BackendError, match="more often than it was recorded"):
        once.run(backend=replay)


def test_equal_requests_get_their_answers_in_order(tmp_path) -> None:
    path = tmp_path / "run.jsonl"

    @function
    def again(s):
        s += "x" + gen("a", temperature=1.0)
        return s["a"]

    with Replay(path, Fake(["1", "2"])) as recording:
        assert [again.run(backend=recording).ret_value for _ in range(2)] == ["1", "2"]
    replay = Replay(path)
    assert [again.run(backend=replay).ret_value for _ in range(2)] == ["1", "2"]


def test_recorded_errors_are_raised_again_as_their_kind(tmp_path) -> None:
    path = tmp_path / "run.jsonl"

    @function
    def failing(s):
        s += "x" + gen("a")

    with Replay(path, Fake([RateLimitError("slow down")])) as recording, pytest.raises(RateLimitError):
        failing.run(backend=recording)
    with pytest.raises(RateLimitError, match="slow down"):
        failing.run(backend=Replay(path))


def test_images_are_part_of_a_request(tmp_path) -> None:
    path = tmp_path / "run.jsonl"

    @function
    def look(s, content):
        s += image(content) + gen("a")

    with Replay(path, Fake(["1"])) as recording:
        look.run(b"\x89PNG\r\n\x1a\none", backend=recording)
    assert look.run(b"\x89PNG\r\n\x1a\none", backend=Replay(path))["a"] == "1"
    with pytest.raises(BackendError, match="diverges"):
        look.run(b"\x89PNG\r\n\x1a\ntwo", backend=Replay(path))


@pytest.mark.parametrize("content", ["", "not json\n", '{"format": "other"}\n', "[]\n"])
def test_a_file_that_is_no_recording_is_refused(tmp_path, content) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(content)
    with pytest.raises(BackendError, match="is not a recording"):
        Replay(path)


def test_a_missing_file_says_how_to_record_it(tmp_path) -> None:
    with pytest.raises(BackendError, match="record it with"):
        Replay(tmp_path / "none.jsonl")


def test_samples_of_one_generation_replay_too(tmp_path) -> None:
    @function
    def program(s):
        s += gen("x", n=3)

    path = tmp_path / "samples.jsonl"
    with Replay(path, Fake(lambda request: f"sample {request.sample_index}")) as recording:
        first = program.run(backend=recording)["x"]
    assert program.run(backend=Replay(path))["x"] == first == ["sample 0", "sample 1", "sample 2"]


class Planned(Fake):
    """Says how long its context is."""

    async def context_limit(self) -> int:
        return 3

    def stats(self) -> str:
        return "counted"


def test_what_only_the_recorded_backend_offers_is_there_while_it_is_recorded(tmp_path) -> None:
    path = tmp_path / "run.jsonl"
    with Replay(path, Planned(["x"])) as recording:
        plan = program.explain([("a b c d e f",)], backend=recording)
        assert "do not fit the context of 3" in str(plan)
        assert recording.stats() == "counted"
    with pytest.raises(AttributeError, match="Replay of Fake has no 'stats'"):
        Replay(path).stats()


def test_a_replay_answers_any_thread_without_the_loop(tmp_path) -> None:
    path = tmp_path / "run.jsonl"

    @function
    def one(s, i):
        s += f"{i}" + gen("x", max_tokens=3)
        return s["x"]

    rows = [(i,) for i in range(20)]
    with Replay(path, Fake(lambda request: f"no. {request.prompt}")) as recording:
        recorded = [result.value for result in one.using(backend=recording).map(rows)]
    replay = Replay(path)
    assert [result.value for result in one.using(backend=replay).map(rows)] == recorded
    assert replay.num_unused == 0


@pytest.mark.parametrize("num_left", [1, 20, -2])
def test_a_recording_that_was_killed_in_a_line_replays_the_lines_before_it(tmp_path, caplog, num_left) -> None:
    @function
    def asks(s, q):
        s += f"{q}" + gen("x")
        return s["x"]

    path = tmp_path / "run.jsonl"
    with Replay(path, Fake(["one", "zwei é"])) as recording:
        asks.run("1", backend=recording)
        asks.run("2", backend=recording)
    *lines, last, _ = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines, last[:num_left]]))
    replay = Replay(path)
    assert "was cut short" in caplog.text
    assert asks.run("1", backend=replay).ret_value == "one"
    with pytest.raises(BackendError, match="diverges from"):
        asks.run("2", backend=replay)


def test_answers_with_line_separators_of_unicode_are_one_line_each(tmp_path) -> None:
    answer = "one\u2028two\x85three\u2029four\x0bfive"
    before = record(tmp_path / "run.jsonl", {**SCRIPT, "a": [answer, "second"]})
    after = program.run("why?", backend=Replay(tmp_path / "run.jsonl"))
    assert after.variables() == before.variables()
    assert after["a"][0].startswith("one\u2028two")
