"""What moved between the KV pool and the tiers below it."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(slots=True)
class TierCounts:
    """Counts that grow for ever, but for `host_pages`, which are held now. See `EngineStats` for what each says."""

    pages_to_host: int = 0
    pages_to_disk: int = 0
    pages_from_host: int = 0
    pages_from_disk: int = 0
    bytes_to_host: int = 0
    bytes_to_disk: int = 0
    bytes_from_host: int = 0
    bytes_from_disk: int = 0
    pages_not_written: int = 0
    num_declined: int = 0
    num_tier_faults: int = 0
    host_pages: int = 0

    def copy(self) -> TierCounts:
        return replace(self)
