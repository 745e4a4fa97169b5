"""API speculation: generations in a row with fixed text between, asked for in one call.

A service without token ids is sent the whole prompt again for every generation. In "Name:" gen "\\nAge:" gen the model,
asked once and not stopped, often writes the fixed text itself. Its answer is then cut where each generation's stop
stands, and kept as far as it agrees with the program:

    answer        " Ada\\nAge: 36\\nJob: …"
    generation    " Ada"             ends at its stop "\\n"
    fixed text          "\\nAge:"     is what follows: go on
    generation                " 36"  ends at its stop "\\n"

What does not agree is asked for again, one call a generation. A value is therefore always one that a call of its own
could have given; only budgets add up, since text has no count of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from forktree.lang import ir
from forktree.lang.program import Speculation
from forktree.lang.sampling import Sampling

if TYPE_CHECKING:
    from forktree.runtime.cursor import TipStep

_TOKENS_WITHOUT_BUDGET = 128


@dataclass(frozen=True, slots=True)
class Group:
    """Generations that one call asks for.

    Attributes:
        sampling: of the call: what the generations have in common, no stop, and the budgets of all.
        stops: those of each generation.
        texts: the fixed text between, one less than there are generations.
    """

    sampling: Sampling
    stops: tuple[tuple[str, ...], ...]
    texts: tuple[str, ...]


class Part(NamedTuple):
    """The value of one generation, and the stop that ended it; None is the end of the answer."""

    text: str
    stop: str | None


def group_of(
    first: ir.Gen, behind: Iterable[ir.Node | TipStep], defaults: Sampling | None, speculation: Speculation
) -> Group | None:
    """What can be asked for together with `first`; None when it is alone."""
    sampling = _resolved(first, defaults)
    if not _can_share(first, sampling) or not sampling.stop:
        return None
    gens, texts, text = [sampling], [], ""
    for node in behind:
        if isinstance(node, ir.Text) and not node.markup:
            text += node.text
            continue
        if not isinstance(node, ir.Gen) or not text or not gens[-1].stop:
            break
        resolved = _resolved(node, defaults)
        if not _can_share(node, resolved) or _common(resolved) != _common(sampling):
            break
        gens.append(resolved)
        texts.append(text)
        text = ""
    if len(gens) < 2:
        return None
    budget = sum(each.max_tokens or _TOKENS_WITHOUT_BUDGET for each in gens)
    if speculation.max_tokens is not None:
        budget = speculation.max_tokens
    together = replace(_common(sampling), max_tokens=budget)
    return Group(together, tuple(each.stop or () for each in gens), tuple(texts))


def _resolved(node: ir.Gen, defaults: Sampling | None) -> Sampling:
    return node.sampling if defaults is None else node.sampling.over(defaults)


_ITS_OWN = (
    "min_tokens",
    "stop_regex",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
"""What counts a generation's own tokens, or ends it by them."""


def _can_share(node: ir.Gen, sampling: Sampling) -> bool:
    """Free text of one sample, that nothing ends but a stop string, a budget or the model itself."""
    is_free = node.output is None and (sampling.n or 1) == 1
    return is_free and all(getattr(sampling, name) is None for name in _ITS_OWN)


def _common(sampling: Sampling) -> Sampling:
    return replace(sampling, stop=None, max_tokens=None)


def split(answer: str, is_whole: bool, group: Group) -> list[Part]:
    """The values that the answer settles, from the first on; it may be fewer than were asked for.

    Args:
        is_whole: the model ended the answer itself, so that its last value is one that ends there.
    """
    parts: list[Part] = []
    at = 0
    for index, stops in enumerate(group.stops):
        found = _first_stop(answer, at, stops)
        if found is None:
            if is_whole:
                parts.append(Part(answer[at:], None))
            break
        start, stop = found
        parts.append(Part(answer[at:start], stop))
        if index == len(group.texts) or not answer.startswith(group.texts[index], start):
            break
        at = start + len(group.texts[index])
    return parts


def _first_stop(text: str, at: int, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Where the stop stands whose end comes first, and of several that end there the longest."""
    found = [(start + len(stop), start, stop) for stop in stops if (start := text.find(stop, at)) >= 0]
    if not found:
        return None
    _, start, stop = min(found)
    return start, stop
