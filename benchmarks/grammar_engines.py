"""forktree and its rivals in one shape: compile a JSON Schema, then walk it token by token.

Every engine is asked for the language that JSON Schema describes (open objects stay open), written compactly, and is
given one thread. Rivals are imported when their engine is made, so that any of them may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.int32]


class RefusalError(Exception):
    """An engine will not compile a schema; the message is its reason."""


class Walk(Protocol):
    """One schema compiled, at some place in an output."""

    def mask(self) -> Mask:
        """Legal tokens, packed int32 [ceil(vocab / 32)]; read-only, valid until the next call.

        Raises:
            RefusalError: the engine's limits do not let it tell.
        """

    def take(self, token: int) -> bool:
        """Advance over a token; False where it is illegal, and then the walk is over. Raises as `mask`."""

    def can_end(self) -> bool:
        """Whether the output may end here."""

    def rewind(self) -> None:
        """Back to the start, with everything kept that a second request would find."""


class Engine(Protocol):
    """Compiles schemas for one vocabulary."""

    def compile(self, schema: Any) -> Walk:
        """A walk at the start of an output.

        Raises:
            RefusalError: the engine refuses the schema.
        """


class Forktree:
    """`Schema` with keys in schema order, or with `order="any"` in any order."""

    def __init__(self, tokenizer: Any, order: Literal["schema", "any"]) -> None:
        from forktree.backend.grammar.trie import trie_of
        from forktree.backend.tokenizer import vocabulary_of

        self._vocabulary = vocabulary_of(tokenizer)
        self._order = order
        trie_of(self._vocabulary)  # built once a model, as the rivals' vocabularies are

    def compile(self, schema: Any) -> Walk:
        from forktree.backend.grammar.constraints import Schema
        from forktree.lang.errors import ConstraintError

        try:
            constraint = Schema(schema, order=self._order)
            return _ForktreeWalk(constraint.compile(self._vocabulary))
        except ConstraintError as error:
            raise RefusalError(str(error)) from error


class _ForktreeWalk:
    def __init__(self, matcher: Any) -> None:
        self._start = matcher
        self._matcher = matcher.copy()

    def mask(self) -> Mask:
        from forktree.lang.errors import ConstraintError

        try:
            mask: Mask = self._matcher.mask()
        except ConstraintError as error:
            raise RefusalError(str(error)) from error
        return mask

    def take(self, token: int) -> bool:
        from forktree.backend.grammar.matcher import IllegalTokenError
        from forktree.lang.errors import ConstraintError

        try:
            self._matcher.advance(token)
        except IllegalTokenError:
            return False
        except ConstraintError as error:
            raise RefusalError(str(error)) from error
        return True

    def can_end(self) -> bool:
        return bool(self._matcher.is_complete())

    def rewind(self) -> None:
        self._matcher = self._start.copy()


class LLGuidance:
    """llguidance with its default slices and compact separators."""

    def __init__(self, tokenizer: Any) -> None:
        import llguidance.hf

        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer)

    def compile(self, schema: Any) -> Walk:
        import llguidance

        compact = {"whitespace_flexible": False}
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=compact)
        except ValueError as error:
            raise RefusalError(str(error)) from error
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise RefusalError(matcher.get_error())
        return _LLGuidanceWalk(matcher, self._tokenizer.vocab_size)


class _LLGuidanceWalk:
    def __init__(self, matcher: Any, vocab_size: int) -> None:
        import llguidance.numpy

        self._start = matcher
        self._matcher = matcher.deep_copy()
        self._bits = llguidance.numpy.allocate_token_bitmask(1, vocab_size)
        self._fill: Callable[[Any, Mask], None] = llguidance.numpy.fill_next_token_bitmask

    def mask(self) -> Mask:
        self._fill(self._matcher, self._bits)
        row: Mask = self._bits[0]
        return row

    def take(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def can_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    def rewind(self) -> None:
        if self._matcher.is_error():  # a reset keeps the error
            self._matcher = self._start.deep_copy()
        self._matcher.reset()


class XGrammar:
    """XGrammar in its permissive mode (`strict_mode=False`, as JSON Schema says), compact, no cache across schemas."""

    def __init__(self, tokenizer: Any) -> None:
        import xgrammar

        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._vocab_size = info.vocab_size
        self._end = tokenizer.eos_token_id

    def compile(self, schema: Any) -> Walk:
        try:
            compiled = self._compiler.compile_json_schema(
                json.dumps(schema), any_whitespace=False, separators=(",", ":"), strict_mode=False
            )
        except (RuntimeError, ValueError) as error:
            raise RefusalError(str(error)) from error
        return _XGrammarWalk(compiled, self._vocab_size, self._end)


class _XGrammarWalk:
    def __init__(self, compiled: Any, vocab_size: int, end: int) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._bits = np.zeros((1, (vocab_size + 31) // 32), dtype=np.int32)
        self._end = end

    def mask(self) -> Mask:
        self._matcher.fill_next_token_bitmask(self._bits)
        row: Mask = self._bits[0]
        return row

    def take(self, token: int) -> bool:
        return not self._matcher.is_terminated() and bool(self._matcher.accept_token(token))

    def can_end(self) -> bool:
        return bool(self._matcher.accept_token(self._end))

    def rewind(self) -> None:
        self._matcher.reset()


class OutlinesCore:
    """outlines-core: the schema as a regex, the regex as an index over the vocabulary."""

    def __init__(self, tokenizer: Any) -> None:
        import outlines_core

        from forktree.backend.tokenizer import vocabulary_of

        vocabulary = vocabulary_of(tokenizer)
        spelled: dict[bytes, list[int]] = {}
        for token, data in enumerate(vocabulary.token_bytes):
            if data and token not in vocabulary.eos_ids:
                spelled.setdefault(data, []).append(token)
        self._vocabulary = outlines_core.Vocabulary(tokenizer.eos_token_id, spelled)
        self._num_words = (vocabulary.size + 31) // 32

    def compile(self, schema: Any) -> Walk:
        import outlines_core
        from outlines_core.json_schema import build_regex_from_schema

        try:
            pattern = build_regex_from_schema(json.dumps(schema), "")
            index = outlines_core.Index(pattern, self._vocabulary)
        except (ValueError, TypeError) as error:
            raise RefusalError(str(error)) from error
        return _OutlinesWalk(outlines_core.Guide(index), self._num_words)


class _OutlinesWalk:
    def __init__(self, guide: Any, num_words: int) -> None:
        self._guide = guide
        self._bits = np.zeros(num_words, dtype=np.int32)

    def mask(self) -> Mask:
        self._guide.write_mask_into(self._bits.ctypes.data, self._bits.size, self._bits.itemsize)
        return self._bits

    def take(self, token: int) -> bool:
        try:
            self._guide.advance(token, return_tokens=False)
        except ValueError:
            return False
        return True

    def can_end(self) -> bool:
        return bool(self._guide.is_finished())

    def rewind(self) -> None:
        self._guide.reset()


ENGINES: dict[str, Callable[[Any], Engine]] = {
    "forktree": lambda tokenizer: Forktree(tokenizer, "schema"),
    "forktree-any-order": lambda tokenizer: Forktree(tokenizer, "any"),
    "llguidance": LLGuidance,
    "xgrammar": XGrammar,
    "outlines-core": OutlinesCore,
}
