"""Where a local backend gets its tokenizer and its model from."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

if TYPE_CHECKING:
    from forktree.backend.engine.messages import Runner
    from forktree.backend.tokenizer import Tokenizer

Report = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all); 0 steps in all means unknown."""

Quantize = Literal["auto", "none", "fp16", "int8", "mixed", "q4"]

_MAX_PAGE_SIZE = 128
_FEWEST_KV_TOKENS = 64  # a short chat turn with its template and an answer; with less, hardly a request can run
_NUM_SAMPLES = 16
_SAMPLE_BYTES = 1 << 14


class ModelSource(Protocol):
    """Makes the two parts that an engine is put together from. Each is asked for once, from any thread."""

    @property
    def name(self) -> str: ...

    def load_tokenizer(self, report: Report | None = None) -> Tokenizer: ...

    def load_runner(self, tokenizer: Tokenizer) -> Runner: ...

    def fingerprint(self, runner: Runner) -> str:
        """All that decides a page's keys and values besides its tokens."""
        ...


@dataclass(frozen=True, kw_only=True)
class FolderSource:
    """A model by name, fetched on first use. Arguments are checked when it is made; see `Local` for them.

    Raises ValueError or TypeError: an argument is out of range; the message names it, the value and the fix.
    """

    model: str | os.PathLike[str]
    device: str = "auto"
    dtype: str = "auto"
    quantize: Quantize = "auto"
    kv_tokens: int | None = None
    page_size: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, (str, os.PathLike)) or not os.fspath(self.model):
            raise TypeError(f"model must be a name, a folder or a GGUF file, not {self.model!r}")
        _check_one_of("device", self.device, ("auto", "cpu", "cuda"))
        _check_one_of("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        _check_one_of("quantize", self.quantize, get_args(Quantize))
        self._check_device()
        check_count("kv_tokens", self.kv_tokens)
        check_count("page_size", self.page_size)
        size = self.page_size
        if size is not None and (size > _MAX_PAGE_SIZE or size & (size - 1)):
            raise ValueError(f"page_size must be a power of two from 1 to {_MAX_PAGE_SIZE}, not {size}")
        least = max(_FEWEST_KV_TOKENS, size or 0)
        if self.kv_tokens is not None and self.kv_tokens < least:
            raise ValueError(
                f"kv_tokens must be at least {least}, not {self.kv_tokens}: the pool holds prompts and outputs of all "
                "running requests, in whole pages; leave it out to use a share of the free memory"
            )

    def _check_device(self) -> None:
        """What one device has and the other has not."""
        if self.device != "cuda" and self.dtype not in ("auto", "float32"):
            raise ValueError(f"dtype must be 'auto' or 'float32' on a CPU, not {self.dtype!r}; give device='cuda'")
        if self.device == "cuda" and self.quantize not in ("auto", "none"):
            raise ValueError(
                f"quantize must be 'auto' or 'none' on a GPU, whose weights are dense, not {self.quantize!r}"
            )

    @property
    def name(self) -> str:
        return os.fspath(self.model)

    @property
    def identity(self) -> tuple[str, ...]:
        """The name, or for files that are there samples of what they hold; the precision; nothing is loaded."""
        path = Path(self.model)
        held = _sampled(path) if path.exists() else self.name
        return held, self.dtype, self.quantize, *(("cuda",) if self.device == "cuda" else ())

    def load_tokenizer(self, report: Report | None = None) -> Tokenizer:
        """Raises ModelError: there is no such model, or its tokenizer cannot be used."""
        from forktree.backend.tokenizer import Tokenizer

        return Tokenizer.load(self._folder(report))

    def load_runner(self, tokenizer: Tokenizer) -> Runner:
        """Raises ModelError: the weights cannot be used, or there is no such device."""
        if self.device == "cuda":
            from forktree.backend.model.cuda_load import load_device_runner

            return load_device_runner(
                self._resolved,
                dtype=self.dtype,
                kv_tokens=self.kv_tokens,
                page_size=self.page_size,
                vocab_size=tokenizer.num_tokens,
            )
        from forktree.backend.model.runner import load_runner

        return load_runner(
            self._resolved,
            quantize=self.quantize,
            device=self.device,
            kv_tokens=self.kv_tokens,
            page_size=self.page_size,
            vocab_size=tokenizer.num_tokens,
        )

    def fingerprint(self, runner: Runner) -> str:
        """Model files, precision, page size, and the processor, device and library that round as they do."""
        model = (_sampled(self._resolved), self.dtype, self.quantize, runner.page_size)
        device = getattr(runner, "device_name", "cpu")
        return repr((*model, version("torch"), _processor(), device, _code_digest()))

    def _folder(self, report: Report | None) -> Path:
        from forktree.backend.model.store import resolve_model

        return resolve_model(self.model, report=report)

    @cached_property
    def _resolved(self) -> Path:
        return self._folder(None)


def _code_digest() -> str:
    """Of the sources that compute keys and values: another version of them may round in another way."""
    backend = Path(__file__).parent
    folders = (backend / "model", backend.parent / "kernels")
    digest = hashlib.sha256()
    for file in sorted(file for folder in folders for file in folder.iterdir() if file.suffix in (".py", ".cpp", ".h")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """What the kernels are compiled for."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def check_count(name: str, value: Any) -> None:
    """Raises ValueError: it is neither None nor a whole number from 1 on."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be None or a whole number from 1 on, not {value!r}")


def _sampled(path: Path) -> str:
    """A checksum of a model's files: names, sizes, and pieces of each, so that a retrained model is another one."""
    files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name if path.is_dir() else ''} {size};".encode("utf-8", "surrogatepass"))
        with file.open("rb") as opened:
            for number in range(_NUM_SAMPLES):
                opened.seek(number * max(size - _SAMPLE_BYTES, 0) // (_NUM_SAMPLES - 1))
                digest.update(opened.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _check_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}")
