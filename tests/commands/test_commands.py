"""The command line: help with an example, errors that say what would be right, exit codes that mean something."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pydantic
import pytest

import forktree as ft
from forktree.commands.main import COMMANDS, main
from forktree.commands.programs import load_program, parse_arguments
from forktree.commands.rows import read_rows
from forktree.commands.run import plain

NAMES = [module.__name__.rsplit(".", 1)[1] for module in COMMANDS]

PROGRAMS = """
import forktree as ft

@ft.function
def complete(s, start, words=1):
    s += start + ft.gen("end", max_tokens=4 * words, temperature=0)
    return len(s["end"])

@ft.function
def broken(s, start):
    raise RuntimeError(f"no luck with {start}")
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    path = tmp_path / "programs.py"
    path.write_text(PROGRAMS)
    return path


def forktree(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forktree", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=240, cwd="/", check=False)


@pytest.mark.parametrize("name", NAMES)
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([name, "--help"])
    assert exit_.value.code == 0
    assert f"forktree {name}" in capsys.readouterr().out.split("example:")[1]


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    import forktree

    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == f"forktree {forktree.__version__}"


def test_an_unknown_command_is_a_usage_error_that_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["rnu"])
    assert exit_.value.code == 2
    shown = capsys.readouterr().err
    assert all(name in shown for name in NAMES)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{file}.gone", "no file"),
        ("{file}:gone", "no program 'gone'; its programs: broken, complete\n"),
        ("{file}:complet", "no program 'complet'; its programs: broken, complete; did you mean 'complete'?"),
        ("{file}", "2 programs (broken, complete); name one"),
    ],
)
def test_a_program_that_cannot_be_found_is_named(
    programs: Path, target: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", target.format(file=programs)]) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_argument_says_what_would_be_right(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{programs}:complete", "--arg", "start"]) == 2
    assert "NAME=VALUE, not 'start'" in capsys.readouterr().err


def test_a_missing_argument_is_named(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{programs}:complete"]) == 2
    assert "complete needs --arg start=VALUE; its parameters: start, words" in capsys.readouterr().err


def test_an_argument_that_the_program_lacks_is_named(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{programs}:complete", "--arg", "start=x", "--arg", "word=1"]) == 2
    shown = capsys.readouterr().err
    assert "no parameter 'word'; its parameters: start, words; did you mean 'words'?" in shown


def test_an_argument_given_twice_is_refused(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{programs}:complete", "--arg", "start=x", "--arg", "start=y"]) == 2
    assert "--arg start is given twice" in capsys.readouterr().err


def test_a_file_without_a_program_says_what_one_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    assert main(["run", str(path)]) == 2
    assert "has no program; a program is a function under @forktree.function" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["run", "--rows", "rows.jsonl", "--text"], "--text shows one run"),
        (["run", "--arg", "start=x", "--concurrency", "2"], "--concurrency is for --rows"),
        (["run", "--rows", "gone.jsonl"], "--rows gone.jsonl: No such file"),
        (["explain", "--arg", "start=x", "--price-cached", "1"], "--price-cached goes with --price-input"),
    ],
)
def test_options_that_do_not_go_together_are_usage_errors(
    programs: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = options
    assert main([command, f"{programs}:complete", *rest]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("price", ["abc", "-1", "nan", "inf"])
def test_a_price_is_a_number_of_at_least_zero(price: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["explain", "qa.py", "--price-input", price])
    assert exit_.value.code == 2
    assert f"must be a number of at least 0, not '{price}'" in capsys.readouterr().err


def test_a_parameter_annotated_str_gets_text_whatever_it_reads_as() -> None:
    @ft.function
    def program(s, text: str, number) -> None: ...

    assert parse_arguments(program, ["text=5", "number=5"]) == {"text": "5", "number": 5}


@pytest.mark.parametrize(
    "arguments", [["demo", "--rows", "-1"], ["demo", "--rows", "0"], ["chat", "--max-tokens", "x"]]
)
def test_a_count_is_at_least_one(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("code", ["def f(:", "import no_such_module_at_all", "1 / 0"])
def test_a_file_that_does_not_load_shows_its_own_lines_alone(
    tmp_path: Path, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.py"
    path.write_text(code + "\n")
    assert main(["run", str(path)]) == 1
    shown = capsys.readouterr().err
    assert str(path) in shown
    assert "importlib" not in shown
    assert "commands" not in shown


@pytest.mark.parametrize(("line", "message"), [("{", ":2 is not JSON"), ("[1]", ":2 must be an object")])
def test_a_broken_row_is_named_with_its_line(
    programs: Path, tmp_path: Path, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"start": "x"}\n' + line + "\n")
    assert main(["run", f"{programs}:complete", "--rows", str(rows)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "explain"])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"start": "x", "word": 2}, ":2: complete has no parameter 'word'; {known}; did you mean 'words'?"),
        ({"words": 2}, ":2: complete needs 'start'; {known}"),
        ({"start": "x", "backend": "local"}, ":2: complete has no parameter 'backend'; {known}"),
        ({"start": "x", "temperature": -1}, ":2: temperature must be at least 0, not -1"),
    ],
)
def test_a_row_that_does_not_fit_is_named_with_its_line_before_anything_runs(
    programs: Path, tmp_path: Path, command: str, row: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"start": "x", "seed": 1}) + "\n" + json.dumps(row) + "\n")
    assert main([command, f"{programs}:complete", "--rows", str(rows)]) == 1
    shown = capsys.readouterr()
    assert shown.err == f"forktree: {rows}{message.format(known='its parameters: start, words')}\n"
    assert shown.out == ""


def test_arg_gives_what_rows_lack_and_never_what_they_have(
    programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('\ufeff{"start": "x\u2028y"}\n\n{"start": "y", "words": 3}\n', encoding="utf-8")
    complete = load_program(f"{programs}:complete")
    assert read_rows(complete, rows, {}) == [{"start": "x\u2028y"}, {"start": "y", "words": 3}]
    assert main(["run", f"{programs}:complete", "--rows", str(rows), "--arg", "words=2"]) == 2
    assert f"{rows}:3 gives 'words', and so does --arg" in capsys.readouterr().err
    rows.write_text('{"start": "x"}\n{"start": "y"}')
    assert read_rows(complete, rows, {"words": 2}) == [{"start": "x", "words": 2}, {"start": "y", "words": 2}]


def test_rows_that_are_not_utf_8_are_refused(
    programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'{"start": "\xe9"}\n')
    assert main(["run", f"{programs}:complete", "--rows", str(rows)]) == 1
    assert "rows.jsonl is not UTF-8" in capsys.readouterr().err


def test_chat_refuses_a_value_out_of_range_before_it_loads_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--temperature", "-1"]) == 2
    assert "temperature must be at least 0, not -1.0" in capsys.readouterr().err


def test_an_unknown_model_is_an_error_with_the_known_names(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{programs}:complete", "--arg", "start=x", "--model", "gpt-7"]) == 1
    assert "smollm2-135m" in capsys.readouterr().err


@pytest.mark.model
def test_pull_prints_the_folder(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull"]) == 0
    assert capsys.readouterr().out.strip() == str(model_dir)


@pytest.mark.model
def test_run_prints_the_variables_and_the_value_as_json_on_stdout(programs: Path, model_dir: Path) -> None:
    done = forktree("run", f"{programs}:complete", "--arg", "start=The capital of France is", "--arg", "words=2")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    shown = json.loads(line)
    assert shown["value"] == len(shown["variables"]["end"]) > 0
    assert done.stderr == ""


@pytest.mark.model
def test_run_prints_the_turns_in_place_of_json_if_asked(programs: Path, model_dir: Path) -> None:
    done = forktree("run", f"{programs}:complete", "--arg", "start=The capital of France is", "--text")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The capital of France is ")
    assert "variables" not in done.stdout


@pytest.mark.model
def test_run_over_rows_prints_one_line_each_and_fails_if_one_failed(
    programs: Path, model_dir: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"start": "One"}\n{"start": "Two", "words": "many"}\n{"start": "Three"}\n')
    done = forktree("run", f"{programs}:complete", "--rows", str(rows))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1, done.stderr
    assert done.stderr == "1 of 3 rows failed\n"
    assert [line["index"] for line in lines] == [0, 1, 2]
    assert [sorted(line) for line in lines] == [
        ["index", "value", "variables"],
        ["error", "index"],
        ["index", "value", "variables"],
    ]
    assert "many" in lines[1]["error"]


@pytest.mark.model
def test_a_reader_that_goes_away_ends_the_command_without_a_word(programs: Path, model_dir: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "forktree", "run", f"{programs}:complete", "--arg", "start=One"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=240, cwd="/", check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.model
def test_a_program_that_raises_shows_its_own_exception(programs: Path, model_dir: Path) -> None:
    done = forktree("run", f"{programs}:broken", "--arg", "start=x")
    assert done.returncode == 1
    assert "RuntimeError: no luck with x" in done.stderr


@pytest.mark.model
def test_chat_answers_every_line_of_its_input(model_dir: Path) -> None:
    done = forktree("chat", "--max-tokens", "8", "--temperature", "0", stdin="Hello!\n\nWhat is 2+2?\n")
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line.strip()]) >= 2


@pytest.mark.model
def test_the_demo_reads_receipts_and_shows_what_it_took(model_dir: Path) -> None:
    done = forktree("demo", "--rows", "2")
    assert done.returncode == 0, done.stderr
    for shown in ("valid JSON", "100%", "total right", "cache hit rate", "prompt tokens computed", "select kind"):
        assert shown in done.stdout


@pytest.mark.model
def test_show_prints_the_program_the_steps_and_the_cache(programs: Path, model_dir: Path) -> None:
    done = forktree("show", f"{programs}:complete", "--arg", "start=Once upon a time")
    assert done.returncode == 0, done.stderr
    program, steps, cache = (done.stdout.index(title) for title in (" program ", " steps ", " cache "))
    assert "gen end" in done.stdout[program:steps]
    assert "prefill" in done.stdout[steps:cache]
    assert "Once upon a" in done.stdout[cache:]


@pytest.mark.model
def test_explain_tells_the_cost_before_anything_runs(programs: Path, model_dir: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"start": f"The same beginning, and number {i}"}) + "\n" for i in range(5)))
    done = forktree("explain", f"{programs}:complete", "--rows", str(rows), "--price-input", "2", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["num_rows"], plan["num_requests"]) == (5, 5)
    assert 0 < plan["distinct_tokens"] < plan["requested_tokens"]


@pytest.mark.model
def test_a_recorded_run_replays_without_a_model(programs: Path, model_dir: Path, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    arguments = ("run", f"{programs}:complete", "--arg", "start=The sea is")
    first = forktree(*arguments, "--backend", f"record:{record}")
    again = forktree(*arguments, "--backend", f"replay:{record}", "--model", "no-such-model")
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert again.stdout == first.stdout


@pytest.mark.parametrize(
    ("backend", "code", "message"),
    [
        ("replay:/nowhere.jsonl", 2, "does not exist; record it with --backend record:/nowhere.jsonl"),
        ("openai:gpt-4o-mini", 1, "OpenAI needs a key; give api_key=, or set OPENAI_API_KEY"),
        ("anthropic:claude", 1, "Anthropic needs a key; give api_key=, or set ANTHROPIC_API_KEY"),
    ],
)
def test_a_backend_that_cannot_be_used_is_named(
    programs: Path,
    backend: str,
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert main(["run", f"{programs}:complete", "--arg", "start=x", "--backend", backend]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["locale", "replay:", "locale:x", "local:x"])
def test_an_unknown_backend_is_a_usage_error(programs: Path, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["run", f"{programs}:complete", "--arg", "start=x", "--backend", backend])
    assert exit_.value.code == 2
    assert "is none of local, record:FILE, replay:FILE" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["http:localhost", "http://", "http://localhost:80a", "https://localhost:99999"])
def test_an_address_that_is_none_is_a_usage_error(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["run", "qa.py", "--backend", backend])
    assert exit_.value.code == 2
    assert "is no address; write one as http://HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [["run", "qa.py", "--backend", "record:{file}"], ["bench", "--json", "{file}"], ["bench", "--plot", "{file}"]],
)
@pytest.mark.parametrize(("file", "message"), [("gone/x", "there is no folder"), (".", "is a folder; name a file")])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, options: list[str], file: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([option.format(file=tmp_path / file) for option in options])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_every_value_has_a_form_in_json() -> None:
    class Kind(enum.Enum):
        FOOD = "food"

    @dataclasses.dataclass
    class Receipt:
        kind: Kind
        total: float

    class Model(pydantic.BaseModel):
        kind: Kind

    assert plain(
        [Receipt(Kind.FOOD, float("nan")), Model(kind=Kind.FOOD), {Kind.FOOD: 1, 2: (3,), ("a", 1): True}]
    ) == [
        {"kind": "food", "total": None},
        {"kind": "food"},
        {"food": 1, "2": [3], "('a', 1)": True},
    ]
    assert plain({None: Path("x")}) == {"null": "x"}
