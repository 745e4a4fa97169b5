"""Making a conversation fit: what the system says and the last turn stay, the oldest or the middle goes.

    "oldest"   whole turns go, the oldest first; of plain text the beginning
    "middle"   the longest text loses its middle, again and again, until all fits

The turn that the model is to go on with is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

from forktree.backend.clients.counting import TURN_TOKENS
from forktree.backend.clients.turns import Conversation, Part, Turn
from forktree.lang.errors import ContextLengthError, UnsupportedError

Truncate = Literal["error", "oldest", "middle"]
GAP = " … "
"""What stands where the middle was."""

Count = Callable[[str], int]


def checked_truncate(truncate: object) -> Truncate:
    """Raises UnsupportedError where it is none."""
    if truncate not in get_args(Truncate):
        raise UnsupportedError(f'truncate= is "error", "oldest" or "middle", not {truncate!r}')
    return truncate  # type: ignore[return-value]


def count_tokens(told: Conversation, count: Count) -> int:
    """Tokens of a conversation, with what a template writes around its turns, about."""
    if told.plain is not None:
        return count(told.plain)
    turns = sum(count(turn.text) + TURN_TOKENS for turn in told.turns)
    return turns + count(told.begun) + TURN_TOKENS + sum(map(count, told.tools))


def fitted(told: Conversation, limit: int, truncate: Truncate, count: Count) -> Conversation:
    """The conversation in at most `limit` tokens, itself where it fits.

    Raises:
        ContextLengthError: nothing may be cut, or what has to stay is too long.
    """
    num_tokens = count_tokens(told, count)
    if num_tokens <= limit:
        return told
    if truncate == "error":
        raise ContextLengthError(
            f"the prompt has about {num_tokens} tokens, and {limit} are left for it; shorten it, lower max_tokens, or "
            'give truncate="middle" or "oldest"',
            limit=limit,
            tokens=num_tokens,
        )
    cut = _without_oldest(told, limit, count) if truncate == "oldest" else _without_middle(told, limit, count)
    if cut is None:
        raise ContextLengthError(
            f"the prompt has about {num_tokens} tokens, {limit} are left for it, and what truncate={truncate!r} keeps "
            "is longer: shorten the system's text or the last turn, or lower max_tokens",
            limit=limit,
            tokens=num_tokens,
        )
    return cut


def _without_oldest(told: Conversation, limit: int, count: Count) -> Conversation | None:
    if told.plain is not None:
        text = told.plain
        keep = _most(len(text), lambda size: count(text[len(text) - size :]) <= limit)
        return replace(told, plain=text[len(text) - keep :]) if keep else None
    turns = list(told.turns)
    while count_tokens(told := replace(told, turns=tuple(turns)), count) > limit:
        oldest = next((i for i, turn in enumerate(turns[:-1]) if turn.role != "system"), None)
        if oldest is None:
            return None
        del turns[oldest]
        # An answer, or a tool's result, says nothing without what it answers.
        while oldest < len(turns) - 1 and turns[oldest].role in ("assistant", "tool"):
            del turns[oldest]
    return told


def _without_middle(told: Conversation, limit: int, count: Count) -> Conversation | None:
    if told.plain is not None:
        text = _cut_middle(told.plain, limit, count)
        return None if text is None else replace(told, plain=text)
    for _ in range(len(told.turns)):
        excess = count_tokens(told, count) - limit
        if excess <= 0:
            return told
        longest = _longest(told, count)
        if longest is None:
            return None
        at, part_at = longest
        turn = told.turns[at]
        text = turn.parts[part_at].text
        shorter = _cut_middle(text, max(0, count(text) - excess), count) or GAP.strip()
        parts = (*turn.parts[:part_at], replace(turn.parts[part_at], text=shorter), *turn.parts[part_at + 1 :])
        told = replace(told, turns=(*told.turns[:at], Turn(turn.role, parts), *told.turns[at + 1 :]))
    return told if count_tokens(told, count) <= limit else None


def _longest(told: Conversation, count: Count) -> tuple[int, int] | None:
    """Where the longest text that may be cut stands: turn and part."""
    places: list[tuple[int, int, int]] = [
        (count(part.text), -at, -part_at)
        for at, turn in enumerate(told.turns)
        if turn.role != "system"
        for part_at, part in enumerate(turn.parts)
        if _is_cuttable(part)
    ]
    if not places:
        return None
    _, at, part_at = max(places)
    return -at, -part_at


def _is_cuttable(part: Part) -> bool:
    return part.image is None and len(part.text) > len(GAP)


def _cut_middle(text: str, limit: int, count: Count) -> str | None:
    """The most of both ends that fits with the gap between them; None where nothing does."""

    def ends(size: int) -> str:
        head = size - size // 2
        return text[:head] + GAP + text[len(text) - size // 2 :]

    keep = _most(len(text) - 1, lambda size: count(ends(size)) <= limit)
    return ends(keep) if keep else None


def _most(high: int, fits: Callable[[int], bool]) -> int:
    """The largest size in [0, high] that fits; 0 where none does. Sizes that fit are all below those that do not."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
