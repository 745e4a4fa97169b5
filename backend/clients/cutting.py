"""Stops that are kept on this side: where a service writes a stop string into its answer, or has no patterns."""

from __future__ import annotations

from forktree.backend.stops import Finder, Match, PatternFinder, RegexAutomaton, StringFinder
from forktree.lang.sampling import Sampling


class StopCutter:
    """Takes an answer piece by piece and lets through what no stop can take back.

    Attributes:
        match: the stop that was found; nothing is let through any more.
    Raises, when made:
        ConstraintError: the pattern matches the empty text, or cannot be honoured.
    """

    def __init__(self, sampling: Sampling) -> None:
        finders: list[Finder] = [StringFinder(sampling.stop)] if sampling.stop else []
        if sampling.stop_regex is not None:
            finders.append(PatternFinder(RegexAutomaton(sampling.stop_regex)))
        self._finders = finders
        self._text = ""
        self._num_shown = 0
        self.match: Match | None = None

    def take(self, piece: str) -> str:
        """What can be shown now."""
        if self.match is not None:
            return ""
        if not self._finders:
            return piece
        self._text += piece
        found = [match for finder in self._finders if (match := finder.find(piece, after=0)) is not None]
        self.match = min(found, default=None)
        if self.match is not None:
            return self._shown_to(self.match.start)
        return self._shown_to(min(finder.held_from for finder in self._finders))

    def end(self) -> str:
        """What was held back, when no more comes."""
        return "" if self.match is not None else self._shown_to(len(self._text))

    def _shown_to(self, end: int) -> str:
        shown, self._num_shown = self._text[self._num_shown : end], max(self._num_shown, end)
        return shown
