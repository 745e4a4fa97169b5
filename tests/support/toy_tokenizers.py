"""Small tokenizers of the kinds that models have, made on the spot."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_level(
    merges: Sequence[tuple[str, str]] = (),
    *,
    specials: Sequence[str] = ("<|im_start|>", "<|im_end|>"),
    added: Sequence[str] = (),
    chat_template: str | None = CHATML,
    bos_token: str | None = None,
    adds_bos: bool = False,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE over all 256 bytes with the merges given (in their printable alphabet: Ġ is a blank)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: id for id, piece in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    backend = Tokenizer(models.BPE(vocab, list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    return _finish(backend, specials, added, chat_template, bos_token, adds_bos)


def sentencepiece(
    pieces: Sequence[str],
    *,
    legacy: bool = False,
    specials: Sequence[str] = ("<s>", "</s>"),
    added: Sequence[str] = (),
    chat_template: str | None = None,
    adds_bos: bool = True,
) -> PreTrainedTokenizerFast:
    """A SentencePiece-like tokenizer with byte fallback; longer pieces are likelier.

    `legacy` puts the artificial blank before every stretch between special tokens, else before the first.
    """
    scores = [("<unk>", 0.0), *((special, 0.0) for special in specials)]
    scores += [(f"<0x{byte:02X}>", -100.0) for byte in range(256)]
    scores += [(piece, -10.0 + len(piece)) for piece in pieces]
    backend = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    if legacy:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _finish(backend, specials, added, chat_template, specials[0], adds_bos)


def _finish(
    backend: Tokenizer,
    specials: Sequence[str],
    added: Sequence[str],
    chat_template: str | None,
    bos_token: str | None,
    adds_bos: bool,
) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(special, normalized=False) for special in specials])
    backend.add_tokens([AddedToken(token, normalized=False) for token in added])
    if adds_bos:
        assert bos_token is not None
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos_token} $A", special_tokens=[(bos_token, backend.token_to_id(bos_token))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos_token, eos_token=specials[-1], chat_template=chat_template
    )
