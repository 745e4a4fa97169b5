"""`Replay`: records what a backend answers, and answers from the record.

    Replay("run.jsonl", backend)   asks the backend, and writes each request with its answer
    Replay("run.jsonl")            asks nobody: each request gets the answer that it got

Whatever else the backend offers (`Planner`, and `stats`, `flush_cache` …) is its own while it is recorded, and not
there in a replay.

Requests are told apart by all that they hold: the branch with the ids generated so far, sampling, constraint,
name and sample. A request that was not recorded is a divergence: an error that shows where it differs from the
nearest recorded one. Equal requests get their answers in the order of the recording.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import stat
import threading
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from forktree.backend import wire
from forktree.lang import errors
from forktree.lang.errors import BackendError, ForktreeError
from forktree.runtime import protocol

_log = logging.getLogger("forktree.replay")
_FORMAT = "forktree.replay/1"
Request = protocol.GenerateRequest | protocol.ScoreRequest


class Replay:
    """See the module. Writes a line a request at once, so that a killed recording is whole up to there: a last line
    that was cut is left out, with a warning.

    With a backend, a file that exists is replaced; the backend is closed with the recording. The file is readable by
    its owner alone. A line that cannot be written is a BackendError of its request; the lines before it stay whole.
    """

    def __init__(self, path: str | Path, backend: protocol.Backend | None = None) -> None:
        self._path = Path(path)
        self._backend = backend
        self._file: io.FileIO | None = None
        self._num_bytes = 0  # of whole lines
        self._lock = threading.Lock()  # guards the answers, which any thread may take
        if backend is None:
            self._name, self._capabilities, self._answers = _read(self._path)
        else:
            self._name, self._capabilities, self._answers = backend.name, backend.capabilities, {}
            self._file = _open_private(self._path)
            self._write({"format": _FORMAT, "name": self._name, "capabilities": wire.encode(self._capabilities)})

    @property
    def name(self) -> str:
        return f"Replay of {self._name}"

    @property
    def identity(self) -> object:
        """See `protocol.Identified`: a record answers as what it recorded."""
        return self.name

    @property
    def capabilities(self) -> protocol.Capabilities:
        return self._capabilities

    def __getattr__(self, name: str) -> Any:
        """What only some backends have, of the one that is recorded."""
        if name.startswith("_") or self._backend is None:
            raise AttributeError(f"{self.name} has no {name!r}")
        return getattr(self._backend, name)

    @property
    def answer_at_hand(self) -> protocol.AnswerAtHand | None:
        """In a replay, what was answered without an error; what is recorded is asked for by `stream`."""
        return self._answer_now if self._backend is None else None

    def _answer_now(self, request: protocol.GenerateRequest) -> list[protocol.Delta | protocol.Completion] | None:
        with self._lock:
            answers = self._answers.get(wire.dump(request))
            if not answers or "error" in answers[0]:
                return None
            return [wire.decode(event) for event in answers.popleft()["events"]]

    @property
    def num_unused(self) -> int:
        """Recorded answers that no request has taken yet."""
        return sum(map(len, self._answers.values()))

    async def stream(self, request: protocol.GenerateRequest) -> AsyncIterator[protocol.Delta | protocol.Completion]:
        """The recorded deltas and completion, or the recorded error."""
        if self._backend is None:
            answer = self._take(wire.dump(request), request)
            for event in answer["events"]:
                yield wire.decode(event)
            _raise_recorded(answer)
            return
        record: dict[str, Any] = {"request": wire.encode(request), "events": []}
        try:
            async for event in self._backend.stream(request):
                record["events"].append(wire.encode(event))
                yield event
        except (asyncio.CancelledError, GeneratorExit):
            record["error"] = ["RunCancelledError", "the recorded run gave this request up here"]
            raise
        except Exception as error:
            record["error"] = [type(error).__name__, str(error)]
            raise
        finally:
            self._write(record)

    async def score(self, request: protocol.ScoreRequest) -> protocol.ScoreResult:
        """The recorded scores, or the recorded error."""
        if self._backend is None:
            answer = self._take(wire.dump(request), request)
            _raise_recorded(answer)
            result: protocol.ScoreResult = wire.decode(answer["result"])
            return result
        record: dict[str, Any] = {"request": wire.encode(request)}
        try:
            result = await self._backend.score(request)
            record["result"] = wire.encode(result)
        except Exception as error:
            record["error"] = [type(error).__name__, str(error)]
            raise
        finally:
            self._write(record)
        return result

    async def prefill(self, branch: protocol.Branch) -> None:
        """A hint: not recorded, and nothing to do in a replay."""
        if self._backend is not None:
            await self._backend.prefill(branch)

    async def tokens(self, branch: protocol.Branch | None) -> tuple[int, ...]:
        """The recorded ids of this branch."""
        if self._backend is None:
            answers = self._answers.get(wire.dump(branch))
            if not answers:
                raise BackendError(f"{self._path} has no recorded tokens of this branch")
            ids: tuple[int, ...] = wire.decode(answers[0]["result"])
            return ids
        ids = await self._backend.tokens(branch)
        self._write({"request": wire.encode(branch), "result": wire.encode(ids)})
        return ids

    def close(self) -> None:
        """End the recording, and close the recorded backend; closing twice is harmless."""
        if self._file is not None:
            self._file.close()
        if self._backend is not None:
            self._backend.close()

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, record: dict[str, Any]) -> None:
        """Append a line. Raises BackendError: it cannot be written, and the file ends with the line before it."""
        file = self._file
        if file is None or file.closed:
            return
        line = (json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n").encode()
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):  # no regular file
                file.truncate(self._num_bytes)
                file.seek(self._num_bytes)
            what = f"an answer could not be recorded in {self._path} ({error}); is the disk full?"
            raise BackendError(what) from error
        self._num_bytes += len(line)

    def _take(self, key: str, request: Request) -> dict[str, Any]:
        with self._lock:
            answers = self._answers.get(key)
            if answers:
                return answers.popleft()
        raise BackendError(f"the run diverges from {self._path}: {self._difference(key, request)}")

    def _difference(self, key: str, request: Request) -> str:
        label = f"request {request.name!r}"
        if key in self._answers:
            return f"{label} was made more often than it was recorded"
        recorded = [wire.load(other) for other, answers in self._answers.items() if answers]
        same_name = [other for other in recorded if isinstance(other, type(request)) and other.name == request.name]
        if not same_name:
            return f"{label} was not recorded; its prompt ends {request.prompt[-80:]!r}"
        nearest = max(same_name, key=lambda other: _common(other.prompt, request.prompt))
        at = _common(nearest.prompt, request.prompt)
        if nearest.prompt == request.prompt:
            return f"{label} has the recorded prompt, and other sampling, constraint or options: {request!r}"
        return (
            f"the prompt of {label} differs at character {at}: recorded {nearest.prompt[at : at + 40]!r}, "
            f"now {request.prompt[at : at + 40]!r}"
        )


def _common(one: str, two: str) -> int:
    """Length of the common beginning."""
    length = 0
    for a, b in zip(one, two, strict=False):
        if a != b:
            break
        length += 1
    return length


def _raise_recorded(answer: dict[str, Any]) -> None:
    if "error" in answer:
        name, message = answer["error"]
        cls = getattr(errors, name, None)
        is_plain = isinstance(cls, type) and issubclass(cls, ForktreeError) and cls is not errors.ContextLengthError
        raise cls(message) if is_plain else BackendError(f"{name}: {message}")  # type: ignore[misc]


def _open_private(path: Path) -> io.FileIO:
    """Open a new or emptied file, mode 0600 whatever the umask; what is no regular file keeps its mode."""
    file = io.FileIO(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600))
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        path.chmod(0o600)
    return file


def _read(path: Path) -> tuple[str, protocol.Capabilities, dict[str, deque[dict[str, Any]]]]:
    try:
        *lines, cut = path.read_bytes().split(b"\n")
        if cut:
            _log.warning("the last line of %s was cut short when the recording ended; it is left out", path)
        header, *records = [json.loads(line) for line in lines]
        if header["format"] != _FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
        answers: dict[str, deque[dict[str, Any]]] = {}
        for record in records:
            key = json.dumps(record["request"], ensure_ascii=False, sort_keys=True, separators=(",", ":"))
            answers.setdefault(key, deque()).append(record)
        return header["name"], wire.decode(header["capabilities"]), answers
    except FileNotFoundError as error:
        raise BackendError(f"{path} does not exist; record it with Replay({str(path)!r}, backend)") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BackendError(f"{path} is not a recording: {error}") from error
