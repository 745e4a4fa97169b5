"""What bringing pages up costs and what computing them costs, as measured: the cheaper of the two is done.

Only time depends on these figures, never a result: a page from a lower tier has the bits that computing it gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Step = Literal["copy", "disk", "compute"]

_FIRST_SHARE = 0.2  # of a new figure in the mean; what has been noted less often weighs less against it
_FADE = 0.05  # how far a mean goes back to its prior each time that it is the reason to load nothing
_LOOK_S = 0.002  # what a read costs besides its bytes: the thread, and finding the file
_LEAST_PATIENCE_S = 0.02
_MOST_PATIENCE_S = 5.0


class Rates(Protocol):
    def note(self, step: Step, amount: int, seconds: float) -> None:
        """So many bytes were copied into the pool or read from the disk, or so many tokens computed, in that time."""
        ...

    def is_worth(self, *, copied: int, read: int, num_tokens: int) -> bool:
        """Copying so many bytes into the pool, `read` of them from the disk first, takes less than computing tokens."""
        ...

    def patience_s(self, *, read: int, num_tokens: int) -> float:
        """How long a request waits for a read that was worth it."""
        ...


class FixedRates:
    """Whatever lies below the pool is brought up. For tests of what is brought up, and where costs are stated."""

    def note(self, step: Step, amount: int, seconds: float) -> None:
        pass

    def is_worth(self, *, copied: int, read: int, num_tokens: int) -> bool:
        return True

    def patience_s(self, *, read: int, num_tokens: int) -> float:
        return _MOST_PATIENCE_S


@dataclass(slots=True)
class _Mean:
    """Seconds of one unit: a running mean that begins at a prior."""

    prior: float
    value: float
    num_notes: int = 0

    def note(self, seconds: float) -> None:
        self.num_notes += 1
        self.value += max(_FIRST_SHARE, 1 / (self.num_notes + 1)) * (seconds - self.value)

    def fade(self) -> None:
        self.value += _FADE * (self.prior - self.value)


class MeasuredRates:
    """Running means, from priors of a plain machine: 4 GB/s between memories, 400 MB/s from a disk, 1,000 tokens/s."""

    def __init__(self) -> None:
        priors: dict[Step, float] = {"copy": 0.25e-9, "disk": 2.5e-9, "compute": 1e-3}
        self._means = {step: _Mean(prior, prior) for step, prior in priors.items()}

    def note(self, step: Step, amount: int, seconds: float) -> None:
        if amount > 0 and seconds >= 0:
            self._means[step].note(seconds / amount)

    def seconds(self, step: Step, amount: int) -> float:
        """What so much of a step takes, as far as is known."""
        return self._means[step].value * amount

    def is_worth(self, *, copied: int, read: int, num_tokens: int) -> bool:
        """A tier that was measured in a bad moment is tried again in the end."""
        if self._load_s(copied, read) <= self.seconds("compute", num_tokens):
            return True
        for step, is_used in (("copy", copied), ("disk", read)):
            if is_used:
                self._means[step].fade()  # type: ignore[index]
        return False

    def patience_s(self, *, read: int, num_tokens: int) -> float:
        """As long as computing would take, or twice what reading should."""
        likely = max(self.seconds("compute", num_tokens), 2 * self._load_s(0, read))
        return min(max(likely, _LEAST_PATIENCE_S), _MOST_PATIENCE_S)

    def _load_s(self, copied: int, read: int) -> float:
        read_s = _LOOK_S + self.seconds("disk", read) if read else 0.0
        return self.seconds("copy", copied) + read_s
