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
        max_inputs: most texts of one request for embeddings.
        max_running: sequences that the engine has at a time; the others wait for their tenant's turn.
        max_waiting: requests that may wait; more are told to come again.
        requests_per_minute: of one key; None is no limit.
        total_requests_per_minute: of all together.
        timeout_s: seconds that an answer may take; None is no limit.
        shares_cache: requests of different keys share cached prompts.
        cors_origins: of pages whose scripts may ask; "*" is any. What other pages send is refused.
    Raises:
        ValueError: a value is out of range.
    """

    model_names: tuple[str, ...]
    api_keys: frozenset[str] = frozenset()
    max_body_bytes: int = 32 << 20
    max_choices: int = 256
    max_inputs: int = 2048
    max_running: int = 128
    max_waiting: int = 1024
    requests_per_minute: float | None = None
    total_requests_per_minute: float | None = None
    timeout_s: float | None = None
    shares_cache: bool = False
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.model_names or not all(self.model_names):
            raise ValueError(f"model_names must hold at least one name and no empty one, not {self.model_names!r}")
        if not all(self.api_keys):
            raise ValueError("an API key must not be empty: leave api_keys empty to let everyone in")
        for name in ("max_body_bytes", "max_choices", "max_inputs", "max_running"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.max_waiting < 0:
            raise ValueError(f"max_waiting must be at least 0, not {self.max_waiting!r}")
        for name in ("requests_per_minute", "total_requests_per_minute", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be more than 0, not {value!r}; leave it out for no limit")
