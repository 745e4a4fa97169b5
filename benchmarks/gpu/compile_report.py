"""Compile every Triton kernel for real chips, without one: registers, spills and shared memory of each.

    python -m forktree.benchmarks.gpu.compile_report [--arch 80 90] [--only TEXT] [--brief] [--json FILE]

Kernels are those that the modules `forktree.kernels.*_triton` list in `aot_specs()`. Each is compiled to a cubin by
Triton and its bundled `ptxas`; what it takes is read from the cubin. Nothing is launched.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import forktree.kernels
from forktree.kernels.triton_aot import AotSpec
from forktree.kernels.triton_mode import is_interpreted

_PRODUCT = re.compile(r"\b(?:wgmma\.mma_async|mma\.sync)[\w.]*")

ARCHS = (80, 90)
"""Compute capability × 10: A100, and H100 or H200."""

_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one kernel takes on one chip, and how many of which matrix instructions its PTX holds."""

    name: str
    arch: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    cubin_bytes: int
    num_warps: int
    products: Mapping[str, int] = field(default_factory=dict)


class CompileError(RuntimeError):
    """A kernel does not compile, or the report on it cannot be read."""


def kernel_specs() -> Iterator[AotSpec]:
    """Of every module `forktree.kernels.*_triton`, in order of name.

    Raises:
        CompileError: a module lists no kernels.
    """
    names = sorted(each.name for each in pkgutil.iter_modules(forktree.kernels.__path__))
    for name in names:
        if name.endswith("_triton"):
            module = importlib.import_module(f"forktree.kernels.{name}")
            if not hasattr(module, "aot_specs"):
                raise CompileError(
                    f"kernels/{name}.py has no aot_specs(): list the shapes its kernels are launched with"
                )
            yield from module.aot_specs()


def compile_spec(spec: AotSpec, arch: int) -> Compiled:
    """Compile one kernel to a cubin for one chip.

    Raises:
        CompileError: it names the kernel and the chip.
    """
    options = {
        "num_warps": spec.num_warps,
        "num_stages": spec.num_stages,
        "enable_fp_fusion": spec.enable_fp_fusion,
    }
    try:
        done = triton.compile(_source(spec), target=GPUTarget("cuda", arch, 32), options=options)
        registers, spilled = _resources(done.asm["cubin"])
    except Exception as error:
        raise CompileError(f"{spec.name} does not compile for sm_{arch}: {error}") from error
    cubin, shared = len(done.asm["cubin"]), done.metadata.shared
    products = Counter(_PRODUCT.findall(done.asm["ptx"]))
    return Compiled(spec.name, arch, registers, spilled, shared, cubin, spec.num_warps, dict(products))


def _source(spec: AotSpec) -> ASTSource:
    names = spec.kernel.arg_names
    missing = set(names) ^ {*spec.arguments, *spec.constants}
    if missing:
        raise CompileError(f"{spec.name} must list each argument of its kernel once; look at {sorted(missing)}")
    signature = {name: spec.arguments.get(name, "constexpr") for name in names}
    aligned = [name for name, kind in spec.arguments.items() if kind.startswith("*") and name not in spec.unaligned]
    attrs = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    return ASTSource(spec.kernel, signature, dict(spec.constants), attrs)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack: a Triton kernel keeps nothing there but spilled registers."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        report = subprocess.run([str(_CUOBJDUMP), "-res-usage", str(file)], check=True, capture_output=True, text=True)
    used = re.search(r"REG:(\d+) STACK:(\d+)", report.stdout)
    if used is None:
        raise CompileError(f"cuobjdump reports no registers: {report.stdout} {report.stderr}")
    return int(used[1]), int(used[2])


def one_of_each(specs: Sequence[AotSpec]) -> list[AotSpec]:
    """The first variant of every kernel, in bfloat16 where there is one."""
    chosen: dict[str, AotSpec] = {}
    for spec in sorted(specs, key=lambda spec: "bfloat16" not in spec.name):
        chosen.setdefault(spec.kernel.__name__, spec)
    return list(chosen.values())


def compile_all(archs: Sequence[int], specs: Sequence[AotSpec], jobs: int | None = None) -> list[Compiled]:
    """These of `kernel_specs`, for every chip, in several processes."""
    index = {spec.name: index for index, spec in enumerate(kernel_specs())}
    tasks = [(index[spec.name], arch) for spec in specs for arch in archs]
    with ProcessPoolExecutor(jobs or os.cpu_count()) as pool:
        return list(pool.map(_compile_task, tasks))


def _compile_task(task: tuple[int, int]) -> Compiled:
    """By the kernel's index: a kernel itself cannot be sent to another process."""
    index, arch = task
    return compile_spec(list(kernel_specs())[index], arch)


def render(results: Sequence[Compiled]) -> str:
    """A table of Markdown."""
    rows = [
        "| kernel | chip | warps | registers | spilled, B | shared memory, KB | cubin, KB |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for each in results:
        shared, cubin = each.shared_bytes / 1024, each.cubin_bytes / 1024
        rows.append(
            f"| {each.name} | sm_{each.arch} | {each.num_warps} | {each.registers} | {each.spill_bytes} "
            f"| {shared:.1f} | {cubin:.0f} |"
        )
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arch", type=int, nargs="+", default=list(ARCHS), help="compute capability × 10: 80, 90 …")
    parser.add_argument("--only", default="", help="kernels with this text in their name")
    parser.add_argument("--brief", action="store_true", help="one variant of every kernel")
    parser.add_argument("--json", type=Path, help="write the results there too")
    parser.add_argument("--jobs", type=int, help="processes; as many as cores by default")
    args = parser.parse_args(arguments)
    if is_interpreted():
        parser.error("TRITON_INTERPRET is set, so nothing would be compiled; unset it")
    try:
        specs = [spec for spec in kernel_specs() if args.only in spec.name]
        results = compile_all(args.arch, one_of_each(specs) if args.brief else specs, args.jobs)
    except CompileError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not results:
        parser.error(f"no kernel has {args.only!r} in its name")
    print(render(results))
    print(f"\n{len(results)} compiled; {sum(each.spill_bytes > 0 for each in results)} spill")
    if args.json:
        args.json.write_text(json.dumps([asdict(each) for each in results], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
