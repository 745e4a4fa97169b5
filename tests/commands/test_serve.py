"""`forktree serve`: it says where it listens, answers, and finishes what runs before it stops."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from real_parts import write_wild_model

from forktree.commands.main import main
from forktree.commands.serve import _warn_if_reachable, add_parser

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "ignore_eos": True}


@pytest.fixture(scope="module")
def wild_dir(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Path:
    return write_wild_model(tmp_path_factory.mktemp("wild-serve"), model_dir)


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves the model, and its address."""
    own = [str(folder), "--port", "0", "--served-name", "m"]
    command = [sys.executable, "-m", "forktree", "serve", *own, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/") as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield process, line.split()[-1].removesuffix("/v1")
        finally:
            process.kill()


def test_a_signal_in_the_middle_of_a_stream_lets_it_finish(wild_dir: Path) -> None:
    with serving(wild_dir) as (process, url), httpx.Client(base_url=url, timeout=60) as http:
        assert http.get("/ready").json() == {"status": "ready"}
        with http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as answer:
            lines = answer.iter_lines()
            assert json.loads(next(lines).removeprefix("data: "))["choices"]
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        http.close()
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_when_the_drain_time_is_over_a_stream_ends_with_an_error(wild_dir: Path) -> None:
    body = {**BODY, "max_tokens": 450, "n": 64, "stream": True}
    with serving(wild_dir, "--drain", "1") as (process, url), httpx.Client(base_url=url, timeout=60) as http:
        with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "server_stopping"
        http.close()
        assert process.wait(30) == 0
        assert process.stderr is not None
        log = process.stderr.read()
    assert "Traceback" not in log
    assert '"fault": "server_stopping"' in log
    assert "--drain of 1 s is over: 1 unfinished" in log


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


@pytest.mark.parametrize(
    ("host", "warns"),
    [("127.0.0.1", False), ("::1", False), ("0.0.0.0", True), ("10.1.2.3", True), ("fe80::1%lo", True)],
)
def test_without_keys_it_says_so_where_others_can_reach_it(
    host: str, warns: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    _warn_if_reachable(host)
    assert (f"whoever reaches {host}" in capsys.readouterr().err) is warns


def test_it_listens_on_this_machine_alone_unless_told_otherwise() -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    assert parser.parse_args(["serve"]).host == "127.0.0.1"


def test_it_serves_https_with_keys_from_a_file(wild_dir: Path, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    cert, key, keys = (str(tmp_path / name) for name in ("cert.pem", "key.pem", "keys"))
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True)
    Path(keys).write_text("# mine\nfirst\n\n  second  \n")
    options = ["--tls-cert", cert, "--tls-key", key, "--api-key-file", keys]
    context = ssl.create_default_context(cafile=cert)
    with serving(wild_dir, *options) as (_, url), httpx.Client(base_url=url, timeout=60, verify=context) as http:
        assert url.startswith("https://")
        for given, status in (("second", 200), ("third", 401)):
            headers = {"authorization": f"Bearer {given}"}
            assert http.post("/tokenize", json={"prompt": "x"}, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tls-cert", "a"], "go together"),
        (["--tls-cert", "a", "--tls-key", "b"], "cannot use --tls-cert"),
        (["--api-key-file", "/no/such/file"], "/no/such/file"),
        (["--api-key-file", "/dev/null"], "has no keys"),
        (["--rpm", "0"], "--rpm must be more than 0, not 0"),
        (["--total-rpm", "nan"], "--total-rpm must be more than 0, not nan"),
        (["--max-waiting", "-1"], "--max-waiting must be at least 0, not -1"),
        (["--timeout", "-1"], "--timeout must be more than 0, not -1"),
        (["--served-name", ""], "--served-name must not be empty"),
        (["--api-key", ""], "--api-key must not be empty"),
    ],
)
def test_a_wrong_option_is_named_before_the_model_loads(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "no-such-model", "--port", "0", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_restarted_server_takes_a_prefix_from_the_disk(wild_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    body = {"model": "m", "prompt": "A prompt of several pages. " * 12, "max_tokens": 8, "temperature": 0}
    answers = []
    for number in (signal.SIGTERM, signal.SIGINT):
        options = ("--cache-dir", str(folder), "--cache-bytes", "100M", "--host-bytes", "1M", "--kv-tokens", "1024")
        with serving(wild_dir, *options) as (process, url):
            answers.append(httpx.post(f"{url}/v1/completions", json=body, timeout=60).json())
            process.send_signal(number)
            assert process.wait(30) == 0
    first, second = answers
    assert second["choices"] == first["choices"]
    cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers]
    assert cached[0] == 0
    assert first["usage"]["prompt_tokens"] - cached[1] <= 16  # whole pages come up


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cache-bytes", "1G"], "--cache-bytes goes with --cache-dir"),
        (["--host-bytes", "0"], "--host-bytes must be at least 1"),
        (["--cache-dir", __file__], "--cache-dir must be a folder"),
    ],
)
def test_sizes_that_limit_nothing_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "no-such-model", "--port", "0", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_hangup_is_no_reload_and_ends_the_server(wild_dir: Path) -> None:
    with serving(wild_dir) as (process, _):
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == -signal.SIGHUP
