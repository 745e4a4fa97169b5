"""Faults on a real connection: what is made again, what is not, and what the error says."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_service import Fault

import forktree as ft
from forktree.backend.clients.dialects import OPENAI
from forktree.backend.clients.faults import Place, fault_of_status

SCRIPT = Path(__file__).parents[2] / "support" / "scripted_service.py"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=429, headers={"retry-after": "0.05"}),
        Fault(status=429, headers={"retry-after-ms": "20"}),
        Fault(status=500, headers={"retry-after": "0.01"}),
        Fault(status=503, headers={"retry-after": "0"}),
        Fault(status=529, headers={"retry-after": "0"}),
        Fault("reset"),
    ],
    ids=lambda fault: f"{fault.kind} {fault.status}",
)
def test_what_fails_before_it_answers_is_asked_again(fault, service, openai, ask) -> None:
    service.faults.append(fault)
    backend = openai()
    assert ask.run(backend=backend)["a"] == " some words to read"
    assert len(service.seen) == 2
    assert backend.stats().num_retries == 1
    assert backend.stats().num_requests == 1


def test_it_gives_up_after_its_retries_with_the_last_error(service, openai, ask) -> None:
    service.faults += [Fault(status=429, headers={"retry-after": "0"}, body={"error": {"message": "slow down"}})] * 3
    with pytest.raises(ft.RateLimitError, match="answered 429: slow down") as caught:
        ask.run(backend=openai(retries=2))
    assert caught.value.retry_after == 0
    assert len(service.seen) == 3
    assert "tried 3 times" in caught.value.__notes__


def test_a_wait_beyond_all_patience_is_not_waited(service, openai, ask) -> None:
    service.faults.append(Fault(status=429, headers={"retry-after": "3600"}))
    with pytest.raises(ft.RateLimitError) as caught:
        ask.run(backend=openai())
    assert caught.value.retry_after == 3600
    assert len(service.seen) == 1


def test_an_account_without_credit_is_not_asked_again(service, openai, ask) -> None:
    service.faults.append(Fault(status=429, body={"error": {"message": "quota", "code": "insufficient_quota"}}))
    with pytest.raises(ft.RateLimitError, match="waiting does not help"):
        ask.run(backend=openai())
    assert len(service.seen) == 1


@pytest.mark.parametrize("kind", ["break", "unended", "event"])
def test_what_has_begun_to_stream_is_never_asked_again(kind, service, openai, ask) -> None:
    service.faults.append(Fault(kind, body={"message": "overloaded", "type": "server_error"}))
    with pytest.raises(ft.ServerError, match=r"broke|ended its answer without"):
        ask.run(backend=openai())
    assert len(service.seen) == 1


def test_the_text_before_a_break_was_shown(service, openai, ask) -> None:
    service.faults.append(Fault("break"))
    pieces = ask.stream(backend=openai()).text_iter("a")
    assert [next(pieces), next(pieces)] == [" some", " words"]
    with pytest.raises(ft.ServerError):
        next(pieces)


def test_a_service_that_is_silent_too_long_is_given_up_and_left(service, openai, ask) -> None:
    service.faults.append(Fault("silence"))
    with pytest.raises(ft.TimeoutError, match=r"was silent for 0.1 s; raise timeout="):
        ask.run(backend=openai(timeout=0.1))
    assert len(service.seen) == 1  # it may be at work, and bill what it does
    ask.run(backend=openai())


def test_a_cancelled_request_is_given_up_at_the_other_end(service, openai, ask) -> None:
    service.faults.append(Fault("silence"))
    backend = openai()

    async def leave() -> None:
        task = asyncio.ensure_future(ask.arun(backend=backend))
        while not service.seen:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        while not service.num_left:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(leave(), 20))


def test_what_is_not_json_is_shown(service, openai, ask) -> None:
    service.faults.append(Fault("malformed"))
    with pytest.raises(ft.ServerError, match=r"sent what is not JSON: '\{\"choices\": \['"):
        ask.run(backend=openai())


def test_a_refused_key_names_where_keys_come_from_and_never_the_key(service, openai, ask) -> None:
    service.key = "right"
    with pytest.raises(
        ft.AuthenticationError, match="no such key; the key was refused: check api_key=, or OPENAI_API_KEY"
    ):
        ask.run(backend=openai())
    assert len(service.seen) == 1


def test_a_wrong_address_says_what_may_be_meant(service, opened, ask) -> None:
    backend = opened(ft.OpenAI("m", base_url=f"{service.url}/api", api_key="k"))
    with pytest.raises(ft.BackendError, match=r"answered 404.*nothing is served at this address: was .*/api/v1 meant"):
        ask.run(backend=backend)


def test_where_nothing_listens_the_address_is_named(opened, ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    backend = opened(ft.OpenAI("m", base_url=f"http://127.0.0.1:{port}/v1", api_key="k", retries=0))
    with pytest.raises(ft.ServerError, match=rf"nothing answers at http://127.0.0.1:{port}/v1.*is base_url right"):
        ask.run(backend=backend)


PLACE = Place(OPENAI, "https://api.openai.com/v1", "gpt-9")


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (404, '{"error": {"code": "model_not_found", "message": "no"}}', ft.UnsupportedError, "the model 'gpt-9'"),
        (
            404,
            '{"error": "model \\"gpt-9\\" not found, try pulling it first"}',
            ft.UnsupportedError,
            "the model 'gpt-9'",
        ),
        (400, '{"error": {"message": "The model `gpt-9` does not exist"}}', ft.UnsupportedError, "the model 'gpt-9'"),
        (404, "<html>nginx</html>", ft.BackendError, "nothing is served at this address: check base_url"),
        (301, "", ft.BackendError, "nothing is served"),
        (403, "{}", ft.AuthenticationError, "the key was refused"),
        (402, '{"error": {"message": "Insufficient Balance"}}', ft.BackendError, "no credit"),
        (400, '[{"error": {"message": "bad", "status": "INVALID"}}]', ft.BackendError, "answered 400: bad"),
        (500, "gateway", ft.ServerError, "answered 500: gateway"),
        (418, "", ft.BackendError, "answered 418$"),
    ],
)
def test_a_status_is_an_error_of_its_own_kind(status, body, error, message) -> None:
    fault = fault_of_status(PLACE, status, {}, body.encode())
    with pytest.raises(error, match=message):
        raise fault.error


@pytest.mark.parametrize(
    ("body", "limit", "tokens"),
    [
        (
            '{"error": {"code": "context_length_exceeded", "message": "This model\'s maximum context length is 8192 '
            'tokens. However, your messages resulted in 9001 tokens."}}',
            8192,
            9001,
        ),
        ('{"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}', 200000, 210000),
        (
            '{"error": {"type": "exceed_context_size_error", "message": "the request exceeds the available context '
            'size", "n_prompt_tokens": 700, "n_ctx": 512}}',
            512,
            700,
        ),
        ('{"error": {"message": "input is too long for the context window"}}', 0, 0),
    ],
)
def test_an_overflow_carries_its_counts(body, limit, tokens) -> None:
    error = fault_of_status(PLACE, 400, {}, body.encode()).error
    assert isinstance(error, ft.ContextLengthError)
    assert (error.limit, error.tokens) == (limit, tokens)


# Resets of the connection itself


@pytest.fixture
def resetting() -> Iterator[tuple[str, list[int]]]:
    """A server that reads a request and resets the connection; its address, and how often it was asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[int] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.recv(65536)
            asked.append(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", asked
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def test_a_reset_before_the_answer_is_retried_and_then_an_error(resetting, opened, ask) -> None:
    url, asked = resetting
    with pytest.raises(ft.ServerError, match="broke the connection off"):
        ask.run(backend=opened(ft.OpenAI("m", base_url=url, api_key="k", retries=1)))
    assert len(asked) == 2


# A server that is killed


class Killable:
    """The scripted service in a process of its own, always on the same port."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, str(SCRIPT), str(self.port)])

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@ft.function
def answered(s, question):
    s += ft.user(question)
    s += ft.assistant(ft.gen("a"))
    return s["a"]


def test_a_map_goes_on_when_its_server_was_killed_and_came_back(tmp_path: Path, opened) -> None:
    server = Killable()
    server.start()
    url = f"http://127.0.0.1:{server.port}/v1"
    rows = [{"question": f"Question {number}"} for number in range(8)]
    try:
        patient = opened(ft.OpenAI("m", base_url=url, api_key="k", retries=12))
        program = answered.using(backend=patient)
        first = []
        for result in program.imap(rows, concurrency=2, journal=tmp_path / "rows.db"):
            first.append(result)
            if result.index == 3:
                server.kill()
                server.start()
        broken = [result for result in first if not result.ok]  # what streamed when the server died
        assert len(broken) <= 2
        again = program.map(rows, journal=tmp_path / "rows.db")
        assert [result.value for result in again] == [" some words to read"] * 8
        assert sum(result.replayed for result in again) == len(rows) - len(broken)
    finally:
        server.kill()


def test_a_map_whose_server_stays_dead_fails_row_by_row_and_its_journal_resumes(tmp_path: Path, opened) -> None:
    server = Killable()
    server.start()
    url = f"http://127.0.0.1:{server.port}/v1"
    rows = [{"question": f"Question {number}"} for number in range(8)]
    journal = tmp_path / "rows.db"
    try:
        first = opened(ft.OpenAI("m", base_url=url, api_key="k", retries=12))
        assert answered.using(backend=first).run("Are you there?").ret_value  # it is up from here on
        first.close()
        hasty = answered.using(backend=opened(ft.OpenAI("m", base_url=url, api_key="k", retries=0)))
        done = []
        for result in hasty.imap(rows, concurrency=1, journal=journal):
            done.append(result)
            if result.index == 3:
                server.kill()
        assert [result.ok for result in done][:4] == [True] * 4
        assert not done[-1].ok
        assert isinstance(done[-1].error, ft.ServerError)
        num_kept = sum(result.ok for result in done)
        server.start()
        patient = opened(ft.OpenAI("m", base_url=url, api_key="k", retries=12))
        resumed = answered.using(backend=patient).map(rows, concurrency=2, journal=journal)
        assert all(result.ok for result in resumed)
        assert sum(result.replayed for result in resumed) == num_kept
        assert patient.stats().num_requests == len(rows) - num_kept
    finally:
        server.kill()
