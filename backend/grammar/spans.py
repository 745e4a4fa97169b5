"""Counts of repeats: intervals `(low, high)`, both within; None is without end."""

from __future__ import annotations

Span = tuple[int, int | None]


def touching(spans: list[Span]) -> list[Span]:
    """The same counts with intervals that touch joined."""
    merged: list[Span] = []
    for low, high in sorted(spans, key=lambda span: span[0]):
        last = merged[-1] if merged else None
        if last is not None and (last[1] is None or low <= last[1] + 1):
            merged[-1] = (last[0], None if last[1] is None or high is None else max(last[1], high))
        else:
            merged.append((low, high))
    return merged


def multiplied(low: int, high: int | None, times: int, most: int | None) -> Span | None:
    """(x{low,high}){times,most} as one x{…}, or None where the counts would have gaps."""
    top = None if high is None or most is None else high * most
    if times == most:
        return low * times, top
    if times == 0:
        return (0, top) if low <= 1 else None
    # k copies reach [k low, k high]; the gap to k + 1 copies is widest for the fewest copies
    return (low * times, top) if high is None or (times + 1) * low <= times * high + 1 else None
