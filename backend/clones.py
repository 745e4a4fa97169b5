"""Clones of a tokenizer that treat text as text only. No torch."""

from __future__ import annotations

import json
from typing import Any

from forktree.backend.spelling import Description

ANCHOR = "\U0010fffdforktree\U0010fffd"
"""Stands for "a special token was here" (`Tokenizer.encode_run`): no text that is meant to be read holds it."""

_NOTHING_AROUND: Description = {"truncation": None, "padding": None, "post_processor": None}


def plain_clone(description: Description, markup_ids: frozenset[int]) -> Any:
    """The same tokenizer, but the spelling of a markup token in a text is only text."""
    from tokenizers import Tokenizer as Backend

    added = [{**token, "special": token["id"] in markup_ids} for token in description["added_tokens"]]
    clone = Backend.from_str(json.dumps({**description, "added_tokens": added, **_NOTHING_AROUND}))
    clone.encode_special_tokens = True  # "encode" as any other text: special tokens are not looked for
    return clone


def anchored_clone(description: Description, markup_ids: frozenset[int]) -> Any:
    """The plain clone with one token more: the anchor."""
    from tokenizers import AddedToken

    clone = plain_clone(description, markup_ids)
    clone.add_tokens([AddedToken(ANCHOR, normalized=False, special=False)])
    return clone
