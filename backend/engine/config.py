"""The engine's few numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits that the scheduler keeps.

    Attributes:
        max_running: most sequences that hold pages at a time.
        max_step_tokens: most new tokens of one forward pass; a step in which nothing decodes takes as many of prompts.
        max_slowdown: most times that a step takes what its decodes alone would, for the prompts in it. At 4 a full
            batch still moves at a quarter of its pace while prompts are computed; infinity leaves only
            `max_step_tokens`.
        min_chunk: tokens of prompts in a step are worth at least so many passes of one row, whatever the slowdown:
            what passes cost besides their rows then adds at most 1 / min_chunk to the price of a prompt
            (`costs.count_prefill` has the arithmetic).
        max_overtakes: most requests that may be admitted before an older one that waits at the head. To leave the order
            of the tree for one request costs little, and under a load that never ends each request that shares nothing
            waits for so many others, and for those of its kind before it.
        window: how many of the oldest waiting requests are ordered by the tree they form.
        headroom_tokens: growth that is kept free for each running sequence when another is admitted.
        max_draft: most tokens that are guessed ahead of a sequence in one step (`speculation.py`); 0 guesses none.
        fixed_rows: what a forward pass costs besides its rows, in rows; it decides when a guess pays, and
            the mix of prompts and decodes. None measures it, and whether a page is worth bringing up from a lower
            tier; where it is stated, all are.
        host_bytes: most bytes of evicted pages that are kept in host memory; 0 keeps none there.
        cache_dir: folder in which pages outlive the process (`cache/disk.py`); None keeps none.
        cache_bytes: most bytes of that folder.
        fingerprint: what decides a page's bytes besides its tokens; needed with `cache_dir`.

    Raises:
        ValueError: a number is out of range, or one step could not hold one token of each running sequence.
    """

    max_running: int = 64
    max_step_tokens: int = 512
    max_slowdown: float = 4.0
    min_chunk: float = 32.0
    max_overtakes: int = 32
    window: int = 256
    headroom_tokens: int = 32
    max_draft: int = 8
    fixed_rows: float | None = None
    host_bytes: int = 0
    cache_dir: str | None = None
    cache_bytes: int = 8 << 30
    fingerprint: str = ""

    def __post_init__(self) -> None:
        for name in ("max_running", "max_step_tokens", "max_slowdown", "min_chunk", "max_overtakes", "window"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("headroom_tokens", "max_draft", "fixed_rows", "host_bytes"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.cache_bytes < 1:
            raise ValueError(f"cache_bytes must be at least 1, not {self.cache_bytes}")
        if self.cache_dir is not None and not self.fingerprint:
            raise ValueError("cache_dir needs a fingerprint: pages of different models must not be mixed")
        if self.max_step_tokens < self.max_running:
            raise ValueError(
                f"max_step_tokens ({self.max_step_tokens}) must be at least max_running ({self.max_running}), "
                "so that every running sequence can take one token a step"
            )
