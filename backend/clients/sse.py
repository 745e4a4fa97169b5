"""Server-sent events out of bytes, as they come.

The format is that of the HTML standard ("Server-sent events"): fields a line, an empty line ends an event, a line
that begins with a colon is a comment, and a line may end in CR, LF or both.
"""

from __future__ import annotations

from typing import NamedTuple


class ServerEvent(NamedTuple):
    """One event: its kind ("message" where it says none) and its data, lines joined."""

    kind: str
    data: str


class EventReader:
    """Takes bytes piece by piece, cut anywhere, and gives the events that they complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._kind = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """The events that end in this piece."""
        lines = (self._rest + piece).splitlines(keepends=True)
        self._rest = b""
        # A CR at the very end may be half of a CRLF, so its line waits for what follows.
        if lines and not lines[-1].endswith(b"\n"):
            self._rest = lines.pop()
        return [event for line in lines if (event := self._take(line.rstrip(b"\r\n"))) is not None]

    def end(self) -> list[ServerEvent]:
        """What the last bytes hold, although no empty line followed them."""
        rest, self._rest = self._rest.rstrip(b"\r\n"), b""
        events = [self._take(rest), self._take(b"")] if rest else [self._take(b"")]
        return [event for event in events if event is not None]

    def _take(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._kind = value
        return None

    def _dispatch(self) -> ServerEvent | None:
        kind, data = self._kind or "message", self._data
        self._kind, self._data = "", []
        return ServerEvent(kind, "\n".join(data)) if data else None
