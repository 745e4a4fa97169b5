"""From the tokens of one output to text that may be shown: whole characters, no stop, nothing twice."""

from __future__ import annotations

from collections.abc import Sequence

from forktree.backend.detokenizer import TextDecoder
from forktree.backend.engine.messages import Emission
from forktree.backend.stops import ByteAutomaton, Finder, Match, PatternFinder, StringFinder


class StopWatcher:
    """The `TextSink` of one output. Not shared between threads.

    Stops are looked for in what was generated alone, behind the prefix that the decoder skips.

    Args:
        decoder: a fresh decoder of this output.
        stops: strings that end it.
        stop_pattern: the automaton of a pattern that ends it.
        min_tokens: a stop that is complete before this many tokens is text.
        behind: markup that ends reasoning; what comes before its end is no answer, so a stop in it is text.
    """

    def __init__(
        self,
        decoder: TextDecoder,
        *,
        stops: Sequence[str] = (),
        stop_pattern: ByteAutomaton | None = None,
        min_tokens: int = 0,
        behind: str = "",
    ) -> None:
        self._decoder = decoder
        self._finders: list[Finder] = [StringFinder(stops)] if stops else []
        if stop_pattern is not None:
            self._finders.append(PatternFinder(stop_pattern))
        self._min_tokens = min_tokens
        self._behind = behind
        self._before = ""  # the end of the reasoning so far
        self._pieces: list[str] = []  # all text so far
        self._held = ""  # its end that is not shown
        self._free_until = 0  # stops that end up to this offset are text
        self._ends: list[int | None] = []  # per token: characters up to its end; None ends inside a character

    @property
    def num_tokens(self) -> int:
        """Tokens taken so far."""
        return len(self._ends)

    def feed(self, token: int) -> Emission:
        piece = self._decoder.feed(token)
        num_chars = self._decoder.num_chars
        is_whole = not (self._decoder.has_partial_character or self._decoder.is_skipping)
        self._ends.append(num_chars if is_whole else None)
        self._pieces.append(piece)
        self._held += piece
        if self.num_tokens < self._min_tokens:
            self._free_until = num_chars
        if self._behind:
            self._free_until = max(self._free_until, self._end_of_reasoning(piece))
        matches = [m for finder in self._finders if (m := finder.find(piece, after=self._free_until))]
        if matches:
            return self._stop(min(matches))
        return Emission(self._show(min((finder.held_from for finder in self._finders), default=num_chars)))

    def _end_of_reasoning(self, piece: str) -> int:
        """Where the reasoning ends, as far as it has come."""
        before, num_chars = self._before + piece, self._decoder.num_chars
        at = before.find(self._behind)
        if at < 0:
            self._before = before[-len(self._behind) :]
            return num_chars
        end = num_chars - len(before) + at + len(self._behind)
        self._behind = ""
        return end

    def flush(self) -> str:
        text = self._held + self._decoder.flush()
        self._held = ""
        return text

    def _show(self, until: int) -> str:
        """What is held up to an offset of the text; it is held no more."""
        count = max(0, until - (self._decoder.num_chars - len(self._held)))
        text, self._held = self._held[:count], self._held[count:]
        return text

    def _stop(self, match: Match) -> Emission:
        text = self._show(match.start)
        self._held = ""
        ends = [(end, index + 1) for index, end in enumerate(self._ends) if end is not None and end <= match.start]
        num_chars, num_kept = max(ends, default=(0, 0))
        tail = "".join(self._pieces)[num_chars : match.start]
        return Emission(text, match.text, num_kept, tail)
