"""Text to tokens and back, byte-exact, around the model's own tokenizer. No torch.

Text is only text: the spelling of a special token in it is tokenised as plain characters, unless the caller
says `markup`. *Markup tokens* are the special tokens and the added tokens that are not blanks (`</think>`,
`<tool_call>`); runs of blanks that a tokenizer adds are ordinary text.

Where a run of text stands decides whether the tokenizer may put its artificial blank before it (`Place`).
"""

from __future__ import annotations

import json
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from forktree.backend.added_tokens import AddedTokens
from forktree.backend.call_markup import CallMarkup, call_markup
from forktree.backend.call_parameters import ParameterMarkup, parameter_markup
from forktree.backend.chat import ChatTemplate
from forktree.backend.clones import ANCHOR, anchored_clone, plain_clone
from forktree.backend.detokenizer import TextDecoder
from forktree.backend.reasoning_markup import ReasoningMarkup, reasoning_markup
from forktree.backend.spelling import (
    Description,
    Spelling,
    has_prefix_rule,
    piece_bytes,
    spelling_of,
    strips_first_blank,
    without_prefix_rule,
)
from forktree.backend.vocabulary import Vocabulary
from forktree.lang.errors import BackendError, ForktreeError, ModelError

_END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


class Place(Enum):
    """Where a run of text stands in its sequence."""

    START = "at the start"
    AFTER_SPECIAL = "after a special token"
    INSIDE = "after other tokens"


class Run(NamedTuple):
    """An encoded run of text: its ids, and for each the half-open span of characters that it came from."""

    ids: list[int]
    spans: list[tuple[int, int]]


class Tokenizer:
    """The model's tokenizer, as `transformers` makes it, with exact bytes and exact boundaries.

    Safe to use from any thread.

    Args:
        hf: a tokenizer of `transformers` that is built on the `tokenizers` library.
        folder: the model's folder, for its generation config; None looks at where `hf` came from.
    Raises:
        ModelError: the tokenizer is of a kind that cannot spell exact bytes.
    """

    def __init__(self, hf: Any, folder: Path | None = None) -> None:
        self.hf = hf
        self._backend = _backend_of(hf)
        description: Description = json.loads(self._backend.to_str())
        self._configs = _read_configs(folder if folder is not None else _folder_of(hf))
        self.spelling = spelling_of(description)
        self.strips_first_blank = strips_first_blank(description)
        self.markup_ids = frozenset(_markup_ids(hf, description))
        self.hidden_ids = frozenset(_hidden_ids(hf, description))
        self._added = AddedTokens.of(description["added_tokens"], self.markup_ids)
        self.num_tokens = _count_tokens(description)
        size = max([self.num_tokens, *map(_width, self._configs)])
        self.token_bytes = _spell_all(description, self.spelling, size)
        self._has_prefix_rule = has_prefix_rule(description)
        self._plain = self._bare = self._anchored = plain_clone(description, self.markup_ids)
        if self._has_prefix_rule:
            self._bare = plain_clone(without_prefix_rule(description), self.markup_ids)
            self._anchored = anchored_clone(description, self.markup_ids)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a model folder.

        Raises ModelError: there is none, or it cannot be read.
        """
        try:
            hf = _load_hf(folder)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(" :")
            raise ModelError(
                f"{folder} has no tokenizer that transformers can read ({reason}). "
                "Put the model's tokenizer.json and tokenizer_config.json there."
            ) from error
        return cls(hf, folder)

    # --- text to ids ---------------------------------------------------------------------------------------

    def encode(self, text: str, *, markup: bool = False, place: Place = Place.START) -> list[int]:
        """The ids of a text, without BOS. With `markup`, special-token spellings become special tokens.

        Raises BackendError: the text is no Unicode text (it holds a lone surrogate).
        """
        if not markup:
            return self.encode_run(text, place).ids
        ids: list[int] = []
        for item in self.split_markup(text):
            if isinstance(item, int):
                ids.append(item)
                place = Place.AFTER_SPECIAL
            else:
                ids += self.encode_run(item, place).ids
                place = Place.INSIDE
        return ids

    def encode_prompt(self, text: str, *, markup: bool = False) -> list[int]:
        """The ids of a raw prompt under the tokenizer's own BOS rule; a BOS that `markup` spells is not doubled."""
        ids = self.encode(text, markup=markup)
        bos = list(self.bos_ids)
        return ids if bos and ids[: len(bos)] == bos else bos + ids

    def encode_run(self, text: str, place: Place) -> Run:
        """The ids of one run of plain text, none of them a markup token.

        A run after a special token is encoded behind an anchor token that is then dropped: the tokenizer
        sees what it would see in the whole sequence.
        """
        if not text:
            return Run([], [])
        run = self._encode_at(text, place)
        if self._unsafe_ids.isdisjoint(run.ids):
            return run
        return self._respell(text, place, run)

    def split_markup(self, text: str) -> list[int | str]:
        """Cut a text at the special tokens that it spells: their ids, and the plain text between them."""
        _check_unicode(text)
        if self._added is not None:
            return self._added.cut(text)
        encoding = self._backend.encode(text, add_special_tokens=False)
        items: list[int | str] = []
        at = 0
        for id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if id in self.markup_ids and end > start:
                items += [text[at:start], id]
                at = end
        items.append(text[at:])
        return [item for item in items if item != ""]

    def _encode_at(self, text: str, place: Place) -> Run:
        _check_unicode(text)
        if place is Place.START:
            encoding = self._plain.encode(text, add_special_tokens=False)
            return Run(encoding.ids, encoding.offsets)
        if place is Place.INSIDE or not self._has_prefix_rule or ANCHOR in text:
            encoding = self._bare.encode(text, add_special_tokens=False)
            return Run(encoding.ids, encoding.offsets)
        encoding = self._anchored.encode(ANCHOR + text, add_special_tokens=False)
        shift = len(ANCHOR)
        return Run(encoding.ids[1:], [(start - shift, end - shift) for start, end in encoding.offsets[1:]])

    def _respell(self, text: str, place: Place, run: Run) -> Run:
        """Encode in two halves a text whose merges made a markup token out of plain characters."""
        index = next(i for i, id in enumerate(run.ids) if id in self._unsafe_ids)
        start, end = run.spans[index]
        cut = start + (end - start) // 2
        if not 0 < cut < len(text):
            return run  # one character that has no other spelling
        left = self.encode_run(text[:cut], place)
        right = self.encode_run(text[cut:], Place.INSIDE)
        spans = left.spans + [(start + cut, end + cut) for start, end in right.spans]
        return Run(left.ids + right.ids, spans)

    # --- ids to text ---------------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], *, place: Place = Place.START) -> str:
        """The text of ids; special tokens have none, and bytes that are no UTF-8 become U+FFFD.

        At the start of a sequence the artificial blank of a SentencePiece tokenizer is taken away.
        """
        decoder = self.decoder(place=place)
        return "".join([decoder.feed(id) for id in ids]) + decoder.flush()

    def decoder(
        self, *, place: Place = Place.INSIDE, num_skip_bytes: int = 0, shows_special: bool = False
    ) -> TextDecoder:
        """An incremental decoder whose joined pieces equal `decode`; with `shows_special`, special tokens are text."""
        strips = self.strips_first_blank and place is Place.START
        shown = self.token_bytes if shows_special else self.shown_bytes
        return TextDecoder(shown, strips_blank=strips, num_skip_bytes=num_skip_bytes)

    @cached_property
    def shown_bytes(self) -> tuple[bytes, ...]:
        """[vocab] the bytes that a token adds to the text that a reader sees: nothing for special tokens."""
        return tuple(b"" if id in self.hidden_ids else spelt for id, spelt in enumerate(self.token_bytes))

    # --- what the ids mean ---------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of ids: at least the tokenizer's own, and the width of the model's output layer."""
        return len(self.token_bytes)

    @cached_property
    def bos_ids(self) -> tuple[int, ...]:
        """What the tokenizer itself puts before a text, by its own rule; often nothing."""
        full = self._backend.encode("a", add_special_tokens=True).ids
        text = self._backend.encode("a", add_special_tokens=False).ids
        starts = [i for i in range(len(full) - len(text) + 1) if full[i : i + len(text)] == text]
        return tuple(full[: starts[0]]) if starts else ()

    @cached_property
    def start_ids(self) -> tuple[int, ...]:
        """What an empty prompt becomes: BOS, or the end-of-text token where the model has no BOS."""
        if self.bos_ids:
            return self.bos_ids
        if self.hf.bos_token_id is not None:
            return (self.hf.bos_token_id,)
        known = (self._backend.token_to_id(spelling) for spelling in _END_OF_TEXT)
        ends = [id for id in known if id is not None] or sorted(self.eos_ids)
        return tuple(ends[:1])

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a sequence: the tokenizer's, the generation config's, the template's end of turn."""
        ids = {self.hf.eos_token_id} | {id for config in self._configs for id in _ids_in(config.get("eos_token_id"))}
        ids.add(self.end_of_turn_id)
        return frozenset(id for id in ids if id is not None and 0 <= id < self.size)

    @cached_property
    def end_of_turn_id(self) -> int | None:
        """The special token that closes an assistant's turn, by the chat template; None if there is none."""
        try:
            items = self.split_markup(self.chat.end(("user",), "assistant"))
        except ForktreeError:
            return None
        return items[0] if items and isinstance(items[0], int) else None

    @cached_property
    def chat(self) -> ChatTemplate:
        """The model's chat template. Raises ModelError, when first used, where it has none."""
        return ChatTemplate(self.hf)

    @cached_property
    def reasoning_markup(self) -> ReasoningMarkup | None:
        """How the model reasons before it answers, by its chat template; None where that shows nothing."""
        return reasoning_markup(self.chat)

    @cached_property
    def call_markup(self) -> CallMarkup | ParameterMarkup | None:
        """How the model writes calls of tools, by its chat template; None where that shows nothing."""
        return call_markup(self.chat) or parameter_markup(self.chat)

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """The model's generation_config.json; empty if it has none."""
        return dict(self._configs[0]) if self._configs else {}

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The bytes of every token that is text."""
        spelt = (None if id in self.markup_ids else bytes_ or None for id, bytes_ in enumerate(self.token_bytes))
        markup = {
            id: self.token_bytes[id].decode(errors="replace") for id in sorted(self.markup_ids) if self.token_bytes[id]
        }
        return Vocabulary(tuple(spelt), self.eos_ids, _speller(self._bare, self._unsafe_ids), markup)

    def can_extend(self, prefix: bytes) -> bool:
        """Whether some token begins with `prefix` and goes on."""
        at = bisect_right(self._sorted_bytes, prefix)
        return at < len(self._sorted_bytes) and self._sorted_bytes[at].startswith(prefix)

    @cached_property
    def _sorted_bytes(self) -> list[bytes]:
        return sorted({spelt for spelt in self.vocabulary.token_bytes if spelt})

    @cached_property
    def _unsafe_ids(self) -> frozenset[int]:
        """Ids that plain text must not become; the unknown token is what unknown characters are."""
        return self.markup_ids - {self.hf.unk_token_id}


def _speller(backend: Any, unsafe_ids: frozenset[int]) -> Callable[[str], tuple[int, ...]]:
    """What a vocabulary keeps of its tokenizer, without the tokenizer itself: memos of vocabularies are keyed by it."""

    def spell(text: str) -> tuple[int, ...]:
        ids = backend.encode(text, add_special_tokens=False).ids
        return tuple(ids) if unsafe_ids.isdisjoint(ids) else ()

    return spell


def _load_hf(folder: Path) -> Any:
    """What `AutoTokenizer` makes of a folder. A folder that names the generic class needs no search for one,
    which saves more than half a second."""
    if _read_json(folder / "tokenizer_config.json").get("tokenizer_class") in _GENERIC_CLASSES:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(folder)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)  # not said, it asks on the terminal


_GENERIC_CLASSES = {"TokenizersBackend", "PreTrainedTokenizerFast"}


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The bytes of every token, for a tokenizer of `transformers` or ours; computed once for each.

    Raises ModelError: its tokens do not spell exact bytes.
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer.vocabulary
    known = _VOCABULARIES.get(tokenizer)
    if known is None:
        known = _VOCABULARIES[tokenizer] = Tokenizer(tokenizer).vocabulary
    return known


_VOCABULARIES: weakref.WeakKeyDictionary[Any, Vocabulary] = weakref.WeakKeyDictionary()  # a memo: lives as its keys do


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BackendError(
            f"the text holds a lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, which no "
            'token spells; decode the input with errors="replace"'
        ) from None


def _backend_of(hf: Any) -> Any:
    backend = getattr(hf, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"{type(hf).__name__} is not built on the `tokenizers` library; convert the model's tokenizer to a "
            "tokenizer.json and pass what AutoTokenizer makes of it."
        )
    return backend


def _folder_of(hf: Any) -> Path | None:
    name = getattr(hf, "name_or_path", "")
    return Path(name) if name and Path(name).is_dir() else None


def _read_configs(folder: Path | None) -> list[dict[str, Any]]:
    """The generation config and the model's config, in this order, as far as the folder has them."""
    if folder is None:
        return []
    return [_read_json(folder / name) for name in ("generation_config.json", "config.json")]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}); fetch the model again.") from error
    return value if isinstance(value, dict) else {}


def _ids_in(value: object) -> Iterator[int]:
    """A config's token ids: one number, a list of them, or nothing."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int) and not isinstance(item, bool):
            yield item


def _width(config: dict[str, Any]) -> int:
    """The width of the output layer by a model's config; 0 where it does not say."""
    text = config.get("text_config")
    size = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    return size if isinstance(size, int) else 0


def _markup_ids(hf: Any, description: Description) -> Iterator[int]:
    """Special tokens, and added tokens that are more than blanks."""
    yield from hf.all_special_ids
    for token in description["added_tokens"]:
        if token["special"] or token["content"].strip():
            yield token["id"]


def _hidden_ids(hf: Any, description: Description) -> Iterator[int]:
    """Special tokens: they show nothing. An added token such as `</think>` is shown."""
    yield from hf.all_special_ids
    for token in description["added_tokens"]:
        if token["special"]:
            yield token["id"]


def _count_tokens(description: Description) -> int:
    """One more than the largest id of a token; ids from there on pad the output layer."""
    largest = max((token["id"] for token in description["added_tokens"]), default=-1)
    return max(len(description["model"]["vocab"]), largest + 1)


def _spell_all(description: Description, spelling: Spelling, count: int) -> tuple[bytes, ...]:
    """[vocab] what each id spells; nothing for an id that no token has."""
    spelt = [b""] * count
    vocab = description["model"]["vocab"]
    pieces = vocab.items() if isinstance(vocab, dict) else ((piece, id) for id, (piece, _) in enumerate(vocab))
    for piece, id in pieces:
        spelt[id] = piece_bytes(piece, spelling)
    for token in description["added_tokens"]:
        spelt[token["id"]] = token["content"].encode()
    return tuple(spelt)
