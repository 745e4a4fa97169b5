"""The native CPU kernels: built once with the system's compiler, loaded through ctypes.

The sources need no torch headers and no build system: plain C entry points over pointers. A library lives in
`<folder>/<digest>/`, where the digest covers the sources, the flags, the compiler, the processor and the
OpenMP library, so that a changed machine builds its own. Processes that start together wait for one build.

There must be one pool of threads, not two that fight for the cores. The single operations are compiled with
-fopenmp and linked against the very libgomp that torch loaded; where that is not found, they are built without
OpenMP. A whole step has a team of its own (team.h), which sleeps between steps and never works beside the other.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_log = logging.getLogger("forktree.kernels")

_SOURCES = ("attention_cpu.cpp", "layer_cpu.cpp", "gemm_cpu.cpp", "gemm_pack.cpp", "step_cpu.cpp")
_HEADERS = ("simd.h", "gemm.h", "attention.h", "layer.h", "team.h")
_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=c++17", "-fPIC", "-fno-math-errno")
_ABI = 7
_BUILD_TIMEOUT_S = 120.0
_NAME = "kernels.so"

_F, _P = ctypes.c_float, ctypes.c_void_p
_I, _N = ctypes.c_int64, ctypes.c_int32
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "ft_attend": (_P, _P, _N),
    "ft_rms_norm": (*[_P] * 4, _I, _I, _F, _N),
    "ft_rotate_and_write": (*[_P] * 7, _F, *[_P] * 3, *[_I] * 4, _N),
    "ft_silu_mul": (_P, _P, _I, _I, _N),
    "ft_logsumexp": (_P, _P, _P, _I, _I, _N),
    "ft_gemm": (_P, _P, _P, _I, _N),
    "ft_gemm_bytes": (_I, _I, _N),
    "ft_gemm_pack": (_P, _I, _I, _P, _N, _N),
    "ft_step": (_P, _P, _P),
    "ft_team_new": (_N,),
    "ft_team_free": (_P,),
    "ft_step_floats": (_P, *[_I] * 5, _N),
}
_RESULTS = {"ft_team_new": _P, "ft_gemm_bytes": _I, "ft_gemm_pack": _I, "ft_step_floats": _I}


@dataclass(frozen=True, slots=True, eq=False)
class Native:
    """The loaded library. `num_threads` is the size of the team that every call uses."""

    library: ctypes.CDLL
    num_threads: int


def load_native(folder: Path, *, num_threads: int) -> Native | None:
    """The native kernels, built into `folder` on first use; None where they cannot be had, said in the log.

    Environment: FORKTREE_NATIVE=0 turns them off.
    """
    if os.environ.get("FORKTREE_NATIVE", "1") == "0":
        _log.info("native kernels are off (FORKTREE_NATIVE=0); using the plain torch path")
        return None
    try:
        return Native(_open(_built(folder)), num_threads)
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        _log.warning("no native kernels (%s); using the plain torch path, which is much slower", _reason(error))
        return None


def _reason(error: BaseException) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"the compiler failed: {(error.stderr or '').strip()[-400:]}"
    return str(error)


def _open(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.ft_abi.restype = _N
    if library.ft_abi() != _ABI:
        raise OSError(f"{path} has interface {library.ft_abi()}, not {_ABI}; delete it")
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = signature
        function.restype = _RESULTS.get(name)
    return library


def _built(folder: Path) -> Path:
    """The library's path, compiled first if it is not there."""
    compiler = _compiler()
    openmp = _openmp()
    target = folder / _digest(compiler, openmp) / _NAME
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.parent / "lock"):
        if not target.exists():
            _build(compiler, openmp, target)
    return target


def _compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++", "clang++"]
    for name in names:
        if path := shutil.which(name):
            return path
    raise OSError(f"no C++ compiler: looked for {', '.join(names)}")


def _openmp() -> Path | None:
    """The libgomp that torch brought and loaded."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    return found[0] if found else None


def _digest(compiler: str, openmp: Path | None) -> str:
    digest = hashlib.sha256()
    for name in (*_HEADERS, *_SOURCES):
        digest.update((Path(__file__).parent / name).read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    for part in (*_FLAGS, compiler, version, str(openmp), _processor(), str(_ABI)):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _processor() -> str:
    """Model and features: -march=native means another thing on another processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _build(compiler: str, openmp: Path | None, target: Path) -> None:
    """Compile and link beside the target, then rename: a reader sees a whole library or none."""
    began = time.monotonic()
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        threads = ("-fopenmp",) if openmp else ()
        objects = [f"{scratch}/{name}.o" for name in _SOURCES]
        commands = [
            [compiler, *_FLAGS, *threads, "-c", str(here / name), "-o", made]
            for name, made in zip(_SOURCES, objects, strict=True)
        ]
        with ThreadPoolExecutor(len(commands)) as pool:
            list(pool.map(_compile, commands))
        made = Path(scratch) / _NAME
        libraries = (str(openmp), f"-Wl,-rpath,{openmp.parent}") if openmp else ()
        _compile([compiler, "-shared", *objects, "-o", str(made), *libraries])
        _open(made)  # a library that does not load is never kept
        os.replace(made, target)
    _log.info("built the native kernels in %.1f s: %s", time.monotonic() - began, target)


def _compile(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the build for one process. The kernel drops the lock of a process that dies."""
    with path.open("w") as file:
        deadline = time.monotonic() + _BUILD_TIMEOUT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError(f"another process has been building {path.parent} for too long") from None
                time.sleep(0.1)
        yield
