"""The progress bar of `map`: rich, loaded when a bar is asked for. Shows the rate and an estimate of the rest."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from types import TracebackType
from typing import Any


class _Stderr:
    """stderr as the bar writes to it. What cannot be written (the terminal is gone, its disk is full) is dropped: no
    bar is worth a row."""

    def __init__(self) -> None:
        self._stream = sys.stderr or io.StringIO()

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class ProgressBar:
    """A bar on stderr. `total` None shows counts without an estimate."""

    def __init__(self, label: str, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar: Any = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[failed]}"),
            console=Console(file=_Stderr()),  # type: ignore[arg-type]
        )
        self._task = self._bar.add_task(label, total=total, rate="", failed="")
        self._num_failed = 0

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, *, failed: bool) -> None:
        """One more row is done."""
        self._num_failed += failed
        task = self._bar.tasks[self._task]
        rate = f"{(task.completed + 1) / max(task.elapsed or 0, 1e-9):.1f} rows/s"
        shown = f"{self._num_failed} failed" if self._num_failed else ""
        self._bar.update(self._task, advance=1, rate=rate, failed=shown)
