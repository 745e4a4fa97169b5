"""A model folder's tensors, by name: safetensors, in one file or in shards, read through a memory map."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from forktree.lang.errors import ModelError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class Weights:
    """Named tensors, each taken once.

    `finish` refuses a folder with tensors that nobody took: a model with unknown parts would compute
    something else than what its author meant.
    """

    def __init__(self, folder: Path, files: dict[str, Any]) -> None:
        self._folder = folder
        self._file_of = {name: file for file in files.values() for name in file.keys()}  # noqa: SIM118 - no dict
        self._left = set(self._file_of)

    def has(self, name: str) -> bool:
        return name in self._file_of

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor `name` as float32.

        Raises:
            ModelError: it is missing, or its shape is not `shape`.
        """
        return self._take(name, shape).to(torch.float32)

    def take_to(self, name: str, *shape: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """The same straight to a device, of another type: the host holds no copy.

        Raises:
            ModelError: as `take`.
        """
        return self._take(name, shape).to(device=device, dtype=dtype)

    def _take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self._file_of:
            raise ModelError(f"{self._folder} has no tensor {name!r}; the download may be incomplete, fetch it again")
        tensor: torch.Tensor = self._file_of[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"tensor {name!r} in {self._folder} has shape {list(tensor.shape)}, but the configuration "
                f"needs {list(shape)}"
            )
        if not tensor.is_floating_point():
            raise ModelError(f"tensor {name!r} in {self._folder} is {tensor.dtype}; quantised files are not read here")
        self._left.discard(name)
        return tensor

    def finish(self, *, ignore: Iterable[str] = ()) -> None:
        """Raises ModelError if tensors are left; `ignore` are suffixes of names that never matter."""
        suffixes = tuple(ignore)
        left = sorted(name for name in self._left if not name.endswith(suffixes))
        if left:
            shown = ", ".join(left[:5]) + (" …" if len(left) > 5 else "")
            raise ModelError(f"{self._folder} has {len(left)} tensors that this family does not have: {shown}")


@contextmanager
def open_weights(folder: Path) -> Iterator[Weights]:
    """Open the safetensors of a model folder.

    Raises:
        ModelError: there are none, a shard is missing, or a file is broken.
    """
    from safetensors import SafetensorError, safe_open

    with ExitStack() as stack:
        files = {}
        for path in _paths(folder):
            try:
                files[path.name] = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} is broken or unreadable ({error}); delete it and fetch it again") from error
        yield Weights(folder, files)


def _paths(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        try:
            names = sorted(set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"{folder / _INDEX} is no index of shards: {error}") from error
        for name in names:
            if not (folder / name).is_file():
                raise ModelError(f"{folder} lacks the shard {name} that {_INDEX} names; fetch it again")
        return [folder / name for name in names]
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    raise ModelError(f"{folder} has no {_SINGLE} (nor {_INDEX}); only safetensors are read")
