"""One run of the GPU benchmark: its parts, as lines of three tables."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from forktree.backend.model.cuda_graphs import Ladders
from forktree.backend.model.cuda_load import make_device_runner, random_model
from forktree.benchmarks.gpu import engine_cases, kernel_cases
from forktree.benchmarks.gpu.engine_cases import Measured
from forktree.benchmarks.gpu.limits import measure_limits, spoiler, time_s
from forktree.benchmarks.gpu.transformers_cases import transformers_cases
from forktree.kernels.triton_mode import is_interpreted


class NoDeviceError(RuntimeError):
    """There is no device for what was asked."""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """What was printed of a kernel. Seconds, bytes and operations of one call."""

    name: str
    error: float
    seconds: float
    num_bytes: int
    num_flops: int
    share_of_copy: float
    share_of_matrix: float


class Run:
    """Holds the device, the limits that were measured on it, and the rows so far.

    Raises:
        NoDeviceError: no CUDA device, or a toy run without the interpreter.
    """

    def __init__(self, *, is_toy: bool) -> None:
        if is_toy and not is_interpreted():
            raise NoDeviceError("--toy interprets the kernels: set TRITON_INTERPRET=1")
        if not is_toy and not torch.cuda.is_available():
            raise NoDeviceError("torch finds no CUDA device here; --toy runs the whole way on a CPU")
        if not is_toy and is_interpreted():
            raise NoDeviceError("kernels are interpreted: unset TRITON_INTERPRET")
        self.is_toy = is_toy
        self.device = torch.device("cpu" if is_toy else "cuda")
        self.dtype = torch.float32 if is_toy else torch.bfloat16
        self.limits = measure_limits(self.device, self.dtype)
        self.rows: list[KernelRow | Measured] = []
        self.failures: list[str] = []

    def heading(self) -> str:
        name = f"{platform.machine()} CPU, kernels interpreted: no figure here says anything about a device"
        if not self.is_toy:
            name = torch.cuda.get_device_name(self.device)
        rates = (
            f"copy {self.limits.copy_bytes_s / 1e9:.0f} GB/s, product {self.limits.matrix_flops_s / 1e12:.3g} TFLOP/s"
        )
        return f"{name}; torch {torch.__version__}; measured: {rates}"

    def kernels(self, tolerance: Mapping[str, float]) -> Iterator[str]:
        """Check and time every kernel."""
        yield _kernels_heading()
        shapes = kernel_cases.TOY if self.is_toy else kernel_cases.LARGE
        spoil = spoiler(self.device)
        for case in kernel_cases.kernel_cases(shapes, self.device, self.dtype):
            error = case.check()
            if not error <= tolerance[str(self.dtype)]:
                self.failures.append(f"{case.name} ({error:.2g})")
            seconds = time_s(case.run, self.device, spoil=spoil)
            row = KernelRow(
                case.name,
                error,
                seconds,
                case.num_bytes,
                case.num_flops,
                case.num_bytes / seconds / self.limits.copy_bytes_s,
                case.num_flops / seconds / self.limits.matrix_flops_s,
            )
            self.rows.append(row)
            yield _kernel_line(row)

    def engine(self, _: Mapping[str, float]) -> Iterator[str]:
        """The engine's loads."""
        config = engine_cases.TOY_CONFIG if self.is_toy else engine_cases.LLAMA_8B
        loads = engine_cases.TOY_LOADS if self.is_toy else engine_cases.FULL_LOADS
        model = random_model(config, device=self.device, dtype=self.dtype)
        runner = make_device_runner(
            model,
            kv_tokens=512 if self.is_toy else None,
            capture=(lambda run: run) if self.is_toy else None,
            ladders=Ladders((2,), (4,), (4,)) if self.is_toy else Ladders(),
        )
        yield _loads_heading()
        cases = engine_cases.engine_cases(runner, model, loads, self.limits.copy_bytes_s, self.limits.matrix_flops_s)
        for measured in cases:
            self.rows.append(measured)
            yield _load_line(measured)
        yield f"{runner.num_graphs} sizes of steps captured"

    def transformers(self, _: Mapping[str, float]) -> Iterator[str]:
        """transformers on the same loads."""
        if not self.is_toy:
            torch.cuda.empty_cache()
        config = engine_cases.TOY_CONFIG if self.is_toy else engine_cases.LLAMA_8B
        loads = engine_cases.TOY_LOADS if self.is_toy else engine_cases.FULL_LOADS
        yield _loads_heading()
        for outcome in transformers_cases(config, loads, self.device, self.dtype):
            if isinstance(outcome, str):
                yield outcome
            else:
                self.rows.append(outcome)
                yield _load_line(outcome)


def _kernels_heading() -> str:
    moved = f"{'MB':>9} {'GB/s':>7} {'of copy':>7}"
    return f"\n{'kernel':46} {'error':>8} {'µs':>9} {moved} {'TFLOP/s':>8} {'of rate':>7}"


def _kernel_line(row: KernelRow) -> str:
    flops = f"{row.num_flops / row.seconds / 1e12:8.1f} {row.share_of_matrix:7.0%}" if row.num_flops else ""
    moved = f"{row.num_bytes / 1e6:9.2f} {row.num_bytes / row.seconds / 1e9:7.0f} {row.share_of_copy:7.0%}"
    return f"{row.name:46} {row.error:8.1e} {row.seconds * 1e6:9.1f} {moved} {flops}".rstrip()


def _loads_heading() -> str:
    return f"\n{'load':38} {'engine':33} {'s':>8} {'new/s':>9} {'prompt/s':>9} {'of floor':>8}"


def _load_line(row: Measured) -> str:
    share = f"{row.floor_s / row.seconds:7.0%}" if row.floor_s else ""
    rates = f"{row.new_tokens / row.seconds:9.1f} {row.prompt_tokens / row.seconds:9.1f}"
    return f"{row.name:38} {row.engine:33} {row.seconds:8.3f} {rates} {share}".rstrip()
