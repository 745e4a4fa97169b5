"""Linear layers at the built-in model's shapes: `python benchmarks/linear.py [--threads 2] [--rows 1,4,16,64]`.

For every kind and number of rows: the best time of a call in µs, the bytes of weights read a second, and the
operations a second. Weights rotate through copies of at least 64 MB together, as they do in a step, so that they
come from memory and not from a cache. The last line of a kind is the sum over a whole step of the model (30 layers and
the head), which is the floor of its decode step.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator

import torch

from forktree.backend.model.linear import BlockLinear, Fp16Linear, Linear, PackedLinear
from forktree.backend.model.store import cache_root
from forktree.kernels.gemm import Activations
from forktree.kernels.gemm_weights import Format, keep_weights, recover_weights, round_weights
from forktree.kernels.native import Native, load_native

SHAPES = {"q, k, v": (960, 576, 30), "output": (576, 576, 30), "gate, up": (3072, 576, 30), "down": (576, 1536, 30)}
HEAD = {"head": (49152, 576, 1)}
ROTATED_BYTES = 64e6
Maker = Callable[[torch.Tensor], Linear]


def kinds(native: Native | None) -> Iterator[tuple[str, Maker, float]]:
    """(name, maker, bytes a weight)"""
    yield "float32 oneDNN", lambda weight: PackedLinear(weight, None), 4.0
    yield "fp16 fbgemm", lambda weight: Fp16Linear(weight, None), 2.0
    if native is None:
        return
    for name, format, num_bytes in (("float32", Format.FLOAT, 4.0), ("fp16, float32 inputs", Format.HALF, 2.0)):

        def floats(weight: torch.Tensor, format: Format = format) -> Linear:
            return BlockLinear(keep_weights(weight, format, native=native), None, native, Activations.FLOAT)

        yield name, floats, num_bytes
    for bits, activations in ((8, Activations.EIGHT_BIT), (16, Activations.SIXTEEN_BIT)):

        def eight_bit(weight: torch.Tensor, activations: Activations = activations) -> Linear:
            return BlockLinear(round_weights(weight, native=native), None, native, activations)

        def four_bit(weight: torch.Tensor, activations: Activations = activations) -> Linear:
            made = recover_weights(weight, Format.FOUR_BIT, native=native)
            return BlockLinear(made or round_weights(weight, native=native), None, native, activations)

        yield f"8-bit blocks, {bits}-bit inputs", eight_bit, 1.0625
        yield f"4-bit blocks (head 8-bit), {bits}-bit inputs", four_bit, 0.625


def weight_of(outputs: int, inputs: int) -> torch.Tensor:
    """Weights that lie on 4-bit blocks; the head's lie on none."""
    random = torch.Generator().manual_seed(outputs)
    if outputs > 40_000:
        return torch.randn(outputs, inputs, generator=random) * 0.05
    q = torch.randint(0, 16, (outputs, inputs // 32, 32), generator=random).float()
    q[..., 0], q[..., 1] = 0, 15
    return (q * 0.0078125 - 0.0625).flatten(1)


def best_seconds(layers: list[Linear], x: torch.Tensor, budget_s: float) -> float:
    """The least time of one call, over the copies in turn."""
    best, deadline = float("inf"), time.perf_counter() + budget_s
    for layer in itertools.cycle(layers):
        began = time.perf_counter()
        layer(x)
        ended = time.perf_counter()
        best = min(best, ended - began)
        if ended > deadline:
            return best
    raise AssertionError("a cycle does not end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", default="1,4,16,64,512", help="comma-separated (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each figure (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [int(n) for n in args.rows.split(",")]
    native = load_native(cache_root() / "native", num_threads=args.threads)
    print(f"| kind | layer | {' | '.join(f'{n} rows: µs, GB/s, GOPS' for n in rows)} |")
    print("|---|---|" + "---|" * len(rows))
    for name, maker, bytes_per_weight in kinds(native):
        step = [0.0] * len(rows)
        for layer, (outputs, inputs, count) in {**SHAPES, **HEAD}.items():
            size = outputs * inputs * (1.0625 if layer == "head" and bytes_per_weight < 1 else bytes_per_weight)
            weight = weight_of(outputs, inputs)
            layers = [maker(weight) for _ in range(max(1, min(32, int(ROTATED_BYTES / size))))]
            cells = []
            for i, n in enumerate(rows):
                with torch.inference_mode():
                    taken = best_seconds(layers, torch.randn(n, inputs), args.seconds)
                step[i] += taken * count
                operations = 2 * n * outputs * inputs
                cells.append(f"{taken * 1e6:.0f}, {size / taken / 1e9:.0f}, {operations / taken / 1e9:.0f}")
            print(f"| {name} | {layer} | {' | '.join(cells)} |", flush=True)
        print(f"| {name} | **a step** | {' | '.join(f'{s * 1e3:.1f} ms' for s in step)} |", flush=True)


if __name__ == "__main__":
    main()
