"""A forward pass that fails is split and tried again, until what fails stands alone.

What a pass wrote before it failed lies in slots behind every sequence's last computed token. Nobody reads them before
they are written again, and a row's result does not depend on the rows beside it, so what succeeds in a smaller pass has
the same bits as in the whole. A pass is split whatever it failed with: too little memory for so many rows, or one row
that the model cannot compute, are told apart by trying, not by their exceptions.
"""

from __future__ import annotations

from collections.abc import Sequence

from forktree.backend.engine.scheduler import Chunk


def split_chunks(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """Smaller passes that compute the same in order; none where one row is left.

    Several sequences are parted. Of one alone the draft goes first, then its rows are halved: a pass that is too large
    for the memory may have a single long prompt.
    """
    if len(chunks) > 1:
        half = len(chunks) // 2
        return [list(chunks[:half]), list(chunks[half:])]
    (chunk,) = chunks
    if chunk.draft is not None:
        return [[chunk._replace(draft=None)]]
    half = chunk.num_tokens // 2
    if half == 0:
        return []
    first, second = chunk._replace(num_tokens=half), chunk._replace(start=chunk.start + half)
    return [[first], [second._replace(num_tokens=chunk.num_tokens - half)]]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was wanting, as Python, torch's allocator on a CPU or one of a GPU says it. For advice alone."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(
        said in text for said in ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate")
    )
