"""Many rows."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from forktree.backend.fake import Fake
from forktree.lang.errors import LanguageError, RunCancelledError, ServerError
from forktree.lang.expressions import gen
from forktree.runtime.executor import MAX_BODY_THREADS
from forktree.runtime.function import function
from forktree.runtime.map import MapOptions, run_map


def echo(request) -> str:
    return f"<{request.prompt}>"


@function
def program(s, q):
    if q in ("7", "30"):
        raise ValueError(f"row {q}")
    s += q + gen("a", max_tokens=4, temperature=1.0)
    return s["a"]


ROWS = [{"q": str(i)} if i != 12 else {"q": "12", "unknown": 1} for i in range(50)]


@pytest.mark.parametrize("concurrency", [1, 4, None, 1000])
def test_result_i_belongs_to_row_i_and_each_failure_is_its_row_s(concurrency) -> None:
    results = program.using(backend=Fake(echo)).map(ROWS, concurrency=concurrency)
    assert [result.index for result in results] == list(range(50))
    assert [result.row for result in results] == ROWS
    failed = {result.index: type(result.error) for result in results if not result.ok}
    assert failed == {7: ValueError, 30: ValueError, 12: TypeError}
    assert all(result.value == f"<{result.index}>" for result in results if result.ok)
    assert all(result.state["a"] == result.value for result in results if result.ok)


def test_the_same_in_an_event_loop_s_thread_pool_and_as_tuples() -> None:
    results = program.using(backend=Fake(echo)).map([("a",), ("b",)])
    assert [result.value for result in results] == ["<a>", "<b>"]


async def test_amap_and_aimap_give_the_same() -> None:
    bound = program.using(backend=Fake(echo))
    assert [result.ok for result in await bound.amap(ROWS)] == [result.ok for result in bound.map(ROWS)]
    seen = {result.index async for result in bound.aimap(ROWS, ordered=False)}
    assert seen == set(range(50))


def test_each_body_runs_exactly_once() -> None:
    calls: list[str] = []

    @function
    def noted(s, q):
        calls.append(q)
        s += q + gen("a")

    noted.using(backend=Fake(echo)).map([{"q": f"{i}"} for i in range(10)])
    assert sorted(calls) == sorted(f"{i}" for i in range(10))


def test_an_empty_batch_gives_an_empty_list() -> None:
    assert program.map([]) == []


def test_the_caller_s_rows_are_not_changed() -> None:
    rows = [{"q": "1"}]
    program.using(backend=Fake(echo)).bind(q="2").map(rows)
    assert rows == [{"q": "1"}]


def test_on_error_raise_raises_the_first_failure_in_order() -> None:
    with pytest.raises(ValueError, match="row 7"):
        program.using(backend=Fake(echo)).map(ROWS, on_error="raise")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"concurrency": 0}, ValueError, "at least 1"),
        ({"concurrency": True}, ValueError, "at least 1"),
        ({"on_error": "ignore"}, LanguageError, "on_error"),
    ],
)
def test_wrong_options_are_errors_at_once(options, error, message) -> None:
    with pytest.raises(error, match=message):
        program.map(ROWS, **options)


def test_a_row_that_is_neither_dict_nor_tuple_is_an_error() -> None:
    with pytest.raises(LanguageError, match="row 0 is a dict of arguments or a tuple, not 'text'"):
        program.using(backend=Fake(echo)).map(["text"])


def test_no_more_than_concurrency_rows_run_at_once() -> None:
    running = peak = 0
    lock = threading.Lock()

    @function
    def counted(s, q):
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        s += f"{q}" + gen("a")
        s["a"]
        with lock:
            running -= 1

    counted.using(backend=Fake(echo)).map([{"q": i} for i in range(60)], concurrency=3)
    assert peak <= 3


def test_imap_takes_rows_no_further_ahead_than_its_window() -> None:
    taken = 0

    def rows():
        nonlocal taken
        for i in range(10_000):
            taken += 1
            yield {"q": f"r{i}"}

    results = program.using(backend=Fake(echo)).imap(rows(), concurrency=2)
    first = [next(results) for _ in range(3)]
    results.close()
    assert [result.index for result in first] == [0, 1, 2]
    assert taken <= 3 + 4 * 2


def test_unordered_results_come_as_they_are_completed() -> None:
    gate = threading.Event()

    @function
    def waiting(s, q):
        if q == 0:
            gate.wait(20)

    results = waiting.using(backend=Fake(echo)).imap([{"q": 0}, {"q": 1}], ordered=False)
    assert next(results).index == 1
    gate.set()
    assert next(results).index == 0


def test_a_failing_backend_fails_rows_and_not_the_map() -> None:
    def script(request):
        if request.prompt == "2":
            raise ServerError("down")
        return "x"

    results = program.using(backend=Fake(script)).map([{"q": str(i)} for i in range(4)])
    assert [result.ok for result in results] == [True, True, False, True]
    assert isinstance(results[2].error, ServerError)


def test_thousands_of_rows_run_in_few_threads() -> None:
    peak, before = 0, set(threading.enumerate())

    @function
    def watched(s, q):
        nonlocal peak
        s += f"{q}" + gen("a")
        peak = max(peak, sum(thread.name.startswith("forktree") for thread in set(threading.enumerate()) - before))
        return s["a"]

    results = watched.using(backend=Fake(echo)).map([{"q": i} for i in range(2_000)])
    assert all(result.ok for result in results)
    assert peak <= MAX_BODY_THREADS + 1


def test_thousands_of_async_rows_are_in_flight_at_once() -> None:
    fake = Fake(echo)
    fake.hold()
    reached = threading.Event()

    @function
    async def waiting(s, q):
        s += f"{q}" + gen("a")
        if q == 1_999:
            reached.set()
        return await s.aget("a")

    results = []
    thread = threading.Thread(
        target=lambda: results.extend(
            waiting.using(backend=fake).map([{"q": i} for i in range(2_000)], concurrency=2_000)
        )
    )
    thread.start()
    assert reached.wait(20)
    fake.release()
    thread.join(20)
    assert [result.value for result in results] == [f"<{i}>" for i in range(2_000)]


def test_thousands_of_traced_rows_are_in_flight_at_once_and_take_no_thread() -> None:
    fake = Fake(echo)
    fake.hold()

    @function
    def asking(s, q):
        s += f"{q}" + gen("a")
        return s["a"]

    traced = asking.trace()
    before = threading.active_count()
    results = []
    rows = [{"q": i, "backend": fake} for i in range(2_000)]
    thread = threading.Thread(target=lambda: results.extend(traced.map(rows, concurrency=2_000)))
    thread.start()
    while fake.num_held < 2_000:
        thread.join(0.01)
        assert thread.is_alive()
    assert threading.active_count() <= before + 2  # the map's own, and the loop's
    fake.release()
    thread.join(20)
    assert [result.value for result in results] == [f"<{i}>" for i in range(2_000)]


def test_an_interrupt_cancels_what_runs_and_keeps_what_is_done(interruptible) -> None:
    fake = Fake(echo)

    @function
    def interrupted(s, q):
        if q == 3:
            fake.hold()
            s += "hold" + gen("a")
            os.kill(os.getpid(), signal.SIGINT)
            s["a"]
        s += f"{q}" + gen("b")
        return s["b"]

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted.using(backend=fake).map([{"q": i} for i in range(20)], concurrency=1)
    assert [result.value for result in caught.value.results] == ["<0>", "<1>", "<2>"]


def test_an_interrupt_while_a_row_is_started_stops_that_row_too() -> None:
    """It may come at any moment: here, when the row's body runs already and nobody has been told of it yet."""
    fake = Fake(["x"])
    fake.hold()
    endless = program.using(backend=fake)

    class Interrupted:
        def __getattr__(self, name):
            return getattr(endless, name)

        def start(self, args, kwargs, adopt):
            _, state = endless.start(args, kwargs, adopt)
            deadline = threading.Event()
            while not fake.num_held:
                deadline.wait(0.001)
            self.state = state
            raise KeyboardInterrupt

    interrupted = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run_map(interrupted, [{"q": "1"}], MapOptions(concurrency=1))
    assert isinstance(interrupted.state.error(), RunCancelledError)  # it waits for the end of the run


def test_an_interrupt_in_run_cancels_the_request(interruptible) -> None:
    fake = Fake(["x"])
    fake.hold()

    @function
    def interrupted(s):
        s += gen("a")
        os.kill(os.getpid(), signal.SIGINT)
        s["a"]

    with pytest.raises(KeyboardInterrupt):
        interrupted.run(backend=fake)


def test_maps_inside_programs_end_though_the_bodies_that_wait_hold_every_thread() -> None:
    everyone = threading.Barrier(MAX_BODY_THREADS)
    inner = program.using(backend=Fake(echo))

    @function
    def outer(s, n):
        everyone.wait(20)
        return [result.value for result in inner.map([{"q": f"{n}.{i}"} for i in range(3)])]

    results = outer.using(backend=Fake([])).map([{"n": n} for n in range(MAX_BODY_THREADS)])
    assert results[5].value == ["<5.0>", "<5.1>", "<5.2>"]


def test_the_progress_bar_counts_rows_and_failures(capsys) -> None:
    program.using(backend=Fake(echo)).map(ROWS, progress=True)
    shown = capsys.readouterr().err
    assert "50/50" in shown
    assert "3 failed" in shown
    assert "rows/s" in shown
