"""What a request's answer turned out to be, gathered while it is made, for whoever writes it down at the end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from forktree.runtime.protocol import Usage


@dataclass(slots=True)
class Notes:
    """Sizes, times and reasons alone; no text. The server's loop owns it.

    Attributes:
        asked_model: as the request names it.
        usage: of all its sequences; a prompt counts once for all its samples.
        begun: when it came, by `time.perf_counter`.
        first_s: seconds from then to the first token, or as few as are told together.
        reasons: why each sequence ended.
        fault: the kind of error that the answer was, or that its stream broke off with.
    """

    begun: float = field(default_factory=time.perf_counter)
    asked_model: str | None = None
    usage: Usage | None = None
    first_s: float | None = None
    reasons: list[str] = field(default_factory=list)
    fault: str | None = None

    def take_piece(self) -> None:
        """Something of the answer is there."""
        if self.first_s is None:
            self.first_s = time.perf_counter() - self.begun

    def add_usage(self, usage: Usage) -> None:
        """One more sequence, or several."""
        so_far = self.usage or Usage()
        self.usage = Usage(
            so_far.prompt_tokens + usage.prompt_tokens,
            so_far.cached_tokens + usage.cached_tokens,
            so_far.completion_tokens + usage.completion_tokens,
        )
