"""`forktree serve`: it says where it listens, answers, and finishes what runs before it stops."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from real_parts import write_wild_model

from forktree.commands.main import main

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "ignore_eos": True}


@pytest.fixture(scope="module")
def wild_dir(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Path:
    return write_wild_model(tmp_path_factory.mktemp("wild-serve"), model_dir)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves the model, and its address."""
    command = [sys.executable, "-m", "forktree", "serve", str(folder), "--port", "0", "--served-name", "m"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/") as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield process, line.split()[-1].removesuffix("/v1")
        finally:
            process.kill()


def test_a_signal_lets_what_runs_finish(wild_dir: Path) -> None:
    with serving(wild_dir) as (process, url), httpx.Client(base_url=url, timeout=60) as http:
        assert http.get("/ready").json() == {"status": "ready"}
        with http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as answer:
            lines = answer.iter_lines()
            assert json.loads(next(lines).removeprefix("data: "))["choices"]
            process.send_signal(signal.SIGINT)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        http.close()
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_port_that_is_taken_is_refused_before_the_model_loads(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "no-such-model", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_is_a_number(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--port", port])
    assert caught.value.code == 2
    assert "must be a port" in capsys.readouterr().err


def test_a_host_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--host", "no host"]) == 2
    assert "cannot listen on 'no host'" in capsys.readouterr().err
