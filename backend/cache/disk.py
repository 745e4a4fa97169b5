"""Pages of keys and values in a folder that outlives the process and that several processes may share.

One file a page: `<folder>/<fingerprint>/<two digits>/<address>.kv`, where the fingerprint stands for all that decides
the bytes besides the tokens (model, precision, page size, machine). A file is

    magic (8 bytes)   fingerprint (32)   address (16)   sha256 of the page (32)   the page

A page is written beside its place, synchronised and renamed, so that a reader finds it whole or not at all; what is
found all the same to be torn, altered or of something else is removed with a warning and never used. Beside the pages
`recurring.json` says which prompts recur (`recurring.py`). Files are readable by their owner alone: they tell what was
in a prompt.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_log = logging.getLogger("forktree.cache")

_MAGIC = b"FTKVPG01"
_HEAD_BYTES = len(_MAGIC) + 32 + 16 + 32
_SUFFIX = ".kv"
_ABANDONED_S = 3600.0  # nothing takes so long to write
_ROOM = 0.9  # of the limit is left after a prune, so that not every write prunes
_MOST_KNOWN = 1 << 17  # addresses remembered as stored, 16 bytes each
_NOTES = "recurring.json"
_MOST_NOTES_BYTES = 16 << 20


class PageFile(NamedTuple):
    """One stored page; `used_s` is when it was last written or read (seconds since the epoch)."""

    path: Path
    num_bytes: int
    used_s: float


class DiskTier:
    """The pages of one fingerprint under a folder. Safe to use from several threads and processes."""

    def __init__(self, folder: str | os.PathLike[str], fingerprint: str, *, limit_bytes: int) -> None:
        """Raises ValueError: the limit is below 1. OSError: the folder cannot be made."""
        if limit_bytes < 1:
            raise ValueError(f"limit_bytes must be at least 1, not {limit_bytes}")
        self._root = Path(folder)
        self._mark = hashlib.sha256(fingerprint.encode()).digest()
        self._folder = self._root / self._mark.hex()[:16]
        for made in (self._root, self._folder):
            _make_private(made)
        _remove_abandoned(self._root)
        self._limit_bytes = limit_bytes
        self._num_bytes = sum(file.num_bytes for file in page_files(self._root))
        self._lock = threading.Lock()  # over the next two
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._num_faults = 0

    @property
    def num_faults(self) -> int:
        """Files that were not sound, or could not be read."""
        return self._num_faults

    def path_of(self, address: bytes) -> Path:
        name = address.hex()
        return self._folder / name[:2] / f"{name}{_SUFFIX}"

    def has(self, address: bytes) -> bool:
        return self.path_of(address).exists()

    def knows(self, address: bytes) -> bool:
        """It was stored when it was read or written last, as far as is remembered. Asks no disk."""
        return address in self._known

    def read(self, address: bytes) -> bytes | None:
        """The page, or None where there is no sound one."""
        path = self.path_of(address)
        try:
            data = path.read_bytes()
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _log.warning("cannot read %s (%s); its page is computed again", path, error)
                self._count_fault()
            self._remember(address, is_stored=False)
            return None
        fault = find_fault(data, self._mark, address)
        if fault is not None:
            _log.warning("%s is %s; it is removed and its page computed again", path, fault)
            self._count_fault()
            self._remember(address, is_stored=False)
            path.unlink(missing_ok=True)
            return None
        self._remember(address, is_stored=True)
        with contextlib.suppress(OSError):  # removed since, by another process: what was read is sound
            os.utime(path)
        return data[_HEAD_BYTES:]

    def write(self, address: bytes, page: bytes) -> bool:
        """Store a page unless it is there; False, with a warning, where the folder takes none."""
        path = self.path_of(address)
        if path.exists():
            self._remember(address, is_stored=True)
            return True
        data = b"".join((_MAGIC, self._mark, address, hashlib.sha256(page).digest(), page))
        if len(data) > self._limit_bytes:
            return False
        if self._num_bytes + len(data) > self._limit_bytes:
            self._num_bytes = prune(self._root, int(self._limit_bytes * _ROOM) - len(data))
            with self._lock:
                self._known.clear()  # some of it is gone
        try:
            _make_private(path.parent)
            _write_whole(path, data)
        except OSError as error:
            _log.warning("cannot write %s (%s); the page is not kept", path, error)
            return False
        self._num_bytes += len(data)
        self._remember(address, is_stored=True)
        return True

    def read_notes(self) -> str | None:
        """What `write_notes` left, in this process or an earlier one; None where there is nothing to be had."""
        path = self._folder / _NOTES
        try:
            with path.open("rb") as file:
                return file.read(_MOST_NOTES_BYTES).decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            _log.warning("cannot read %s (%s); what recurs is learned again", path, error)
            return None

    def write_notes(self, text: str) -> None:
        """Keep what was learned of the traffic for the next process; a warning where the folder takes nothing."""
        path = self._folder / _NOTES
        try:
            _write_whole(path, text.encode())
        except OSError as error:
            _log.warning("cannot write %s (%s); what recurs is learned again", path, error)

    def _remember(self, address: bytes, *, is_stored: bool) -> None:
        with self._lock:
            if not is_stored:
                self._known.pop(address, None)
                return
            self._known[address] = None
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)

    def _count_fault(self) -> None:
        with self._lock:
            self._num_faults += 1


def _make_private(folder: Path) -> None:
    """Make a folder, mode 0700 whatever the umask; one that exists keeps its mode."""
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    folder.chmod(0o700)


def _remove_abandoned(root: Path) -> None:
    """Remove what processes that were killed had begun to write; what is fresh may still be written."""
    for path in (*root.glob("*/.*.tmp"), *root.glob("*/*/.*.tmp")):
        with contextlib.suppress(OSError):  # another process removes it, or has renamed it
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()


def _write_whole(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        os.fchmod(handle, 0o600)  # whatever the umask
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def find_fault(data: bytes, mark: bytes | None, address: bytes) -> str | None:
    """What is wrong with a file's bytes, or None; `mark` None takes any fingerprint."""
    if len(data) < _HEAD_BYTES:
        return "cut short"
    if data[:8] != _MAGIC:
        return "not a page file of this version"
    if (mark is not None and data[8:40] != mark) or data[40:56] != address:
        return "the page of something else"
    if hashlib.sha256(data[_HEAD_BYTES:]).digest() != data[56:88]:
        return "torn or altered"
    return None


def page_files(root: Path) -> Iterator[PageFile]:
    """Every stored page under a cache folder, of every fingerprint."""
    for path in root.glob(f"*/*/*{_SUFFIX}"):
        try:
            status = path.stat()
        except FileNotFoundError:  # pruned by another process
            continue
        if not stat.S_ISREG(status.st_mode):  # none of ours
            continue
        yield PageFile(path, status.st_size, status.st_mtime)


def prune(root: Path, limit_bytes: int) -> int:
    """Remove pages, the least recently used first, until at most `limit_bytes` are left; returns how many are."""
    files = sorted(page_files(root), key=lambda file: file.used_s)
    num_bytes = sum(file.num_bytes for file in files)
    for file in files:
        if num_bytes <= max(limit_bytes, 0):
            break
        file.path.unlink(missing_ok=True)
        num_bytes -= file.num_bytes
    return num_bytes


def verify(root: Path) -> list[tuple[Path, str]]:
    """The files under a cache folder that are not sound, and what is wrong with each. Removes nothing."""
    faults = []
    for file in page_files(root):
        try:
            fault = find_fault(file.path.read_bytes(), None, bytes.fromhex(file.path.stem))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            fault = str(error)
        if fault is not None:
            faults.append((file.path, fault))
    return faults
