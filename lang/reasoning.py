"""`Reasoning`: the model thinks before it answers, and the answer alone is the value."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forktree.lang.constraints import ReasoningSpec
from forktree.lang.errors import LanguageError
from forktree.lang.types import Output


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How `gen(reasoning=…)` lets the model think.

    Args:
        begin, end: markup around the reasoning; None is what the model's chat template shows.
        max_tokens: most tokens of the reasoning; then its end is written and the answer follows.
    Raises:
        LanguageError: an argument is not what it should be.
    """

    begin: str | None = None
    end: str | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, text in (("begin", self.begin), ("end", self.end)):
            if text is not None and (not isinstance(text, str) or not text):
                raise LanguageError(f"Reasoning takes {name}= as text that is not empty, not {text!r}")
        if (self.begin is None) != (self.end is None):
            raise LanguageError("Reasoning takes begin= and end= together, or neither")
        most = self.max_tokens
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
            raise LanguageError(f"Reasoning takes max_tokens= as a count, not {most!r}")


def reasoned(output: Output | None, reasoning: object) -> Output | None:
    """The output with reasoning before it, if any is asked for.

    Raises:
        LanguageError: `reasoning` is neither a bool nor a `Reasoning`.
    """
    if reasoning is False:
        return output
    if reasoning is True:
        reasoning = Reasoning()
    if not isinstance(reasoning, Reasoning):
        raise LanguageError(f"reasoning= is True, False or ft.Reasoning(…), not {reasoning!r}")
    begin, end, most = reasoning.begin, reasoning.end, reasoning.max_tokens
    if output is None:
        return Output(ReasoningSpec(None, begin, end, most))
    return replace(output, spec=ReasoningSpec(output.spec, begin, end, most))
