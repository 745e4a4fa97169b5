"""Every lesson runs as it stands, on the built-in model, and prints something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parent.parent / "tutorials"
LESSONS = sorted(TUTORIALS.glob("[0-9]*.py"))


def test_there_are_lessons() -> None:
    assert [lesson.name[:2] for lesson in LESSONS] == [f"{n:02}" for n in range(1, len(LESSONS) + 1)]


@pytest.mark.model
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs(lesson: Path, model_dir: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error::ResourceWarning", str(lesson)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_uses_the_public_surface_alone(lesson: Path) -> None:
    assert "from forktree." not in lesson.read_text()
    assert "import forktree." not in lesson.read_text()
