"""What tests ask of a backend over fakes: branches, a whole generation, and that nothing of it stays."""

from __future__ import annotations

from forktree.backend.local import Local
from forktree.lang.sampling import Sampling
from forktree.runtime.protocol import Branch, Completion, Delta, GenerateRequest, Segment, Text

MERGES = [
    ("Ġ", "A"), ("ĠA", "d"), ("ĠAd", "a"), ("N", "a"), ("Na", "m"), ("Nam", "e"), ("A", "d"), ("Ad", "a"),
    ("Ġ", "y"), ("Ġy", "e"), ("Ġye", "s"), ("X", "b"), ("d", "a"),
]  # fmt: skip


def branch_of(*segments: Segment | str, on: Branch | None = None) -> Branch | None:
    for segment in segments:
        on = Branch(on, Text(segment) if isinstance(segment, str) else segment)
    return on


async def run(local: Local, branch: Branch | None, *, constraint=None, heal: bool = True, **sampling):
    """The deltas, and the completion behind them."""
    request = GenerateRequest(branch=branch, sampling=Sampling(**sampling), constraint=constraint, heal=heal)
    events = [event async for event in local.stream(request)]
    assert all(isinstance(event, Delta) for event in events[:-1])
    completion = events[-1]
    assert isinstance(completion, Completion)
    assert "".join(event.text for event in events[:-1]) == completion.segment.text
    return [event.text for event in events[:-1]], completion


async def value(local: Local, branch: Branch | None, **options) -> str:
    return (await run(local, branch, **options))[1].segment.text


async def assert_idle(local: Local) -> None:
    await local.prefill(branch_of("y"))  # commands are carried out in order
    assert local.stats().num_running == 0
    local.flush_cache()
    assert local.stats().pages_free == local.stats().pages_total
