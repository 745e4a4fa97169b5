"""What whoever starts a server decides about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    Attributes:
        model_names: what the model is called in requests; the first is what answers call it.
        api_keys: keys of which every request has to bring one; empty lets everyone in.
        max_body_bytes: longest body of a request.
        max_choices: most sequences of one request, prompts times samples.
    Raises:
        ValueError: a value is out of range.
    """

    model_names: tuple[str, ...]
    api_keys: frozenset[str] = frozenset()
    max_body_bytes: int = 32 << 20
    max_choices: int = 256

    def __post_init__(self) -> None:
        if not self.model_names or not all(self.model_names):
            raise ValueError(f"model_names must hold at least one name and no empty one, not {self.model_names!r}")
        if not all(self.api_keys):
            raise ValueError("an API key must not be empty: leave api_keys empty to let everyone in")
        for name in ("max_body_bytes", "max_choices"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
