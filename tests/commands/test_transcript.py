"""What a person reads of a run: turns under their roles, and what has none as it is."""

from __future__ import annotations

import io

import forktree as ft
from forktree.commands.transcript import show_transcript


def shown(state: ft.State, file: io.StringIO | None = None) -> str:
    file = file or io.StringIO()
    show_transcript(state, file)
    return file.getvalue()


def test_each_turn_stands_under_its_role_with_a_blank_line_between() -> None:
    @ft.function
    def ask(s, question):
        s += ft.system("Be brief.") + ft.user(question)
        s += ft.assistant("So: " + ft.gen("answer"))

    state = ask.run("Who [wrote] Emma?", backend=ft.Fake(["Jane Austen"]))
    assert shown(state) == "[system]\nBe brief.\n\n[user]\nWho [wrote] Emma?\n\n[assistant]\nSo: Jane Austen\n"


def test_text_outside_turns_is_shown_as_it_is() -> None:
    @ft.function
    def mixed(s):
        s += "A long line " * 20 + "before."
        s += ft.user("hi")
        s += "after " + ft.gen("x")

    lines = shown(mixed.run(backend=ft.Fake(["more"]))).split("\n\n")
    assert lines == ["A long line " * 20 + "before.", "[user]\nhi", "after more\n"]


def test_a_terminal_shows_what_the_model_wrote_in_bold(monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    @ft.function
    def ask(s):
        s += ft.assistant("So: " + ft.gen("answer"))

    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "So: \x1b[1myes\x1b[0m" in shown(ask.run(backend=ft.Fake(["yes"])), Terminal())


def test_an_empty_run_shows_nothing() -> None:
    @ft.function
    def nothing(s): ...

    assert shown(nothing.run(backend=ft.Fake([]))) == ""
