"""`Tag`: a stretch of an output that obeys a constraint of its own, between two pieces of markup."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

from forktree.lang.constraints import ConstraintSpec, HasSpec, TagSpec, TagsSpec
from forktree.lang.errors import ConstraintError
from forktree.lang.types import output_from_schema


@dataclass(frozen=True, slots=True)
class Tag:
    """`begin`, then what `content` allows, then `end`.

    Args:
        begin: markup that opens the tag; where the model has special tokens for it, it is those.
        content: a constraint object, or anything that `gen(schema=…)` takes; None is any text up to the first `end`.
        end: markup that closes the tag; it may be empty where there is a content.
    """

    begin: str
    content: Any = None
    end: str = ""


def tags_spec(
    tags: Iterable[Tag], triggers: Iterable[str], *, at_least: int, at_most: int | None, text_after: bool
) -> TagsSpec:
    """
    Raises:
        ConstraintError: an argument is not what it should be.
    """
    specs = tuple(map(_tag_spec, tags))
    if not specs:
        raise ConstraintError("tags must not be empty")
    if isinstance(triggers, str):
        raise ConstraintError(f"triggers must be a list of texts, not one text: {triggers!r}")
    starts = tuple(triggers)
    for trigger in starts:
        if not isinstance(trigger, str) or not any(tag.begin.startswith(trigger) for tag in specs) or not trigger:
            raise ConstraintError(f"the trigger {trigger!r} must be a text that some tag begins with")
    for name, count in (("at_least", at_least), ("at_most", 0 if at_most is None else at_most)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ConstraintError(f"{name} must be a count, not {count!r}")
    if at_most is not None and at_most < max(at_least, 1):
        raise ConstraintError(f"at_most is {at_most}, below {'at_least' if at_least else 'one'}")
    if at_most is None and not text_after:
        raise ConstraintError("text_after=False goes with at_most=: which tag is the last one?")
    return TagsSpec(specs, starts, at_least, at_most, text_after)


def _tag_spec(tag: Tag) -> TagSpec:
    if not isinstance(tag, Tag):
        raise ConstraintError(f"tags must be a list of ft.Tag, and {tag!r} is none")
    for name, text in (("begin", tag.begin), ("end", tag.end)):
        if not isinstance(text, str):
            raise ConstraintError(f"a tag's {name} must be a text, not {text!r}")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise ConstraintError(f"the tag's {name} {text!r} has a lone surrogate, which no text can have")
    if not tag.begin:
        raise ConstraintError("a tag's begin must not be empty")
    if tag.content is None and not tag.end:
        raise ConstraintError(f"the tag {tag.begin!r} needs a content, an end, or both")
    return TagSpec(tag.begin, _spec_of(tag.content), tag.end)


def _spec_of(content: Any) -> ConstraintSpec | None:
    if content is None or isinstance(content, get_args(ConstraintSpec)):
        return content
    if isinstance(content, HasSpec) and not isinstance(content, type):
        return content.spec
    return output_from_schema(content).spec
